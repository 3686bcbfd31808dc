"""Turn a finished Harbor trial into a rollout: its reward, its end reason, and its tokens."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harbor.models.agent.context import AgentContext
from harbor.models.agent.rollout_detail import RolloutDetail
from harbor.models.trial.result import TrialResult

from harbor_gym.episode.failures import agent_failure, denied_verdict, grading_failure, start_failure
from harbor_gym.episode.grading.account import RewardAccount
from harbor_gym.episode.grading.rewards import RewardFunction
from harbor_gym.errors import AgentFailedError, HarborGymError, VerifierError
from harbor_gym.formats.tool_text import tool_schema
from harbor_gym.gateway import CallKind, Session
from harbor_gym.outcomes import note_reward
from harbor_gym.sequences import merge
from harbor_gym.types import EndReason, EpisodeInfo, Rollout, Sample, TokenSequence, TrainSegments, Transcript, Turn

type Tokens = TrainSegments | Literal["details"]
"""The source of an episode's tokens: the session's record (``main``, ``all``), or the agent's report (``details``)."""

_AGENT_TIMEOUT = "AgentTimeoutError"


@dataclass(frozen=True)
class Grading:
    """The grading of a trial."""

    rewards: Mapping[str, float]
    """The verifier's rewards by key."""

    breakage: str | None = None
    """How the policy broke the sandbox so that there is no verdict, which pays 0; else None."""

    missing_protections: Sequence[str] = ()
    """As ``Rollout.missing_protections``."""

    is_agent_inside: bool = False
    """Whether the agent is a program in the sandbox, which the policy can end, as it can cut its requests and end its
    tunnel: what ends while the gateway answers, and a verifier gives a verdict, is the policy's doing."""

    service_output: Mapping[str, str] = field(default_factory=dict[str, str])
    """As ``EpisodeInfo``'s."""

    may_lack_requests: bool = False
    """Whether requests of the agent may have been refused before they reached the session."""


def finished_rollout(
    session: Session,
    result: TrialResult,
    grading: Grading,
    account: RewardAccount,
    *,
    task_name: str,
    started: float,
    tokens: Tokens,
) -> Rollout:
    """Return the rollout of a finished trial and its agent's session.

    Args:
        session: The session, closed.
        result: The trial's result.
        grading: The trial's grading.
        account: Computes the reward of a verdict.
        task_name: Name of the task's directory.
        started: Start time, by the monotonic clock.
        tokens: The source of the episode's tokens.

    Raises:
        HarborGymError: An error that no retry can repair.
    """
    reward = session.error or _reward_of(session, result, grading, account.choose)
    segments = _segments(session, result, tokens)
    if isinstance(segments, AgentFailedError):
        reward = reward if isinstance(reward, HarborGymError) else segments
        segments = []
    error = reward if isinstance(reward, HarborGymError) else None
    if error is not None and not error.is_infrastructure:
        raise error
    end_reason = EndReason.INFRASTRUCTURE_ERROR if error is not None else _end_reason(session, result, grading)
    score, metrics = None if isinstance(reward, HarborGymError) else reward, _metrics(session, started)
    if score is not None and account.is_capped(end_reason):
        score, metrics["zero_reward_on_limit"] = account.settle(grading.rewards, end_reason), 1.0
    if score is not None:
        note_reward()
    turns = with_outcome(session.turns, end_reason, score, grading, result)
    return Rollout(
        task_name=task_name,
        trial_name=result.trial_name,
        reward=score,
        end_reason=end_reason,
        error=error,
        segments=segments,
        transcript=_transcript(session, turns, metrics),
        metrics=metrics,
        rewards={} if error is not None else grading.rewards,
        step_rewards=[] if error is not None else step_rewards_of(result),
        missing_protections=grading.missing_protections,
    )


def lost_rollout(session: Session, error: HarborGymError, *, task_name: str, started: float, tokens: Tokens) -> Rollout:
    """Return the rollout of a trial without a result.

    Args:
        session: The session, closed.
        error: The error that ended the trial.
        task_name: Name of the task's directory.
        started: Start time, by the monotonic clock.
        tokens: The source of the episode's tokens.

    Raises:
        HarborGymError: An error that no retry can repair.
    """
    error = session.error or error
    if not error.is_infrastructure:
        raise error
    segments, metrics = _of_session(session, tokens), _metrics(session, started)
    return Rollout.lost(
        error,
        task_name=task_name,
        trial_name=session.name,
        segments=segments,
        transcript=_transcript(session, session.turns, metrics),
        metrics=metrics,
    )


def _reward_of(
    session: Session, result: TrialResult, grading: Grading, choose: RewardFunction
) -> float | HarborGymError:
    """Return the reward of a trial, or the error that explains why there is none."""
    if grading.breakage is None and rewards_of(result):
        is_over = session.end_reason is not None
        is_inside = grading.is_agent_inside
        was_cut = session.has_failed if is_inside else session.is_cut
        is_cut = not is_over and (was_cut or not session.calls or grading.may_lack_requests)
        if (denied := denied_verdict(result, is_cut=is_cut, is_refused=is_over, is_inside=is_inside)) is not None:
            return denied
    if not grading.rewards:
        return _failure(result) if grading.breakage is None else 0.0
    try:
        return choose(grading.rewards)
    except VerifierError as exc:
        return exc if grading.breakage is None else 0.0


def _segments(session: Session, result: TrialResult, tokens: Tokens) -> list[TokenSequence] | AgentFailedError:
    if tokens != "details":
        return _of_session(session, tokens)
    try:
        return details_sequences(result)
    except AgentFailedError as exc:
        return exc


def _of_session(session: Session, tokens: Tokens) -> list[TokenSequence]:
    return list(session.used_segments if tokens == "all" else session.trained_segments)


def _end_reason(session: Session, result: TrialResult, grading: Grading) -> EndReason:
    if grading.breakage is not None:
        return EndReason.SANDBOX_BROKEN
    if session.end_reason is not None:
        return session.end_reason
    last = session.calls[-1] if session.calls else None
    if last is not None and last.stop_reason == "length" and session.kinds[last.index] is CallKind.MAIN:
        return EndReason.MAX_TOKENS
    return end_reason_of(result)


def _metrics(session: Session, started: float) -> dict[str, float]:
    turns = float(sum(call.is_policy_model for call in session.calls))
    return {**session.metrics, "turns": turns, "time/total_sec": time.monotonic() - started}


def _transcript(session: Session, turns: list[Turn], metrics: Mapping[str, float]) -> Transcript:
    opening = session.opening
    system = [message.content for message in opening.messages if message.role == "system"] if opening else []
    return Transcript(
        turns,
        system_prompt="\n\n".join(system),
        tools=[tool_schema(tool) for tool in opening.tools] if opening else [],
        started=time.time() - metrics["time/total_sec"],
    )


def rewards_of(result: TrialResult) -> dict[str, float]:
    """Return the rewards that a trial's verifier wrote, by key; empty without a verdict."""
    return _floats(result.verifier_result.rewards if result.verifier_result is not None else None)


def step_rewards_of(result: TrialResult) -> list[dict[str, float]]:
    """Return the verifier's rewards of each step; an empty list for a task without steps."""
    verdicts = [step.verifier_result for step in result.step_results or ()]
    return [_floats(verdict.rewards if verdict is not None else None) for verdict in verdicts]


def end_reason_of(result: TrialResult) -> EndReason:
    """Return why the agent of a verified trial ended, as far as Harbor recorded it."""
    infos = [step.exception_info for step in result.step_results or ()] or [result.exception_info]
    timed_out = any(info is not None and info.exception_type == _AGENT_TIMEOUT for info in infos)
    return EndReason.TIME_LIMIT if timed_out else EndReason.COMPLETED


def with_outcome(
    turns: Sequence[Turn], end_reason: EndReason, reward: float | None, grading: Grading, result: TrialResult
) -> list[Turn]:
    """Return the turns of a finished trial, with its outcome in the last one.

    Args:
        turns: The session's turns; may be empty.
        end_reason: Why the trial ended.
        reward: The reward; None without a verdict.
        grading: The trial's grading.
        result: The trial's result, with the rewards of its steps.
    """
    if not turns:
        return []
    info: EpisodeInfo = {**turns[-1].info, "end_reason": end_reason}
    if grading.rewards:
        info = {**info, "rewards": dict(grading.rewards)}
    if steps := step_rewards_of(result):
        info["step_rewards"] = tuple(steps)
    if grading.breakage is not None:
        info["breakage"] = grading.breakage
    if grading.service_output:
        info["service_output"] = dict(grading.service_output)
    return [*turns[:-1], replace(turns[-1], info=info, reward=reward or 0.0)]


def details_sequences(result: TrialResult) -> list[TokenSequence]:
    """Return the training sequences that a trial's agent reported as ``rollout_details``.

    Raises:
        AgentFailedError: The agent reported no tokens, or not as many samples as prompts.
    """
    turns = [turn for detail in _details(result) for turn in _turns(detail)]
    if not turns:
        raise AgentFailedError(
            f"the agent of trial {result.trial_name!r} reported no tokens: its endpoint must return prompt_token_ids "
            "and token_ids (vLLM: return_token_ids), and the agent must collect rollout_details"
        )
    return merge(turns)


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
    # The lists are not keyed by turn: if one is missing, the others can't be assigned.
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
    failure = grading_failure(result, info)  # returns an error of this package unchanged
    return failure if info is None or info.exception_type == type(failure).__name__ else agent_failure(result, info)
