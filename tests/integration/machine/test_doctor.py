"""``harbor-gym doctor``: it finds the engines, prints how to get missing ones, and answers by its exit code."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harbor.models.agent.name import AgentName
from harbor.models.environment_type import EnvironmentType
from typer.testing import CliRunner

from harbor_gym._runtime import rootless
from harbor_gym._runtime.console.progress import shown_by
from harbor_gym.checking import doctor
from harbor_gym.cli.main import app
from harbor_gym.embedded import interpreter, needs
from harbor_gym.errors import MissingDependencyError
from harbor_gym.sandboxes.supervisor.program import core_files
from tests.helpers.bases import make_base
from tests.helpers.engines import require_engine
from tests.helpers.recipe_runs import run_here
from tests.unit.house.test_cli import run


@pytest.mark.local
def test_what_this_machine_has_is_found() -> None:
    require_engine("local")
    done = run_here("doctor", "--env", "local", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["usable"]) == (0, {"local": True})
    found = {item["what"]: item for item in report["findings"]}
    assert found["buildah"]["note"] == shutil.which("buildah")
    assert all(item["ok"] and not item["fix"] for item in found.values() if item["is_needed"])


@pytest.mark.criu
def test_criu_is_asked_whether_it_works_here() -> None:
    asked = subprocess.run(["criu", "--version"], capture_output=True, text=True, check=True).stdout
    assert _criu()["note"] == asked.partition(": ")[2].strip()


@pytest.mark.criu
@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        (None, "which is not there", "install CRIU 4.2 or later"),
        ("#!/bin/sh\necho Version: 4.1.1", "is no CRIU of 4.2 or later", "install CRIU 4.2 or later"),
        ("#!/bin/sh\necho Version: 4.2.1", "does not work on this machine", "as root"),
    ],
)
def test_a_criu_that_does_not_work_costs_exact_copies_only(
    text: str | None, why: str, fix: str, tmp_path: Path
) -> None:
    places = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join([str(tmp_path), *(place for place in places if not Path(place, "criu").exists())])
    if text is not None:
        (tmp_path / "criu").write_text(text, encoding="utf-8")
        (tmp_path / "criu").chmod(0o755)
    found = _criu(PATH=path)
    assert (found["ok"], found["is_needed"]) == (False, False)
    assert why in found["note"]
    assert found["note"].endswith('no fork(mode="exact")')
    assert found["fix"].startswith(fix)


@pytest.mark.criu
def test_a_machine_that_refuses_criu_is_told() -> None:
    """As in a container that may not mount."""
    argv = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-all", sys.executable, "-m", "harbor_gym"]
    done = subprocess.run([*argv, "doctor", "--env", "local", "--json"], capture_output=True, text=True, check=False)
    (found,) = (item for item in json.loads(done.stdout)["findings"] if item["what"] == "criu")
    assert found["note"].startswith("CRIU does not work on this machine (")
    assert "not permitted" in found["note"]
    assert found["fix"] == "as root; inside a container, start that with --privileged"


def _criu(**variables: str) -> dict[str, Any]:
    # With another PATH in a process of its own: each remembers which programs it found.
    done = (run if variables else run_here)("doctor", "--env", "local", "--json", **variables)
    (found,) = (item for item in json.loads(done.stdout)["findings"] if item["what"] == "criu")
    return found


def test_what_is_missing_has_a_command_and_makes_the_answer_no(tmp_path: Path) -> None:
    done = run("doctor", "--env", "local", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt-get install -y buildah" in done.stdout
    assert done.stdout.endswith("--env local can NOT be used\n")
    first, *_ = run("doctor", "--env", "docker", PATH=str(tmp_path)).stdout.splitlines()
    assert first.split()[:3] == ["docker", "docker", "MISSING"]


def test_columns_are_aligned_and_no_command_is_cut_in_a_pipe() -> None:
    done = run("doctor", "--env", "local", COLUMNS="40", FORCE_COLOR="1")
    rows = [line for line in done.stdout.splitlines() if not line.startswith("--env")]
    titles = [item["what"] for item in json.loads(run_here("doctor", "--env", "local", "--json").stdout)["findings"]]
    width = len("local  ") + max(map(len, titles)) + 2
    assert [line[len("local  ") : width].rstrip() for line in rows] == titles
    assert {line[width:].split()[0] for line in rows} <= {"ok", "missing", "MISSING"}
    assert not set("\x1b…") & set(done.stdout.replace("=…", ""))


@pytest.mark.parametrize(("most", "ok"), [(1 << 22, False), ((1 << 22) + 1, True), (1 << 63, True)])
def test_the_machines_open_files_are_compared_with_what_sandboxes_may_hold(most: int, *, ok: bool) -> None:
    finding = doctor._open_files(most, 1)  # pyright: ignore[reportPrivateUsage]  # a sysctl is the whole machine's
    assert (finding.ok, finding.is_needed) == (ok, False)
    assert ok or finding.note.startswith(f"fs.file-max is {most}, and 1 sandboxes at once may hold {1 << 22}")
    assert ok or finding.fix.startswith(f"sysctl -w fs.file-max={1 << 23}")


@pytest.mark.parametrize(
    ("pattern", "ok"), [("core.%p", True), ("|/usr/bin/handler %p", False), ("@/run/socket", False)]
)
def test_a_program_that_takes_crashed_processes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, *, ok: bool
) -> None:
    (tmp_path / "pattern").write_text(f"{pattern}\n", encoding="utf-8")
    monkeypatch.setattr(core_files, "PATTERN", str(tmp_path / "pattern"))
    finding = doctor._core_files()  # pyright: ignore[reportPrivateUsage]  # as above
    assert (finding.ok, finding.is_needed) == (ok, False)
    assert ok or pattern in finding.note


def test_no_secret_is_shown_and_another_sandbox_is_asked_by_its_own_check() -> None:
    done = run_here("doctor", "--json", TINKER_API_KEY="tml-hunter2")
    assert "hunter2" not in done.stdout + done.stderr
    (key,) = (item for item in json.loads(done.stdout)["findings"] if item["what"] == "TINKER_API_KEY")
    assert key["ok"]
    refused = run_here("doctor", "--env", "daytona", DAYTONA_API_KEY="")
    assert refused.returncode == 1
    assert "daytona can NOT be used" in refused.stdout
    assert run_here("doctor", "--env", "nonsense").returncode == 2


def test_every_environment_and_agent_of_the_installed_harbor_is_listed() -> None:
    done = run_here("doctor", "--json", DAYTONA_API_KEY="")
    listed = {item["what"]: item for item in json.loads(done.stdout)["findings"] if item["area"] == "other"}
    assert {f"--env {kind.value}" for kind in EnvironmentType if kind is not EnvironmentType.DOCKER} == {
        what for what in listed if what.startswith("--env ")
    }
    assert listed["--env daytona"]["note"].startswith("Daytona requires either DAYTONA_API_KEY")
    assert set(AgentName.values()) == set(re.findall(r"[\w-]+", listed["--agent"]["note"].partition(": ")[2]))
    assert "daytona" not in json.loads(done.stdout)["usable"]
    assert done.stderr == ""


@pytest.mark.parametrize("python", ["/opt/server/bin/python", None])
def test_the_training_server_is_looked_for_as_a_training_does(
    python: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> str:
        if python is None:
            raise MissingDependencyError("not installed")
        return python

    monkeypatch.setattr(interpreter, "server_python", find)
    found = _of_training("server")
    assert found["ok"] == (python is not None)
    assert "harbor-gym server install" in found["fix"] if python is None else found["note"] == python


def test_a_cache_that_can_not_be_used_does_not_end_the_search_for_the_training_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARBOR_GYM_CACHE", "/proc/cache")
    monkeypatch.setattr(interpreter, "SKYRL_VERSION", "0")  # this environment has the server itself
    found = _of_training("server")
    assert not found["ok"]
    assert "/proc/cache can't be used" in found["note"]
    assert found["fix"] == "set HARBOR_GYM_CACHE to a folder that can be written to"


def test_what_a_training_lacks_and_how_long_its_server_started_is_said_beforehand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path))
    assert _of_training("last start of the server")["note"].startswith("none yet")
    (tmp_path / "last-server-start.json").write_text('{"seconds": 53.2, "model_dir": "/m", "when": "2026-11-29T10:00"}')
    assert _of_training("last start of the server")["note"] == "53 s, at 2026-11-29T10:00"
    assert _of_training("extras")["ok"]
    assert _of_training("memory")["ok"]
    monkeypatch.setattr(needs, "MEMORY_MB", 1 << 40)
    monkeypatch.setattr(needs, "MODULES", ("tinker", "no_such_module"))
    monkeypatch.setattr(interpreter, "SKYRL_VERSION", "0")
    done = CliRunner().invoke(app, ["doctor", "--train"])
    assert done.exit_code == 1
    rows = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("train  ")}
    assert 'MISSING  no no_such_module -> pip install "harbor-gym[tinker,server]"' in rows["extras"]
    assert rows["server"].endswith(
        'not installed -> pip install "harbor-gym[tinker,server]" && harbor-gym server install'
    )
    assert f"free {1 << 40} MiB" in rows["memory"]
    assert done.stdout.endswith("train --backend local can NOT be used\n")


def _of_training(what: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["doctor", "--train", "--json"])
    (found,) = (item for item in json.loads(done.stdout)["findings"] if item["what"] == what)
    return found


def test_the_answer_is_five_lines_and_all_of_it_on_demand(tmp_path: Path) -> None:
    lacking = run("doctor", PATH=str(tmp_path), TINKER_API_KEY="")
    local, docker, here, service, rest = lacking.stdout.splitlines()[1:]
    assert lacking.stdout.startswith("you can play, check and evaluate tasks on ")
    assert local.startswith("to use --env local: apt-get install -y ")
    assert docker == "to use --env docker: apt-get install -y docker.io (docker: not installed)"
    assert "train here" in here
    assert service.startswith("to train with the Tinker service: export TINKER_API_KEY=")
    assert rest.endswith("harbor-gym doctor --all shows everything, --train what training here needs")
    whole = run("doctor", "--all", PATH=str(tmp_path)).stdout
    assert all(re.search(rf"^{area} ", whole, re.MULTILINE) for area in ("local", "docker", "train", "other"))


def test_a_search_that_takes_long_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harbor_gym.cli.shared.SLOW_SEC", 0)
    monkeypatch.setattr("harbor_gym.cli.shared._is_watched", lambda: True)
    shown: list[tuple[str, int | None]] = []
    with shown_by(lambda phase, _done, total, _detail: shown.append((phase, total))):
        assert CliRunner().invoke(app, ["doctor", "--train"]).exit_code in (0, 1)
    assert {phase for phase, _ in shown} == {"looking at this machine"}
    assert shown[-1][1] == 1, "its end"


@pytest.mark.local
def test_a_machine_that_has_everything_is_told_in_at_most_five_lines() -> None:
    require_engine("local")
    done = run_here("doctor")
    first, *others = done.stdout.splitlines()
    assert first.startswith("you can play, check and evaluate tasks on local")
    assert len(others) <= 4


def test_a_kind_is_usable_when_it_has_all_that_it_needs() -> None:
    there, lacking = doctor.Finding("a", "x", ok=True), doctor.Finding("b", "y", ok=False)
    handy = doctor.Finding("a", "z", ok=False, is_needed=False)
    assert doctor.usable([there, handy, lacking]) == {"a": True, "b": False}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("ann:100000:65536\n", 65536),
        ("bob:100000:65536\n", 0),
        ("1000:100000:70000\n", 70000),
        ("ann:1:10\nann:5:20\n", 20),
        ("ann\nann:x:y\n", 0),
    ],
)
def test_subordinate_ids_are_counted_by_name_or_number(text: str, count: int) -> None:
    assert rootless.ids_in(text, "ann", 1000) == count


async def test_a_base_of_a_user_without_enough_ids_is_refused_as_a_sandbox_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootless, "is_rootless", lambda: True)
    monkeypatch.setattr(rootless, "_MIN_IDS", 1 << 40)
    refusal, fix = rootless.refusal()
    assert refusal
    with pytest.raises(MissingDependencyError, match=re.escape(f"a base made by an ordinary user: {refusal}: {fix}")):
        await make_base("debian:bookworm-slim")


def test_the_networks_device_must_open_and_not_only_be_there(tmp_path: Path) -> None:
    assert rootless.network_refusal(Path("/dev/null")) == ("", "")
    why, fix = rootless.network_refusal(tmp_path / "tun")
    assert why == f"{tmp_path}/tun is missing"
    assert f"mknod {tmp_path}/tun c 10 200" in fix
    assert "--device" in fix
    why, _ = rootless.network_refusal(tmp_path)
    assert "can't be opened by" in why
    assert "Is a directory" in why


def test_the_setting_that_takes_user_namespaces_away_is_named(tmp_path: Path) -> None:
    apparmor, count = tmp_path / "apparmor_restrict_unprivileged_userns", tmp_path / "max_user_namespaces"
    switches = {apparmor: ("1", "kernel.x=0"), count: ("0", "user.x=9")}
    assert rootless.switch_refusal(switches) == ("", "")
    count.write_text("0\n")
    apparmor.write_text("0\n")
    assert rootless.switch_refusal(switches)[1] == "sysctl -w user.x=9"
    apparmor.write_text("1\n")
    assert str(apparmor) in rootless.switch_refusal(switches)[0]
