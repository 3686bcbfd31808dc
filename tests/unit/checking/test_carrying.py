"""Which paths a check proposes to carry into a pristine view."""

from pathlib import Path, PurePosixPath

import pytest

from harbor_gym.checking.carrying import MAX_PATHS, candidates, what_remains
from tests.helpers.tasks import write_task

CASES = {
    "a task's own directory": (["/app", "/app/out", "/app/out/x.txt"], [["/app"]]),
    "noise of trial, shells and caches": (
        [
            "/tmp/x",
            "/logs/agent/oracle.txt",
            "/solution/solve.sh",
            "/root/.cache/uv/x",
            "/root/.bash_history",
            "/srv/a",
        ],
        [["/srv"]],
    ),
    "nothing": (["/tmp", "/tmp/x"], []),
    "a file of a home, not the start-up files beside it": (
        ["/home", "/home/dev", "/home/dev/report.txt", "/root/notes/a/b"],
        [["/home/dev/report.txt", "/root/notes"]],
    ),
    "settings count only if the rest does not do": (
        ["/etc/app/app.conf", "/etc/hosts", "/etc/cron.d/job", "/srv/x"],
        [["/srv"], ["/etc/app", "/etc/cron.d/job", "/etc/hosts", "/srv"]],
    ),
    "packages come last": (
        ["/usr/bin/jq", "/var/lib/dpkg/status", "/opt/tool/bin/x"],
        [["/opt/tool"], ["/opt/tool", "/usr/bin/jq"], ["/opt/tool", "/usr/bin/jq", "/var/lib/dpkg"]],
    ),
    "below /var the service's own": (["/var/log/app.log", "/var/lib/db/x/y"], [["/var/lib/db", "/var/log/app.log"]]),
    "too many to read": ([f"/usr/lib/x{number}" for number in range(MAX_PATHS + 1)], []),
}


@pytest.mark.parametrize("case", CASES)
def test_paths_come_from_what_the_solution_wrote(case: str) -> None:
    written, expected = CASES[case]
    found = candidates(map(PurePosixPath, written))
    assert [[str(path) for path in item] for item in found] == expected


def test_what_a_verifier_would_still_run_of_carried_paths_is_named(tmp_path: Path) -> None:
    carried = [PurePosixPath("/app"), PurePosixPath("/usr/local/bin/appctl")]
    plain = write_task(tmp_path / "plain")
    assert what_remains(plain, carried) == ["programs and libraries: /usr/local/bin/appctl"]
    tested = write_task(tmp_path / "tested", test_sh="#!/bin/bash\ncd /app && git status && pytest /tests\n")
    remains = what_remains(tested, carried)
    assert remains[0] == "programs and libraries: /usr/local/bin/appctl"
    assert [what.split()[0] for what in remains[1:]] == ["conftest.py,", "Python", "git"]
    assert all(what.endswith("below /app") for what in remains[1:])
