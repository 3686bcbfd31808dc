"""Two builds of a task's image are compared by their files, without times."""

from pathlib import Path

import pytest

from harbor_gym.checking.audit.rebuild import different_paths, find_by_rebuild
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.sandboxes import environment_config
from tests.helpers.tasks import write_task

FROM = "FROM debian:bookworm-slim\nWORKDIR /srv\n"


def test_what_differs_between_two_trees_is_named(tmp_path: Path) -> None:
    for name, stamp in (("one", "1"), ("other", "22")):
        folder = tmp_path / name
        (folder / "var/log").mkdir(parents=True)
        (folder / "same").write_text("same")
        (folder / "stamp").write_text(stamp)
        (folder / "mode").write_text("")
        (folder / "mode").chmod(0o600 if name == "one" else 0o644)
        (folder / "var/log/dpkg.log").write_text(stamp)
        (folder / name).touch()
    assert list(different_paths([tmp_path / "one"], [tmp_path / "other"])) == [
        ("mode", "another mode, owner or target"),
        ("one", "in one of them alone"),
        ("other", "in one of them alone"),
        ("stamp", "1 and 2 bytes"),
    ]


@pytest.mark.local
@pytest.mark.parametrize(
    ("step", "paths"),
    [
        ("RUN echo same > same && mkdir empty && ln -s same link", []),
        ("RUN head -c 8 /dev/urandom > stamp && echo same > same", ["/srv/stamp: other content"]),
    ],
    ids=["right", "differs"],
)
async def test_two_builds_are_compared(tmp_path: Path, step: str, paths: list[str]) -> None:
    task = write_task(tmp_path / "task", dockerfile=f"{FROM}{step}\n")
    plan = CheckPlan(environment_config("local"), tmp_path / "trials")
    found = await find_by_rebuild(task, plan)
    assert [evidence.text for one in found for evidence in one.evidence] == paths
    assert {one.kind for one in found} == ({"hygiene/build-differs"} if paths else set())


@pytest.mark.local
async def test_a_verifiers_own_image_is_built_twice_as_well(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", dockerfile=FROM, toml='[verifier]\nenvironment_mode = "separate"\n')
    (task / "tests/Dockerfile").write_text(f"{FROM}RUN head -c 8 /dev/urandom > stamp\n")
    (found,) = await find_by_rebuild(task, CheckPlan(environment_config("local"), tmp_path / "trials"))
    assert found.message == "two builds of tests/Dockerfile differ in /srv/stamp"
    assert [(one.file, one.text) for one in found.evidence] == [("tests/Dockerfile", "/srv/stamp: other content")]
