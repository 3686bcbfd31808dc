"""Which paths a verifier in a pristine view sees, and when the view is entered and left."""

import logging
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from pydantic import ValidationError

from harbor_gym import EndReason, TerminalEnvConfig
from harbor_gym.config.verify_paths import check_paths, parse_verify_paths
from harbor_gym.episode.grading import verifier_view
from harbor_gym.episode.task import load_task
from harbor_gym.errors import SandboxLostError, TaskError, UsageError
from tests.helpers.harbor_trials import graded_in, run_episode
from tests.helpers.sandboxes.viewing import LOST, VIEWING, VIEWING_VERIFIERS, Viewing
from tests.helpers.tasks import write_task

FAKE = "harbor_gym.testing:FakeEnvironment"
SOLVED = {"solved_when": {"/srv/answer": "done"}}
DONE = ["echo done > /srv/answer"]


def paths(*texts: str) -> tuple[PurePosixPath, ...]:
    return tuple(map(PurePosixPath, texts))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["/app"], ["/app"]),
        (["/srv/b", "/app/", "//app/x", "/srv"], ["/app", "/srv"]),
        (["/application", "/app"], ["/app", "/application"]),
        (["/logs/agent", "/testsuite", "/var/tmp"], ["/logs/agent", "/testsuite", "/var/tmp"]),
    ],
)
def test_paths_are_put_in_order_and_those_within_others_dropped(given: list[str], expected: list[str]) -> None:
    assert check_paths(given) == paths(*expected)


REFUSED = {
    "none": ([], "names no path"),
    "relative": (["app"], "'app' is not an absolute path"),
    "upwards": (["/app/../etc"], "is not an absolute path without '..'"),
    "everything": (["/"], "everything"),
    "everything, in two slashes": (["//"], "everything"),
    "the tests": (["/app", "/tests"], "its own /tests"),
    "below temporary files": (["/tmp/work"], "its own /tmp"),
    "above the verdict": (["/logs"], "its own /logs/verifier"),
    "the kernel's": (["/proc/1"], "its own /proc"),
    "a number": ([7], "7, which is not a path"),
    "empty": ([""], "'', which is not a path"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_path_that_no_view_can_carry_is_refused(case: str) -> None:
    given, expected = REFUSED[case]
    with pytest.raises(ValueError, match=expected.replace("..", r"\.\.")):
        check_paths(given)


def test_a_command_line_sets_auto_off_or_paths() -> None:
    assert parse_verify_paths("auto") == "auto"
    assert parse_verify_paths("off") == "off"
    assert parse_verify_paths("/app,/srv") == paths("/app", "/srv")
    for wrong in ("", "on", "/app,", "/app,srv"):
        with pytest.raises(UsageError, match="--verify-paths is auto, off, or paths"):
            parse_verify_paths(wrong)


def test_a_configuration_checks_its_paths(tmp_path: Path) -> None:
    config = TerminalEnvConfig(task_dir=tmp_path, verify_paths=paths("/b", "/a", "/a/c"))
    assert config.verify_paths == paths("/a", "/b")
    assert TerminalEnvConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(ValidationError, match="its own /tests"):
        TerminalEnvConfig(task_dir=tmp_path, verify_paths=paths("/tests"))


@pytest.mark.parametrize(
    ("declared", "expected"),
    [('"/app"', "is a list of paths, got '/app'"), ('["app"]', "not an absolute path"), ("[]", "names no path")],
)
async def test_a_task_that_declares_what_cannot_be_carried_is_malformed(
    tmp_path: Path, declared: str, expected: str
) -> None:
    task = write_task(tmp_path / "task", toml=f"[metadata]\nverify_paths = {declared}\n")
    with pytest.raises(TaskError, match=expected) as caught:
        await load_task(task)
    assert "task.toml: [metadata] verify_paths" in str(caught.value)


DECLARED = '[metadata]\nverify_paths = ["/srv"]\n'


@pytest.mark.parametrize(
    ("toml", "settings", "view", "expected"),
    [
        ("", {}, None, 1.0),
        (DECLARED, {}, "enter /srv", 1.0),
        (DECLARED, {"verify_paths": "off"}, None, 1.0),
        (DECLARED, {"verify_paths": paths("/app")}, "enter /app", 0.0),
        ("", {"verify_paths": paths("/app", "/srv")}, "enter /app /srv", 1.0),
    ],
    ids=["not asked", "declared", "declared and off", "others given", "given"],
)
async def test_the_verifier_sees_what_the_task_or_the_configuration_carries(
    tmp_path: Path, toml: str, settings: dict[str, Any], view: str | None, expected: float
) -> None:
    task = write_task(tmp_path / "task", toml=toml)
    ends, _ = await run_episode(task, DONE, sandbox=VIEWING, sandbox_options=SOLVED, **settings)
    assert ends[-1][0] == expected
    assert [event for event in Viewing.events if "enter" in event] == ([] if view is None else [view])
    assert "leave" not in Viewing.events
    if view is not None:
        entered = Viewing.events.index(view)
        assert {"upload /tests", "download /logs/verifier"} <= set(Viewing.events[entered:])
        assert "upload /tests" not in Viewing.events[:entered]


async def test_a_view_is_left_before_anything_of_the_next_step_and_entered_again(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    task = write_task(tmp_path / "steps", toml=DECLARED + "".join(f'[[steps]]\nname = "{name}"\n' for name in names))
    (task / "instruction.md").unlink()
    for name in names:
        (task / "steps" / name).mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text(f"Leave it {name}.\n")
    ends, _ = await run_episode(task, [*DONE, "true", "true"], sandbox=VIEWING, sandbox_options=SOLVED)
    assert graded_in(ends) == [{"reward": 1.0}] * 3
    moves = [event for event in Viewing.events if event.startswith(("enter", "leave"))]
    assert moves == ["enter /srv", "leave", "enter /srv", "leave", "enter /srv"]
    for left in (at for at, event in enumerate(Viewing.events) if event == "leave"):
        assert Viewing.events[left - 1] == "download /logs/verifier"
        assert Viewing.events[left + 1] == "empty /logs/agent"


def write_set_ups(task_dir: Path) -> Path:
    """Write a task of three steps: the first and the second with files of their own, the third with a healthcheck."""
    steps = "".join(f'[[steps]]\nname = "{name}"\n' for name in ("one", "two", "three"))
    healthcheck = '[steps.healthcheck]\ncommand = "true"\n'
    task = write_task(task_dir, toml=f"{DECLARED}{steps}{healthcheck}")
    (task / "instruction.md").unlink()
    for name in ("one", "two", "three"):
        (task / "steps" / name).mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text(f"Leave it {name}.\n")
    for name in ("one", "two"):
        (task / "steps" / name / "workdir").mkdir()
        (task / "steps" / name / "workdir/brought").write_text("brought\n")
    return task


NOT_PREPARED = "prepare later steps among the policy's files"
MOVES = ("enter", "leave", "set up", "merge")


async def test_a_later_set_up_has_a_view_which_is_merged_before_the_policys_phase(tmp_path: Path) -> None:
    task = write_set_ups(tmp_path / "steps")
    ends, _ = await run_episode(task, [*DONE, "true", "true"], sandbox=VIEWING, sandbox_options=SOLVED)
    assert graded_in(ends) == [{"reward": 1.0}] * 3
    assert not any(NOT_PREPARED in text for text in ends[-1][2].get("missing_protections", ()))
    moves = [event for event in Viewing.events if event.startswith(MOVES)]
    between = ["leave", "set up in /srv /srv", "merge", "enter /srv"]
    assert moves == ["enter /srv", *between, *between]
    entered = Viewing.events.index("set up in /srv /srv")
    assert Viewing.events[entered - 1].startswith("empty ")
    assert Viewing.events[entered + 1 : entered + 3] == ["upload /srv", "merge"]


async def test_a_set_up_that_the_policy_left_no_room_for_ends_the_episode_as_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Viewing, "problem", "/big: No space left on device")
    task = write_set_ups(tmp_path / "steps")
    ((_, done, info),) = (await run_episode(task, [*DONE, "true"], sandbox=VIEWING, sandbox_options=SOLVED))[0]
    assert (done, info.get("end_reason")) == (True, EndReason.SANDBOX_BROKEN)
    assert "/big: No space left on device" in (info.get("breakage") or "")


async def test_a_set_up_that_could_not_be_taken_over_is_graded_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Viewing, "problem", LOST)
    task = write_set_ups(tmp_path / "steps")
    with pytest.raises(SandboxLostError, match=LOST):
        await run_episode(task, [*DONE, "true"], sandbox=VIEWING, sandbox_options=SOLVED)
    assert Viewing.events.count("enter /srv") == 1


async def test_a_sandbox_that_can_prepare_no_step_in_a_view_says_so(tmp_path: Path) -> None:
    task = write_set_ups(tmp_path / "steps")
    ends, _ = await run_episode(task, [*DONE, "true", "true"], sandbox=VIEWING_VERIFIERS, sandbox_options=SOLVED)
    assert graded_in(ends) == [{"reward": 1.0}] * 3
    assert any(NOT_PREPARED in text for text in ends[-1][2].get("missing_protections", ()))
    moves = [event for event in Viewing.events if event.startswith(MOVES)]
    assert moves == ["enter /srv", "leave", "enter /srv", "leave", "enter /srv"]


async def test_a_sandbox_without_a_view_grades_as_harbor_does_and_logs_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    verifier_view.note_missing.cache_clear()
    task = write_task(tmp_path / "task", toml=DECLARED)
    with caplog.at_level(logging.WARNING, logger=verifier_view.__name__):
        for _ in range(2):
            ends, _ = await run_episode(task, DONE, sandbox=FAKE, sandbox_options=SOLVED)
            assert ends[-1][0] == 1.0
    assert [record.getMessage() for record in caplog.records if record.name == verifier_view.__name__] == [
        "fake sandboxes have no pristine view (local ones have): a task's verify_paths have no effect there"
    ]


async def test_paths_demanded_of_a_sandbox_without_a_view_start_nothing(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    with pytest.raises(TaskError, match=r"fake sandbox, which has no pristine view: use --env local, or .*'auto'"):
        await run_episode(task, DONE, sandbox=FAKE, sandbox_options=SOLVED, verify_paths=paths("/srv"))
