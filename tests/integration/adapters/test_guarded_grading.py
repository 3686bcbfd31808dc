"""The same attacks on the verdict through our own loop, an agent on our terminal, and Terminus-2: none pays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym import EndReason, Rollout, Sample
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.gateway import SessionLimits
from tests.helpers.chats.character_codec import END
from tests.helpers.gateway.clients import ThinkingCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import BASE, DONE, FORGER, PASS_IF_DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

THOUGHT = "<think>\nI plan.\n</think>\n\n"

AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"})

DOORS: dict[str, dict[str, Any]] = {
    "own loop": {"strategy": "env", "env_settings": {"confirm_task_complete": True}},
    "agent": {"agent": AGENT},
    "terminus-2": {"agent": "terminus-2"},
}


async def play(door: str, task_dir: Path, *keystrokes: str, **settings: Any) -> Rollout:
    """Type each text in a turn of its own, declare the task complete, and return the door's result."""
    answers = [*map(message, keystrokes), COMPLETE, COMPLETE]

    async def sample(prompt: Sequence[int]) -> Sample:
        turn = "".join(map(chr, prompt)).count(THOUGHT)
        tokens = [*map(ord, THOUGHT + answers[min(turn, len(answers) - 1)]), END]
        return Sample(tokens, [-0.25] * len(tokens))

    given = with_defaults(**{**DOORS[door], **settings})
    return await RolloutInterface(sampler=sample, codec=ThinkingCodec(), **given).run_one(task_dir)


def with_defaults(**settings: Any) -> dict[str, Any]:
    return {"sandbox": "local", "limits": SessionLimits(max_turns=9, max_answer_tokens=5000), **settings}


SLOW_NO = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\nsleep 0.5\n"
RUNS_ON = f"setsid bash -c '{FORGER}' >/dev/null 2>&1 </dev/null &\n"

DAEMON = (
    "#!/usr/bin/b\\n"
    '[ -e /run/forger ] || { echo > /run/forger; setsid /usr/bin/b -c "while sleep 0.01; do '
    "for r in /proc/[0-9]*/root/logs/verifier; do [ -e \\$r/../../tests/test.sh ] && echo 1 > \\$r/reward.txt; done; "
    'done" >/dev/null 2>&1 </dev/null & }\\nexec /usr/bin/b "$@"\\n'
)
SHELL_WITH_DAEMON = (
    f"cp /usr/bin/bash /usr/bin/b; printf '%b' '{DAEMON}' > /x; chmod 755 /x; rm -f /run/forger; mv /x /usr/bin/bash\n"
)
"""Each start of bash, by whomever, leaves a daemon that writes the verdict through the verifier's own root."""


@pytest.mark.parametrize("door", DOORS)
async def test_what_runs_on_writes_no_verdict(door: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", test_sh=SLOW_NO)
    rollout = await play(door, task, RUNS_ON)
    assert (rollout.reward, rollout.rewards, rollout.error) == (0.0, {"reward": 0.0}, None)


@pytest.mark.parametrize("door", ["own loop", "terminus-2"])  # the other agent ends its terminal's processes
async def test_a_service_of_the_policys_is_there_for_the_verifier(door: str, tmp_path: Path) -> None:
    served = "#!/bin/bash\npgrep -f '[s]leep 1007' >/dev/null; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = write_task(tmp_path / "task", test_sh=served)
    serves = "setsid sleep 1007 >/dev/null 2>&1 </dev/null &\n"
    for keeps, reward in ((None, 1.0), (False, 0.0)):
        rollout = await play(door, task, serves, keep_agent_processes=keeps)
        assert (rollout.reward, rollout.error) == (reward, None)


@pytest.mark.parametrize("door", DOORS)
async def test_an_ordinary_user_writes_no_verdict_of_roots_verifier(door: str, tmp_path: Path) -> None:
    toml = '[agent]\nuser = "dev"\n'
    dockerfile = f"FROM {BASE}\nRUN useradd --create-home dev\nWORKDIR /home/dev\n"
    task = write_task(tmp_path / "task", dockerfile=dockerfile, toml=toml, test_sh=SLOW_NO)
    rollout = await play(door, task, RUNS_ON)
    assert (rollout.reward, rollout.error) == (0.0, None)


@pytest.mark.parametrize("door", DOORS)
async def test_declared_paths_are_graded_in_a_pristine_view(door: str, tmp_path: Path) -> None:
    declared = '[metadata]\nverify_paths = ["/srv"]\n'
    slow = PASS_IF_DONE + "sleep 0.5\n"
    task = write_task(tmp_path / "task", toml=declared, test_sh=slow)
    rollout = await play(door, task, SHELL_WITH_DAEMON)
    assert (rollout.reward, rollout.error) == (0.0, None)
    solved = await play(door, task, DONE)
    assert (solved.reward, solved.missing_protections) == (1.0, ())


@pytest.mark.parametrize("door", DOORS)
async def test_a_policy_that_leaves_nothing_to_grade_with_has_failed(door: str, tmp_path: Path) -> None:
    rollout = await play(door, write_task(tmp_path / "task"), DONE, "rm -f /usr/bin/bash /usr/bin/dash /usr/bin/sh\n")
    assert (rollout.reward, rollout.end_reason, rollout.error) == (0.0, EndReason.SANDBOX_BROKEN, None)


@pytest.mark.parametrize("door", DOORS)
async def test_each_step_is_graded_without_what_the_step_before_left(door: str, tmp_path: Path) -> None:
    declared = '[metadata]\nverify_paths = ["/srv"]\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    task = write_task(tmp_path / "steps", test_sh=SLOW_NO, toml=declared)
    for name in ("one", "two"):
        (task / "steps" / name).mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text("Do it.\n")
    (task / "steps" / "two" / "workdir").mkdir()
    (task / "steps" / "two" / "workdir" / "setup.sh").write_text("#!/bin/bash\ntrue\n")
    rollout = await play(door, task, SHELL_WITH_DAEMON, RUNS_ON)
    assert (rollout.reward, rollout.error) == (0.0, None)


async def test_a_sandbox_without_a_protection_is_named_in_the_result(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    for door in ("own loop", "agent"):
        rollout = await play(
            door,
            task,
            DONE,
            sandbox="harbor_gym.testing:FakeEnvironment",
            sandbox_options={"solved_when": {"/srv/answer": "done"}},
        )
        assert rollout.reward == 1.0
        assert len(rollout.missing_protections) == 3
        assert "keep_agent_processes = false" in rollout.missing_protections[1]
        assert "fake sandboxes have no pristine view" in rollout.missing_protections[0]
