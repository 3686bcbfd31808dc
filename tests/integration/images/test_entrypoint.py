"""An image's ENTRYPOINT in local and Apptainer sandboxes: run, and its service visible, as on Docker under Harbor."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes import entrypoint
from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.types import Command
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes import apptainer, local
from tests.helpers.sandboxes.local import output, running
from tests.helpers.tasks import write_task

type Make = Callable[..., ApptainerEnvironment | LocalEnvironment]

pytestmark = pytest.mark.usefixtures("nothing_left")
_MAKERS: dict[str, Make] = {"local": local.make_sandbox, "apptainer": apptainer.make_sandbox}
_SERVICE = """\
FROM debian:bookworm-slim
RUN useradd --create-home --uid 1234 dev && mkdir /srv/state && chown dev /srv/state
RUN printf '#!/bin/bash\\nid -un >/srv/state/who; pwd >/srv/state/where; echo "$COLOUR" >/srv/state/colour\\n\
(while :; do date +%%s%%N >/srv/state/next; mv /srv/state/next /srv/state/beat; sleep 0.05; done) >/dev/null 2>&1 &\\n\
echo starting; echo "$@" >/srv/state/arguments; exec "$@"\\n' >/usr/local/bin/start && chmod +x /usr/local/bin/start
ENV COLOUR=green
WORKDIR /srv/state
USER dev
ENTRYPOINT ["start"]
CMD ["never", "run"]
"""


@pytest.fixture(
    params=[pytest.param("local", marks=pytest.mark.local), pytest.param("apptainer", marks=pytest.mark.apptainer)]
)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_sandbox(kind: str) -> Make:
    return _MAKERS[kind]


async def test_it_runs_as_the_images_user_with_a_command_for_arguments(make_sandbox: Make, tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=_SERVICE)) as sandbox:
        assert await output(sandbox, "cd /srv/state; cat who where colour") == "dev\n/srv/state\ngreen"
        arguments = await output(sandbox, "cat /srv/state/arguments")
        assert arguments.startswith("sh -c")
        assert await output(sandbox, "pgrep -fx 'sleep infinity' || :") == ""
        first = await output(sandbox, "cat /srv/state/beat")
        assert await output(sandbox, "sleep 0.3; cat /srv/state/beat") > first
        (tmp_path / "trial").mkdir()
    assert (tmp_path / "trial" / "entrypoint.log").read_text() == "starting\n"


async def test_its_service_is_closed_to_the_policys_root(make_sandbox: Make, tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=_SERVICE)) as sandbox:
        await sandbox.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        read = "cat /proc/$(pgrep -o -f local/bin/start)/environ"
        assert "Permission denied" in ((await sandbox.exec(read, user="root")).stderr or "")


async def test_one_that_ends_fails_the_start_with_what_it_printed(make_sandbox: Make, tmp_path: Path) -> None:
    ends = 'FROM debian:bookworm-slim\nENTRYPOINT ["sh", "-c", "echo no licence found >&2; exit 3"]\n'
    with pytest.raises(SandboxStartError, match=r"ENTRYPOINT .* status 3: no licence found"):
        await make_sandbox(tmp_path / "ends", dockerfile=ends).start(force_build=False)
    missing = 'FROM debian:bookworm-slim\nENTRYPOINT ["nothing-here"]\n'
    with pytest.raises(SandboxStartError, match=r"status 126: .*no program 'nothing-here'"):
        await make_sandbox(tmp_path / "missing", dockerfile=missing).start(force_build=False)


_TINI = """\
FROM debian:bookworm-slim
RUN printf '#!/bin/sh\\nsleep 1000 &\\n"$@"\\necho over >/tmp/over; exit 3\\n' >/init && chmod +x /init
ENTRYPOINT ["/init"]
"""
"""A parent that lives, waits for its child, and takes its services along when that ends."""


async def test_a_parent_that_waits_for_its_arguments_goes_on_waiting(make_sandbox: Make, tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=_TINI)) as sandbox:
        assert await output(sandbox, "pgrep -cfx 'sleep infinity'; ls /tmp") == "1"


async def test_one_that_only_executes_its_arguments_leaves_nothing(make_sandbox: Make, tmp_path: Path) -> None:
    passes_on = 'FROM debian:bookworm-slim\nENTRYPOINT ["sh", "-c", "echo starting; exec \\"$@\\"", "x"]\n'
    async with running(make_sandbox(tmp_path, dockerfile=passes_on)) as sandbox:
        await output(sandbox, "while pgrep -v '^(init|bash|pgrep)$'; do sleep 0.01; done", timeout_sec=PATIENCE_SEC)
        (tmp_path / "trial").mkdir()
    assert (tmp_path / "trial" / "entrypoint.log").read_text() == "starting\n"


async def test_one_that_never_hands_over_serves_beside_the_episode(
    make_sandbox: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stays = 'FROM debian:bookworm-slim\nENTRYPOINT ["sh", "-c", "echo up >/tmp/up; exec sleep 1000"]\n'
    async with running(make_sandbox(tmp_path, dockerfile=stays)) as sandbox:
        assert await output(sandbox, "cat /tmp/up") == "up"
    assert "has not executed its arguments" in caplog.text


async def test_its_service_is_seen_by_healthcheck_and_verifier_and_survives_the_cleaning(
    kind: str, tmp_path: Path
) -> None:
    task = write_task(
        tmp_path / "task",
        dockerfile=_SERVICE,
        test_sh="#!/bin/bash\necho 0 >/logs/verifier/reward.txt; a=$(cat /srv/state/beat)\n"
        "for try in {1..100}; do sleep 0.1; b=$(cat /srv/state/beat)\n"
        '[ "${b:-0}" -gt "${a:-0}" ] && echo 1 >/logs/verifier/reward.txt && break; done\n',
        toml='[environment.healthcheck]\ncommand = "test -s /srv/state/beat"\ninterval_sec = 0.1\nretries = 100\n',
    )
    config = TerminalEnvConfig(task_dir=task, sandbox=kind, keep_agent_processes=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([Command("sleep 1000 &\n", 30.0)])
        done = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'
        await env.step(done)
        _, reward, is_done, info = await env.step(done)
    assert (is_done, reward) == (True, 1.0)
    assert info["metrics"]["stopped_processes"] == 1


def _starting_in_background(program: str) -> str:
    """Return a Dockerfile whose ENTRYPOINT starts a program of Perl, and hands over at once."""
    words = ["bash", "-c", f"perl -MIO::Socket::INET -e '{program}' & exec \"$@\"", "x"]
    return f"FROM debian:bookworm-slim\nENTRYPOINT {json.dumps(words)}\n"


_LATE = "1 while $n++ < 2e7; $s = IO::Socket::INET->new(LocalAddr => q(127.0.0.1:8000), Listen => 5); sleep 1000"
"""Computes for a second, then listens."""
_CONNECT = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000'"


async def test_a_service_in_the_background_is_up_when_the_start_returns(make_sandbox: Make, tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=_starting_in_background(_LATE))) as sandbox:
        await output(sandbox, _CONNECT)
        assert re.fullmatch(r"the image's entrypoint starts services; waited \d+\.\d s", sandbox.services_note or "")


async def test_what_only_sleeps_or_has_ended_is_not_waited_for_long(make_sandbox: Make, tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path / "ends", dockerfile=_starting_in_background("exit"))) as sandbox:
        assert sandbox.services_note is None
    sleeps = _starting_in_background("sleep 1000")
    async with running(make_sandbox(tmp_path / "sleeps", dockerfile=sleeps)) as sandbox:
        assert "still busy" not in (sandbox.services_note or "still busy")
    async with running(make_sandbox(tmp_path / "tini", dockerfile=_ONLY_TINI)) as sandbox:
        assert sandbox.services_note is None


_JOBS = {
    "a program": "(sleep 0.5; echo done >/job) &",
    "a language": 'python3 -c \'import time; time.sleep(1.5); open("/job", "w").write("done")\' & sleep 0.4;',
    "a language of old": "perl -e 'sleep 1; system(\"echo done >/job\")' & sleep 0.5;",
}


@pytest.mark.parametrize("job", _JOBS)
async def test_a_job_that_sleeps_for_a_moment_is_awaited(make_sandbox: Make, tmp_path: Path, job: str) -> None:
    words = json.dumps(["bash", "-c", f'{_JOBS[job]} exec "$@"', "x"])
    image = f"FROM debian:bookworm-slim\nENTRYPOINT {words}\n"
    async with running(make_sandbox(tmp_path, dockerfile=image)) as sandbox:
        assert await output(sandbox, "cat /job") == "done"


_ONLY_TINI = """\
FROM debian:bookworm-slim
RUN printf '#!/bin/sh\\n"$@"\\nexit 3\\n' >/init && chmod +x /init
ENTRYPOINT ["/init"]
"""


async def test_a_service_that_never_rests_is_named(
    make_sandbox: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrypoint, "_SETTLE_LIMIT_SEC", 2.0)  # it takes a whole processor meanwhile
    async with running(make_sandbox(tmp_path, dockerfile=_starting_in_background("1 while 1"))) as sandbox:
        assert (sandbox.services_note or "").endswith("and they were still busy")
    assert "still busy" in caplog.text
