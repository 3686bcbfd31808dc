"""What the policy does to its own agent is the policy's: to a program in the sandbox, its tunnel, or its terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym import Rollout, Sample
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.gateway import SessionLimits
from tests.helpers.chats.character_codec import END
from tests.helpers.gateway.clients import THOUGHT, ThinkingCodec, tool_call
from tests.helpers.gateway.inner_agent import INNER_AGENT
from tests.helpers.tasks import DONE, write_task
from tests.integration.adapters.test_guarded_grading import play

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

INNER = AgentConfig(import_path=INNER_AGENT, kwargs={"url": "{gateway_url}"})


async def play_inside(task_dir: Path, *commands: str, **settings: Any) -> Rollout:
    """Play with an agent that runs in the sandbox: each command in a turn of its own, then a last word."""
    answers = [f"{THOUGHT}{tool_call(command=command)}" for command in commands] + [f"{THOUGHT}done"]

    async def sample(prompt: Sequence[int]) -> Sample:
        turn = "".join(map(chr, prompt)).count(THOUGHT)
        tokens = [*map(ord, answers[min(turn, len(answers) - 1)]), END]
        return Sample(tokens, [-0.25] * len(tokens))

    limits = SessionLimits(max_turns=9, max_answer_tokens=5000)
    given: dict[str, Any] = {"sandbox": "local", "limits": limits, "agent_in_sandbox": True, **settings}
    return await RolloutInterface(sampler=sample, codec=ThinkingCodec(), agent=INNER, **given).run_one(task_dir)


BLOWS = {
    "kills everything": "kill -9 -1",
    "kills its parent": "kill -9 $PPID",
    "kills its parent softly": "kill -TERM $PPID",
    "ends the tunnel": "for it in /proc/[0-9]*; do grep -q serve_sand[b]ox $it/cmdline && kill -9 ${it#/proc/}; done",
    "ends the tunnel and its parent": (
        "for it in /proc/[0-9]*; do grep -q serve_sand[b]ox $it/cmdline && kill -9 ${it#/proc/}; done; kill -9 $PPID"
    ),
    "stops the tunnel and kills its parent": (
        "for it in /proc/[0-9]*; do grep -q serve_sand[b]ox $it/cmdline && kill -STOP ${it#/proc/}; done; kill -9 $PPID"
    ),
    "cuts the next request": "(sleep 0.3; kill -9 $PPID) > /dev/null 2>&1 & sleep 0.1",
}


@pytest.mark.parametrize("blow", BLOWS)
@pytest.mark.parametrize("is_solved", [True, False], ids=["solved", "unsolved"])
async def test_an_agents_program_that_its_policy_ends_is_graded(blow: str, is_solved: bool, tmp_path: Path) -> None:
    first = DONE.strip() if is_solved else "true"
    rollout = await play_inside(write_task(tmp_path / "task"), first, BLOWS[blow])
    assert (rollout.reward, rollout.error) == (float(is_solved), None)


TMUX = {
    "kills everything": "kill -9 -1\n",
    "ends tmux": "tmux kill-server\n",
    "ends its shell": "exit\n",
    "removes tmux": "rm -f $(command -v tmux); kill -9 $PPID\n",
}


@pytest.mark.parametrize("blow", TMUX)
async def test_a_terminal_that_its_policy_ends_is_graded(blow: str, tmp_path: Path) -> None:
    rollout = await play("terminus-2", write_task(tmp_path / "task"), DONE, TMUX[blow], "true\n")
    assert (rollout.reward in (0.0, 1.0), rollout.error) == (True, None)


async def test_a_policy_that_removes_all_files_has_failed(tmp_path: Path) -> None:
    rollout = await play("terminus-2", write_task(tmp_path / "task"), "cd /; rm -rf $PWD\n", "true\n")
    assert (rollout.reward, rollout.error) == (0.0, None)
