"""The environment in tokens: the context is reckoned to the token, and no reward is lost at any kind of end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason
from harbor_gym.errors import ContextOverflowError, SandboxLostError, TaskError, UsageError
from harbor_gym.formats import prompts
from harbor_gym.rollout import Sample, Sampler, run_episode
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import ActionFormat, ChatMessage
from tests.helpers.chats.character_codec import ASK, END, CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

MAX_TOKENS = 100


def token_env(task_dir: Path, *, max_context_tokens: int | None = None, **settings: Any) -> TokenTerminalEnv:
    env = AsyncTerminalGymEnv(fake_config(task_dir, **settings))
    return TokenTerminalEnv(env, CharacterCodec(), max_tokens=MAX_TOKENS, max_context_tokens=max_context_tokens)


def tokens(text: str) -> list[int]:
    return [*map(ord, text), END]


def sampler(*texts: str, prompts: list[list[int]] | None = None) -> Sampler:
    """Return a policy that answers with each text in turn, and notes its prompts."""
    answers = iter(texts)

    async def sample(prompt: Sequence[int]) -> Sample:
        if prompts is not None:
            prompts.append(list(prompt))
        return Sample(tokens(next(answers)))

    return sample


async def first_prompt(task_dir: Path) -> list[int]:
    env = token_env(task_dir)
    step = await env.reset()
    await env.close()
    return step.observation


@pytest.mark.parametrize("missing", [0, 1])
async def test_the_first_prompt_must_leave_room_for_a_full_answer(tmp_path: Path, missing: int) -> None:
    room = len(await first_prompt(tmp_path / "task")) + MAX_TOKENS
    env = token_env(tmp_path / "task", max_context_tokens=room - missing, rewards=0.5)
    step = await env.reset()
    await env.close()
    assert step.done is bool(missing)
    if missing:
        assert (step.observation, step.reward) == ([], 0.5), "what was there already is graded"
        assert step.info.get("end_reason") is EndReason.CONTEXT_OVERFLOW
        assert step.info.get("truncated") is True
    else:
        assert (len(step.observation), step.reward) == (room - MAX_TOKENS, 0.0)


@pytest.mark.parametrize("missing", [0, 1])
async def test_every_next_prompt_must_leave_room_for_a_full_answer(tmp_path: Path, missing: int) -> None:
    action = tokens(message("echo hello\n"))
    env = token_env(tmp_path / "task")
    await env.reset()
    following = (await env.step(action)).observation
    await env.close()
    room = len(following) + MAX_TOKENS
    env = token_env(tmp_path / "task", max_context_tokens=room - missing, rewards=0.5)
    await env.reset()
    step = await env.step(action)
    assert step.done is bool(missing)
    assert step.observation == ([] if missing else following)
    assert step.reward == (0.5 if missing else 0.0)
    assert step.info.get("exit_code") == 0, "what the action did stands beside why it was the last"
    assert "time/step_sec" in step.info["metrics"]
    if missing:
        assert step.info.get("end_reason") is EndReason.CONTEXT_OVERFLOW
        assert "time/verifier_sec" in step.info["metrics"]
        assert "hello" in env.transcript.final_observation
        with pytest.raises(UsageError, match="over"):
            await env.step(action)
    assert [turn.action for turn in env.transcript.turns] == [message("echo hello\n")]
    await env.close()


async def test_an_overflow_behind_a_finished_step_pays_for_both(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task", steps=2, rewards=0.5, step_rewards=True)
    await env.reset()
    step = await env.step(tokens(COMPLETE))
    assert (step.reward, step.done) == (0.25, False)
    room = len(step.observation) + MAX_TOKENS
    await env.close()
    env = token_env(tmp_path / "task", max_context_tokens=room - 1, rewards=0.5, step_rewards=True)
    rollout = await run_episode(env, sampler(COMPLETE))
    assert [transition.reward for transition in rollout.transitions] == [0.5]
    assert (rollout.reward, rollout.end_reason) == (0.5, EndReason.CONTEXT_OVERFLOW)


async def test_a_prompt_goes_on_from_what_was_sampled_and_the_transcript_with_it(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task")
    assert env.transcript.turns == []
    first = (await env.reset()).observation
    action = tokens(message("echo one\n"))
    second = (await env.step(action)).observation
    shown = "".join(map(chr, second[len(first) + len(action) : -2]))
    assert second == [*first, *action, *map(ord, shown), END, ASK]
    assert "one" in shown
    last = await env.step(tokens(COMPLETE))
    assert (last.observation, last.reward, last.done) == ([], 1.0, True)
    turns = env.transcript.turns
    assert [turn.action for turn in turns] == [message("echo one\n"), COMPLETE]
    assert tokens(turns[0].observation) == first[-len(turns[0].observation) - 2 : -1]
    assert turns[1].observation == shown
    lengths = [(len(first), len(action)), (len(second), len(COMPLETE) + 1)]
    assert [(turn.prompt_tokens, turn.sampled_tokens) for turn in turns] == lengths
    assert [turn.reward for turn in turns] == [0.0, 1.0]
    assert turns[1].info.get("end_reason") is EndReason.COMPLETED
    assert env.transcript.final_observation
    await env.reset()
    assert env.transcript.turns == []
    await env.close()


async def test_the_first_prompt_is_the_formats_and_the_tasks(tmp_path: Path) -> None:
    received: list[ChatMessage] = []

    class Listening(CharacterCodec):
        @override
        def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
            received.extend(messages)
            return super().prompt(messages)

    config = fake_config(tmp_path / "task", action_format=ActionFormat.BASH_TOOL)
    env = TokenTerminalEnv(AsyncTerminalGymEnv(config), Listening(), max_tokens=MAX_TOKENS)
    step = await env.reset()
    screen, _ = await env.env.reset()
    await env.close()
    first = prompts.first_message("Do as you like.\n", screen)
    assert received == [
        {"role": "system", "content": prompts.system_prompt(ActionFormat.BASH_TOOL)},
        {"role": "user", "content": first},
    ]
    assert screen in first
    assert (step.info.get("task"), step.info["turn"]) == ("harbor-gym/tiny", 0)


async def test_a_system_prompt_of_ones_own_is_in_the_prompt_and_the_transcript(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task", system_prompt="Answer with one JSON object.")
    step = await env.reset()
    await env.close()
    assert "".join(map(chr, step.observation)).startswith("Answer with one JSON object.\0Task:")
    assert env.transcript.system_prompt == "Answer with one JSON object."


async def test_a_message_that_was_cut_is_not_carried_out(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task", solved_when={"/srv/answer": "done"})
    await env.reset()
    step = await env.step(tokens(message("echo done > /srv/answer\n"))[:-1], stop_reason="length")
    await env.close()
    assert (step.observation, step.reward, step.done) == ([], 0.0, True)
    assert step.info.get("end_reason") is EndReason.MAX_TOKENS
    assert [turn.action for turn in env.transcript.turns] == [message("echo done > /srv/answer\n")]


async def test_a_step_before_reset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="before reset"):
        await token_env(tmp_path / "task").step([END])


# -- rollouts ----------------------------------------------------------------------------------------------------------


async def test_a_rollout_that_overflows_at_once_has_a_reward_and_no_transition(tmp_path: Path) -> None:
    rollout = await run_episode(token_env(tmp_path / "task", max_context_tokens=MAX_TOKENS), sampler())
    assert (rollout.transitions, rollout.reward, rollout.error) == ([], 1.0, None)
    assert rollout.rewards == {"reward": 1.0}
    assert rollout.end_reason is EndReason.CONTEXT_OVERFLOW


async def test_a_rollout_holds_each_prompt_and_sample_and_the_sum_of_rewards(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task", steps=2, rewards=0.5, step_rewards=True)
    asked: list[list[int]] = []
    rollout = await run_episode(env, sampler(message("true\n"), COMPLETE, COMPLETE, prompts=asked))
    assert [list(transition.prompt) for transition in rollout.transitions] == asked
    assert [transition.reward for transition in rollout.transitions] == [0.0, 0.25, 0.25]
    assert (rollout.rewards, rollout.step_rewards) == ({"reward": 0.5}, ({"reward": 0.5},) * 2)
    assert (rollout.reward, rollout.end_reason, rollout.error) == (0.5, EndReason.COMPLETED, None)
    first, second, third = rollout.transitions
    assert list(second.prompt[: len(first.prompt)]) == list(first.prompt)
    assert list(third.sample.tokens) == tokens(COMPLETE)
    assert [transition.info["turn"] for transition in rollout.transitions] == [1, 2, 3]
    with pytest.raises(UsageError, match="closed"):
        await env.reset()


async def test_a_rollout_passes_on_why_sampling_stopped(tmp_path: Path) -> None:
    async def cut(prompt: Sequence[int]) -> Sample:
        return Sample(tokens("never said"), stop_reason="length")

    rollout = await run_episode(token_env(tmp_path / "task"), cut)
    assert (rollout.end_reason, rollout.reward) == (EndReason.MAX_TOKENS, 1.0)


async def test_a_lost_sandbox_leaves_transitions_and_no_reward(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task", fail={"exec": 2})
    rollout = await run_episode(env, sampler(message("true\n"), message("true\n")))
    assert isinstance(rollout.error, SandboxLostError)
    assert (rollout.reward, rollout.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert len(rollout.transitions) == 1
    with pytest.raises(UsageError, match="closed"):
        await env.reset()


async def test_what_is_no_fault_of_the_infrastructure_raises_and_closes(tmp_path: Path) -> None:
    env = token_env(tmp_path / "task")
    (tmp_path / "task/task.toml").unlink()
    with pytest.raises(TaskError):
        await run_episode(env, sampler())
    with pytest.raises(UsageError, match="closed"):
        await env.reset()


async def test_a_cut_after_three_turns_is_the_last_ones(tmp_path: Path) -> None:
    texts = [message("true\n"), "no json", message("true\n")]
    env, answers = token_env(tmp_path / "task", rewards=0.5), iter(texts)

    async def sample(prompt: Sequence[int]) -> Sample:
        if (text := next(answers, None)) is None:
            raise ContextOverflowError("the prompt does not fit")
        return Sample(tokens(text))

    rollout = await run_episode(env, sample)
    assert [item.reward for item in rollout.transitions] == [0.0, 0.0, 0.5]
    assert [item.info.get("end_reason") for item in rollout.transitions] == [None, None, EndReason.CONTEXT_OVERFLOW]
    assert [item.info["turn"] for item in rollout.transitions] == [1, 2, 3]
    turns = env.transcript.turns
    assert [(turn.reward, turn.info.get("end_reason"), turn.action) for turn in turns] == [
        (0.0, None, texts[0]),
        (0.0, None, texts[1]),
        (0.5, EndReason.CONTEXT_OVERFLOW, texts[2]),
    ]
    assert [bool(turn.info.get("parse_error")) for turn in turns] == [False, True, False]
    assert [bool(item.info.get("parse_error")) for item in rollout.transitions] == [False, True, False]
