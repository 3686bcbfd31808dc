"""Harbor's agents in the cookbook's own rollouts."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, override

import aiohttp
import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym import Transcript
from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.errors import SandboxStartError, UsageError
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.gateway.format_agent import FormatAgent
from tests.helpers.policies.token_policies import RENDERER, message, scripted
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.tinker, pytest.mark.usefixtures("nothing_left")]

SOLVED = {"solved_when": {"/srv/answer": "done"}}
KWARGS = {"base_url": "{gateway_url}"}
AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs=KWARGS)
COMPLETE = message(None, complete=True)


class TalkativeAgent(FormatAgent):
    """Ask another model for a title before and after the work, as shipped agents do, and repeat the first request."""

    _has_repeated = False

    @override
    async def _ask(self, client: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
        answer = await super()._ask(client, body)
        if self._has_repeated:
            return answer
        self._has_repeated = True
        return await super()._ask(client, body)

    @override
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        await self._title()
        await super().run(instruction, environment, context)
        await self._title()

    async def _title(self) -> None:
        body = {"model": "small", "messages": [{"role": "user", "content": "a title, please"}]}
        async with aiohttp.ClientSession(raise_for_status=True) as client, client.post(self._url, json=body):
            pass


def make_builder(task_dir: Path, model_dir: str, *, sandbox: str = FAKE, agent: Any = AGENT, **settings: Any) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    options = settings.pop("options", SOLVED if sandbox == FAKE else {})
    where = {"task_dir": task_dir, "sandbox": sandbox, "sandbox_options": options}
    template = GroupTemplate(
        env=AgentEpisodeConfig.model_validate({**where, "agent": agent, **settings}),
        model_name=model_dir,
        renderer_name=RENDERER,
        group_size=2,
        max_tokens=500,
        transcripts_dir=task_dir.parent / "transcripts",
    )
    return HarborSingleTaskEnvGroupBuilder(template, label="train/batch_0000/group_0")


def transcripts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "transcripts").rglob("episode_*.json"))]


async def run_group(builder: Any, policy: Any) -> Any:
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from harbor_gym.adapters.tinker import RetryThenMask

    return await do_group_rollout(builder, policy, strategy=RetryThenMask(max_retries=0))


def require_one_datum_each(group: Any, *, turns: int) -> None:
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    assert group.get_total_rewards() == [1.0, 1.0]
    for trajectory in group.trajectories_G:
        assert len(trajectory.transitions) == turns
        assert len(trajectory_to_data(trajectory, 1.0)) == 1
        assert trajectory.stop_reason == "completed"


@pytest.mark.local
@pytest.mark.slow
async def test_terminus_2(model_dir: str, tmp_path: Path) -> None:
    builder = make_builder(write_task(tmp_path / "task"), model_dir, sandbox="local", agent="terminus-2", max_turns=9)
    require_one_datum_each(await run_group(builder, scripted(message(DONE), COMPLETE, COMPLETE)), turns=3)


async def test_side_calls_and_repeated_answers_are_not_trained(model_dir: str, tmp_path: Path) -> None:
    agent = AgentConfig(import_path=f"{__name__}:TalkativeAgent", kwargs=KWARGS)
    builder = pickle.loads(pickle.dumps(make_builder(write_task(tmp_path / "task"), model_dir, agent=agent)))
    group = await run_group(builder, scripted(message(DONE), COMPLETE))
    require_one_datum_each(group, turns=2)
    for trajectory in group.trajectories_G:
        assert trajectory.transitions[-1].episode_done
        text = byte_level_tokenizer().decode(trajectory.transitions[0].ob.to_ints())
        assert "a title, please" not in text
    kept = transcripts(tmp_path)
    assert [document["episode"] for document in kept] == [1, 2]
    for document in kept:
        assert [turn["action"] for turn in document["turns"]] == [message(DONE), COMPLETE]
        assert "a title, please" not in document["turns"][0]["observation"]
        assert (document["reward"], document["rewards"]) == (1.0, {"reward": 1.0})
        assert (document["end_reason"], document["error"], document["task"]) == ("completed", None, "task")


async def test_a_lost_sandbox_raises_and_a_closed_one_leaves_nothing(model_dir: str, tmp_path: Path) -> None:
    builder = make_builder(write_task(tmp_path / "task"), model_dir, options={"fail": {"start": 1}})
    env, other = await builder.make_envs()
    with pytest.raises(SandboxStartError):
        await env.initial_observation()
    assert isinstance(env.error, SandboxStartError)
    (kept,) = transcripts(tmp_path)
    assert (kept["reward"], kept["end_reason"], kept["turns"]) == (None, "infrastructure_error", [])
    assert kept["error"].startswith("SandboxStartError")
    with pytest.raises(UsageError):
        await other.step([1])
    await builder.cleanup()
    waiting, _ = await (builder := make_builder(tmp_path / "task", model_dir)).make_envs()
    await waiting.initial_observation()
    await builder.cleanup()
    await waiting.close()


def count_turns(transcript: Transcript) -> float:
    first, last = transcript.turns
    assert "Write the word done" in first.observation
    assert "Write the word done" not in last.observation, "an observation is what is new"
    assert "echo done" in first.action
    assert (last.info.get("end_reason"), last.reward) == ("completed", 1.0)
    return len(transcript.turns)


async def test_a_reward_over_the_trajectory_is_added(model_dir: str, tmp_path: Path) -> None:
    builder = make_builder(write_task(tmp_path / "task"), model_dir)
    builder.template = replace(builder.template, trajectory_reward=f"{__name__}:count_turns")
    group = await run_group(builder, scripted(message(DONE), COMPLETE))
    assert group.get_total_rewards() == [3.0, 3.0]
    builder.template = replace(builder.template, make_env="harbor_gym:AsyncTerminalGymEnv")
    with pytest.raises(UsageError, match="make_env is for our own loop"):
        await builder.make_envs()
