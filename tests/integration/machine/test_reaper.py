"""The reaper removes the leftovers of dead owners, and touches nothing else."""

import dataclasses
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbor_gym._runtime.owners import Owner, owner_label
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.dockerfile import OWNER_OF_BUILD
from harbor_gym.sandboxes.labels import OWNER_LABEL, PROJECT_LABEL
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.recipe_runs import run_here
from tests.helpers.tasks import BASE


def me() -> Owner:
    found = Owner.find(owner_label())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def dead() -> str:
    """The label of a process that was killed."""
    program = "import os; from harbor_gym._runtime.owners import owner_label; "
    program += "print(owner_label(), flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    return done.stdout.strip()


@pytest.fixture
def spared() -> list[str]:
    """Labels in the place of an owner with which nothing may be removed."""
    elsewhere = dataclasses.replace(me(), host="0123456789ab", pid=2**22 + 1)
    return [owner_label(), str(elsewhere), "somebody"]


def test_folders_of_dead_owners_are_removed(scratch: Path, dead: str, spared: list[str]) -> None:
    kept = [f"harbor-gym-trial-{label}-x" for label in spared] + [f"other-{dead}-x", "harbor-gym-trial-abc"]
    doomed = scratch / f"harbor-gym-trial-{dead}-x"
    for name in [*kept, doomed.name]:
        (scratch / name).mkdir()
    (scratch / "kept.txt").write_text("mine")
    (doomed / "link").symlink_to(scratch / "kept.txt")
    (doomed / "sub").symlink_to(scratch / kept[0])
    shown = run_here("reap", "--dry-run")
    assert shown.returncode == 0
    assert [line.split() for line in shown.stdout.splitlines() if str(scratch) in line] == [["directory", str(doomed)]]
    assert doomed.exists()
    assert run_here("reap").returncode == 0
    assert sorted(path.name for path in scratch.iterdir()) == sorted([*kept, "kept.txt"])
    assert (scratch / "kept.txt").read_text() == "mine"


def test_a_link_in_place_of_a_folder_is_not_followed(scratch: Path, dead: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "inner").mkdir(parents=True)
    (scratch / f"harbor-gym-trial-{dead}-x").symlink_to(target)
    assert run_here("reap").returncode == 1
    assert (target / "inner").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a control group")
def test_control_groups_of_dead_owners_are_removed(dead: str, scratch: Path) -> None:
    place = next(
        (path for path in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if os.access(path, os.W_OK)), None
    )
    if place is None:
        pytest.skip("no control groups can be made here")
    groups = [place / f"harbor-gym-{label}-{uuid.uuid4().hex[:6]}" for label in (dead, owner_label())]
    for group in groups:
        group.mkdir()
    try:
        assert run_here("reap").returncode == 0
        assert [group.exists() for group in groups] == [False, True]
    finally:
        for group in groups:
            if group.exists():
                group.rmdir()


BUILD = """
import asyncio, sys
from pathlib import Path
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.images.build import build_image
asyncio.run(build_image(ImageSource(Path(sys.argv[1]))))
"""


def buildah(*words: str) -> str:
    environment = {"STORAGE_DRIVER": "overlay", **os.environ}
    return subprocess.run(["buildah", *words], capture_output=True, text=True, check=False, env=environment).stdout


def builds_in(folder: Path) -> list[str]:
    """Return the working containers of builds that have their temporary files in a folder."""
    shown = ("inspect", "--type", "container", "--format", OWNER_OF_BUILD)
    return [item for item in buildah("containers", "--quiet").split() if str(folder) in buildah(*shown, item)]


@pytest.mark.local
@pytest.mark.slow
def test_the_container_of_a_killed_build_is_removed(scratch: Path, tmp_path: Path) -> None:
    require_engine("local")
    began = tmp_path / "context"
    began.mkdir()
    (began / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo {uuid.uuid4()} && sleep 60\n")
    other = buildah("from", "scratch").strip()
    with subprocess.Popen([sys.executable, "-c", BUILD, str(began)], cwd=ROOT) as build:
        try:
            deadline = time.monotonic() + PATIENCE_SEC
            while not (left := builds_in(scratch)):
                assert build.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            run_here("reap")
            assert builds_in(scratch) == left, "the container of a living build was removed"
        finally:
            build.kill()
    run_here("reap")  # another test's process may have been first, with its own reaper
    assert builds_in(scratch) == []
    assert list(scratch.iterdir()) == []
    assert buildah("rm", other), "a container that nobody marked was removed"


class Things:
    """Containers, networks and volumes that the tests make, and that go with them."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def add(self, kind: str, **labels: str) -> str:
        """Make one thing with labels; return its name."""
        name = f"hgreap-{uuid.uuid4().hex[:8]}"
        words = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        command = {
            "container": ["create", "--name", name, *words, BASE, "true"],
            "network": ["network", "create", *words, name],
            "volume": ["volume", "create", *words, name],
        }[kind]
        self.made.append((kind, name))
        subprocess.run(["docker", *command], check=True, capture_output=True)
        return name

    def still_there(self) -> set[str]:
        return {name for kind, name in self.made if self._run(kind, "inspect", name)}

    def remove_all(self) -> None:
        for kind, name in self.made:
            self._run(kind, "rm", name)

    @staticmethod
    def _run(kind: str, verb: str, name: str) -> bool:
        return subprocess.run(["docker", kind, verb, name], capture_output=True, check=False).returncode == 0


@pytest.fixture
def things() -> Iterator[Things]:
    require_engine("docker")
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)
    made = Things()
    try:
        yield made
    finally:
        made.remove_all()


@pytest.mark.docker
def test_what_dead_owners_left_in_docker_is_removed(
    things: Things, dead: str, spared: list[str], scratch: Path
) -> None:
    def label(owner: str, project: str) -> dict[str, str]:
        return {OWNER_LABEL: owner, PROJECT_LABEL: project}

    kept = {things.add("container"), things.add("network"), things.add("container", **{PROJECT_LABEL: "hgreap-other"})}
    for owner in spared:
        kept |= {things.add(kind, **label(owner, "hgreap-kept")) for kind in ("container", "network", "volume")}
    # A project of the dead that a living process took up again: only objects labelled as the dead one's go.
    kept |= {things.add("container", **label(owner_label(), "hgreap-shared"))}
    kept |= {things.add("container", **{PROJECT_LABEL: "hgreap-shared"})}
    for kind in ("container", "network", "volume"):
        things.add(kind, **label(dead, "hgreap-dead"))
    things.add("container", **{PROJECT_LABEL: "hgreap-dead"})  # as from an included Compose file
    things.add("container", **label(dead, "hgreap-shared"))
    done = run_here("reap")
    assert done.returncode == 0, done.stderr
    assert things.still_there() == kept
    again = run_here("reap")
    assert again.returncode == 0, "a second time there is nothing to do"
    assert again.stdout.splitlines()[-1] in ("nothing is left of killed processes", "0 removed")


@pytest.mark.docker
def test_a_background_reaper_removes_it_too(things: Things, dead: str, scratch: Path) -> None:
    name = things.add("network", **{OWNER_LABEL: dead})
    program = "import threading; from harbor_gym.sandboxes import reaper; reaper.reap_in_background(in_docker=True); "
    join = "[thread.join() for thread in threading.enumerate() if thread.name == 'harbor-gym-reaper']"
    subprocess.run([sys.executable, "-c", program + join], check=True)
    assert name not in things.still_there()


def test_without_docker_there_are_folders_only(scratch: Path, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(scratch))
    assert {item.kind for item in reaper.find_leftovers()} <= {"directory", "cgroup"}
    assert reaper.find_images() == []
