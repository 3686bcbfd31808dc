"""What a finished Harbor trial means: its reward, why it ended, and the tokens that its agent reports."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harbor.models.agent.context import AgentContext
from harbor.models.agent.rollout_detail import RolloutDetail
from harbor.models.trial.result import ExceptionInfo, TrialResult

from harbor_gym.episode.failures import grading_failure, start_failure
from harbor_gym.episode.grading.rewards import RewardFunction
from harbor_gym.errors import AgentFailedError, HarborGymError, VerifierError
from harbor_gym.gateway import Segment
from harbor_gym.sequences import merge
from harbor_gym.types import EndReason, EpisodeInfo, Sample, TokenSequence, Turn

_AGENT_TIMEOUT = "AgentTimeoutError"


def reward_of(
    result: TrialResult, rewards: Mapping[str, float], choose: RewardFunction, *, breakage: str | None
) -> float | HarborGymError:
    """Return the reward of a trial, or why there is none.

    Args:
        result: The finished trial.
        rewards: The task's rewards.
        choose: Makes the scalar of them.
        breakage: How the policy broke the sandbox so that there is no verdict: that pays 0.
    """
    if not rewards:
        return _failure(result) if breakage is None else 0.0
    try:
        return choose(rewards)
    except VerifierError as exc:
        return exc


def rewards_of(result: TrialResult) -> dict[str, float]:
    """Return what the verifier of a trial wrote, by key; empty without a verdict."""
    return _floats(result.verifier_result.rewards if result.verifier_result is not None else None)


def step_rewards_of(result: TrialResult) -> list[dict[str, float]]:
    """Return what the verifier of a trial wrote of each step; none of a task without steps."""
    verdicts = [step.verifier_result for step in result.step_results or ()]
    return [_floats(verdict.rewards if verdict is not None else None) for verdict in verdicts]


def end_reason_of(result: TrialResult) -> EndReason:
    """Return why the agent of a verified trial ended, as far as Harbor recorded it."""
    infos = [step.exception_info for step in result.step_results or ()] or [result.exception_info]
    timed_out = any(info is not None and info.exception_type == _AGENT_TIMEOUT for info in infos)
    return EndReason.TIME_LIMIT if timed_out else EndReason.COMPLETED


def with_outcome(
    turns: Sequence[Turn],
    end_reason: EndReason,
    reward: float | None,
    rewards: Mapping[str, float],
    breakage: str | None,
    result: TrialResult,
) -> list[Turn]:
    """Return the turns of a finished trial with its outcome in the last; none where there are none.

    Args:
        turns: The session's.
        end_reason: Why the trial ended.
        reward: Its reward; None where there is no verdict.
        rewards: Every key of the verifier's reward.
        breakage: How the policy broke the sandbox, if it did.
        result: The trial, for what each step's verifier wrote.
    """
    if not turns:
        return []
    info: EpisodeInfo = {**turns[-1].info, "end_reason": end_reason}
    if rewards:
        info["rewards"] = dict(rewards)
    if steps := step_rewards_of(result):
        info["step_rewards"] = tuple(steps)
    if breakage is not None:
        info["breakage"] = breakage
    return [*turns[:-1], replace(turns[-1], info=info, reward=reward or 0.0)]


def details_sequences(result: TrialResult) -> list[TokenSequence]:
    """Return the training sequences that a trial's agent reported as ``rollout_details``.

    Raises:
        AgentFailedError: It reported none, or prompts and samples that do not belong together.
    """
    turns = [turn for detail in _details(result) for turn in _turns(detail)]
    if not turns:
        raise AgentFailedError(
            f"the agent of trial {result.trial_name!r} reported no tokens: its endpoint must return prompt_token_ids "
            "and token_ids (vLLM: return_token_ids), and the agent must collect rollout_details"
        )
    return merge(turns)


def segment_sequence(segment: Segment) -> TokenSequence:
    """Return a session's segment as a sequence."""
    length = segment.prompt_length
    return TokenSequence(
        list(segment.tokens[:length]),
        list(segment.tokens[length:]),
        list(segment.mask[length:]),
        list(segment.logprobs[length:]),
    )


def _floats(rewards: Mapping[str, float | int] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (rewards or {}).items()}


def _details(result: TrialResult) -> Iterator[RolloutDetail]:
    contexts: list[AgentContext | None] = [result.agent_result]
    contexts += [step.agent_result for step in result.step_results or ()]
    for context in contexts:
        if context is not None:
            yield from context.rollout_details or ()


def _turns(detail: RolloutDetail) -> Iterator[tuple[list[int], Sample]]:
    prompts, samples = detail.get("prompt_token_ids") or [], detail.get("completion_token_ids") or []
    logprobs = detail.get("logprobs") or []
    if len(prompts) != len(samples):
        raise AgentFailedError(f"the agent reported {len(prompts)} prompts and {len(samples)} samples")
    # The lists are not keyed by turn: with one missing, nothing identifies the others.
    aligned = logprobs if len(logprobs) == len(samples) else [None] * len(samples)
    for prompt, tokens, values in zip(prompts, samples, aligned, strict=True):
        fits = values is not None and len(values) == len(tokens)
        yield prompt, Sample(tokens, values if fits else [math.nan] * len(tokens))


def _failure(result: TrialResult) -> HarborGymError:
    """Return the error of a trial without a verdict."""
    steps = result.step_results or ()
    info = result.exception_info or next((step.exception_info for step in steps[::-1] if step.exception_info), None)
    if result.verifier is not None or any(step.verifier is not None for step in steps):
        return grading_failure(result, info)
    if result.agent_execution is None and not any(step.agent_execution is not None for step in steps):
        return start_failure(result)
    failure = grading_failure(result, info)  # an error of our tree comes back as it was
    return failure if info is None or _is_own(failure, info) else _agent_failure(result, info)


def _is_own(failure: HarborGymError, info: ExceptionInfo) -> bool:
    return info.exception_type == type(failure).__name__


def _agent_failure(result: TrialResult, info: ExceptionInfo) -> AgentFailedError:
    message = info.exception_message.strip().splitlines() or ["no message"]
    return AgentFailedError(f"the agent of trial {result.trial_name!r} failed: {info.exception_type}: {message[-1]}")
