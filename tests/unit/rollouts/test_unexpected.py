"""An exception that is not ours, between the policy's first action and the reward, loses that episode and no more."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, override

import pytest
from harbor.models.trial.config import AgentConfig, TaskConfig

from harbor_gym import AsyncTerminalGymEnv, EndReason, Sample, TokenTerminalEnv, outcomes
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.errors import UnexpectedError
from harbor_gym.evaluation import Player, evaluate
from harbor_gym.gateway import SessionLimits
from harbor_gym.outcomes import classify
from harbor_gym.rollout import run_episode, run_with_retries
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.gateway.clients import ThinkingCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config, message

NET = 8
"""The exception in a row that ends the run."""


@pytest.fixture(autouse=True)
def _from_zero() -> Iterator[None]:
    outcomes.note_reward()
    yield
    outcomes.note_reward()


def odd(rewards: Mapping[str, float]) -> float:
    raise KeyError("no such key")


ODD = f"{__name__}:odd"


async def complete(prompt: Sequence[int]) -> Sample:
    return Sample([*map(ord, COMPLETE), END])


class NarrowCodec(CharacterCodec):
    """A codec that can't write what a sandbox prints."""

    @override
    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        raise UnicodeEncodeError("utf-8", message, 0, 1, "surrogates not allowed")


def token_env(task: Path, codec: CharacterCodec | None = None, **settings: Any) -> TokenTerminalEnv:
    return TokenTerminalEnv(
        AsyncTerminalGymEnv(fake_config(task, **settings)), codec or CharacterCodec(), max_tokens=99
    )


async def test_our_own_loop_loses_the_episode_and_says_so_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = await run_episode(token_env(tmp_path / "task", reward_function=ODD), complete)
    assert (rollout.reward, rollout.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert isinstance(rollout.error, UnexpectedError)
    assert isinstance(rollout.error.__cause__, KeyError)
    row = classify(rollout.error)
    assert (row.failure_kind, row.is_retryable, row.is_masked) == ("unexpected", True, True)
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "no such key" in line.getMessage()
    assert line.exc_info is not None


async def test_a_codec_that_can_not_write_an_observation_loses_the_episode(tmp_path: Path) -> None:
    async def echo(prompt: Sequence[int]) -> Sample:
        return Sample([*map(ord, message("echo x\n")), END])

    rollout = await run_episode(token_env(tmp_path / "task", NarrowCodec()), echo)
    assert isinstance(rollout.error, UnexpectedError)


async def test_an_exception_before_the_first_action_passes(tmp_path: Path) -> None:
    class Mute(CharacterCodec):
        @override
        def prompt(self, messages: Any) -> list[int]:
            raise KeyError("no template")

    with pytest.raises(KeyError):
        await run_episode(token_env(tmp_path / "task", Mute()), complete)


async def test_what_repeats_without_a_reward_ends_the_run(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", reward_function=ODD)
    player = Player(CharacterCodec(), complete, max_tokens=99, max_retries=0)
    results = await evaluate([config], player, episodes=NET - 1)
    assert [result.end_reason for result in results] == [EndReason.INFRASTRUCTURE_ERROR] * (NET - 1)
    with pytest.raises(KeyError):
        await evaluate([config], player, episodes=1)


async def test_a_reward_in_between_begins_the_count_anew(tmp_path: Path) -> None:
    for _ in range(2):
        for _ in range(NET - 1):
            rollout = await run_episode(token_env(tmp_path / "odd", reward_function=ODD), complete)
            assert isinstance(rollout.error, UnexpectedError)
        assert (await run_episode(token_env(tmp_path / "even"), complete)).reward == 1.0


async def test_it_is_retried(tmp_path: Path) -> None:
    made = [token_env(tmp_path / "even"), token_env(tmp_path / "odd", reward_function=ODD)]
    rollout = await run_with_retries(made.pop, complete)
    assert rollout.reward == 1.0
    assert [type(error) for error in rollout.failed_attempts] == [UnexpectedError]


async def test_a_trial_that_ends_by_one_is_lost_alone(tmp_path: Path) -> None:
    task = fake_config(tmp_path / "task").task_dir
    lost, *_ = await interface("FormatAgent", reward_function=ODD).run([TaskConfig(path=task)] * 2)
    assert isinstance(lost.error, UnexpectedError)
    assert (lost.reward, lost.task_name, len(lost.segments)) == (None, "task", 1)
    graded = await interface("FormatAgent").run_one(task)
    assert (graded.reward, graded.error) == (1.0, None)


async def test_a_trial_that_fails_after_its_verdict_has_its_reward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graded = await interface("UnwritableAgent").run_one(fake_config(tmp_path / "task").task_dir)
    assert (graded.reward, graded.error) == (1.0, None)
    assert any("after the verdict" in line for line in caplog.messages)


def interface(agent: str, **settings: Any) -> RolloutInterface:
    answer = "<think>\nI plan.\n</think>\n\n" + COMPLETE

    async def sample(prompt: Sequence[int]) -> Sample:
        return Sample([*map(ord, answer), END], [-0.25] * (len(answer) + 1))

    config = AgentConfig(
        import_path=f"tests.helpers.gateway.format_agent:{agent}", kwargs={"base_url": "{gateway_url}"}
    )
    limits = SessionLimits(max_answer_tokens=5000)
    return RolloutInterface(
        {"agent": config, "sandbox": FAKE, **settings}, sample, ThinkingCodec(), limits=limits, max_retries=0
    )
