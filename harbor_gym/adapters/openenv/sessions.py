"""Sessions for TRL's ``HarnessRolloutWorker``: the episode samples in its own loop, and returns the tokens."""

import concurrent.futures
import logging
import threading
from collections.abc import Mapping
from typing import Any, cast, override

from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness.rollout import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult
from openenv.core.harness.training import TrainingTrace

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.openenv.sources import LocalTasks, ServedTasks
from harbor_gym.adapters.openenv.traces import training_trace
from harbor_gym.codecs import HFCodec
from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.rollout import end_word, run_with_retries
from harbor_gym.samplers import CompletionsSampler
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import ChatCodec, Rollout

logger = logging.getLogger(__name__)


class _Losses:
    """Counts the episodes lost in a row. Thread-safe."""

    def __init__(self, limit: int | None) -> None:
        self._limit, self._lock, self._in_a_row = limit, threading.Lock(), 0

    def check(self, rollout: Rollout) -> None:
        """Count an episode.

        Raises:
            UsageError: This episode and too many before it were lost.
        """
        with self._lock:
            self._in_a_row = 0 if rollout.error is None else self._in_a_row + 1
            if rollout.error is None or self._limit is None or self._in_a_row < self._limit:
                return
        error = rollout.error
        raise UsageError(
            f"{self._in_a_row} episodes in a row were lost (max_lost_in_a_row), the last as "
            f"{end_word(rollout)}: {error}"
        ) from error


class HarborTerminalSession(ResourceSession):
    """One episode, which runs from the constructor on. An OpenEnv ``TrainableSession`` without tools.

    A lost episode has no reward and no trained token. :meth:`fetch_training_trace` raises an error that no retry
    repairs (a wrong task, a bug, every episode lost): there it stops TRL's training, which skips the episode elsewhere.

    Args:
        running: The episode on the portal's loop.
        losses: The factory's count.
    """

    def __init__(self, running: concurrent.futures.Future[Rollout], losses: _Losses) -> None:
        self._running, self._losses = running, losses
        self._played: Rollout | None = None
        self._error: Exception | None = None

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the episode and its verification.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as the episode takes.

        Returns:
            0; 1 for an episode without a verdict, because it was lost or the session was closed.

        Raises:
            TimeoutError: The episode still runs.
        """
        if self._played is None and self._error is None:
            try:
                self._played = self._running.result(timeout_s)
                self._losses.check(self._played)
            except concurrent.futures.CancelledError:
                logger.debug("the session was closed before its episode ended")
            except Exception as exc:
                if not self._running.done():
                    raise TimeoutError(f"the episode still runs after {timeout_s} s") from exc
                self._error = exc  # raised again by fetch_training_trace: here TRL would skip it
        return 0 if self._error is None and self._reward is not None else 1

    def fetch_training_trace(self) -> TrainingTrace:
        """Return the episode's tokens; none while it still runs.

        Raises:
            ValueError: The episode ended with an error that no retry repairs, or can't be trained on.
        """
        if self._error is not None:
            raise ValueError(f"{type(self._error).__name__}: {self._error}") from self._error
        if self._played is None:
            return TrainingTrace(turns=[])
        return training_trace(self._played)

    @override
    def verify(self, transcript: list[dict[str, Any]], final_state: Any = None) -> VerifyResult:
        """Return the verifier's reward; None for an episode without a verdict."""
        metrics: dict[str, Any] = {}
        if self._played is not None:
            rollout = self._played
            metrics = {"end_reason": rollout.end_reason.value, "turns": len(rollout.transitions)}
            if rollout.error is not None:
                metrics["failure_kind"] = end_word(rollout)
        return VerifyResult(env_reward=self._reward, done=self._played is not None, metrics=metrics)

    @override
    def close(self) -> None:
        """Cancel the episode if it still runs; its sandbox is stopped in the background. Idempotent."""
        self._running.cancel()

    @override
    def initial_messages(self) -> list[dict[str, Any]]:
        """Return an empty list: the episode makes its own prompt."""
        return []

    @override
    def list_tools(self) -> list[Tool]:
        """Return an empty list: the policy writes messages in the ``action_format``."""
        return []

    @override
    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Refuse: the episode runs its own loop.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"this session has no tool {name!r}: its episode runs by itself; pass no harness_adapter")

    @property
    def _reward(self) -> float | None:
        return None if self._played is None else self._played.reward


class HarborTerminalSessionFactory(ResourceSessionFactory[HarborTerminalSession]):
    """Plays episodes against the trainer's engine, token by token.

    Pass it to TRL's ``HarnessRolloutWorker`` as a partial, which pickles; TRL adds ``sampling``::

        factory = functools.partial(
            HarborTerminalSessionFactory,
            LocalTasks(suite, config),
            tokenizer="Qwen/Qwen3-4B",
            engine_url="http://127.0.0.1:8000",
            model="Qwen/Qwen3-4B",
            max_tokens=1024,
        )
        worker = TerminalRolloutWorker(harness_session_factory=factory, …)

    Args:
        tasks: The tasks, in sandboxes of this process or on a server.
        tokenizer: A tokenizer with a chat template, or its name or directory for ``AutoTokenizer``.
        engine_url: Address of an engine that serves token-id completions, as vLLM does.
        model: Model name, as the engine serves it.
        max_tokens: Longest message, in tokens.
        max_context_tokens: The model's context window, in tokens; None checks nothing.
        max_retries: Most retries of an episode after failures of the infrastructure.
        max_lost_in_a_row: Lost episodes in a row that end the training; None is no limit. Twice the episodes at once
            is a good value.
        chat_template_kwargs: Further arguments of the chat template, such as ``enable_thinking``.
        sampling: The training policy, as OpenEnv's ``training_sampling`` returns it.

    Raises:
        UsageError: A setting or the chat template can't be used.
        MissingDependencyError: ``tokenizer`` is a name, and transformers is not installed.
    """

    def __init__(
        self,
        tasks: LocalTasks | ServedTasks,
        *,
        tokenizer: Any,
        engine_url: str,
        model: str,
        max_tokens: int,
        max_context_tokens: int | None = None,
        max_retries: int = 1,
        max_lost_in_a_row: int | None = 64,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in {"max_tokens": max_tokens, "max_lost_in_a_row": max_lost_in_a_row}.items():
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        loaded = _load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        codec = HFCodec(loaded, **(chat_template_kwargs or {}))
        policy = dict(sampling or {})
        self._tasks, self._codec = tasks, cast("ChatCodec", codec)
        self._max_tokens, self._max_context_tokens, self._max_retries = max_tokens, max_context_tokens, max_retries
        self._losses = _Losses(max_lost_in_a_row)
        self._engine: dict[str, Any] = {
            "base_url": engine_url,
            "model": model,
            "max_tokens": max_tokens,
            "temperature": policy.pop("temperature", 1.0),
            "stop_token_ids": codec.stop,
            "extra_body": policy,
        }

    @override
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> HarborTerminalSession:
        """Start an episode and return at once.

        Args:
            task: A prompt of :meth:`TaskSuite.rows`, or any other argument of :meth:`LocalTasks.bind`.
            seed: Chooses the task if ``task`` names none; TRL passes the group's number.
            episode_id: Not used.
        """
        return HarborTerminalSession(get_portal().submit(self._play, task, seed), self._losses)

    async def _play(self, task: Any, seed: int | None) -> Rollout:
        make_env = self._tasks.bind(task, seed)

        def attempt() -> TokenTerminalEnv:
            return TokenTerminalEnv(
                make_env(), self._codec, max_tokens=self._max_tokens, max_context_tokens=self._max_context_tokens
            )

        async with CompletionsSampler(**self._engine) as sample:
            return await run_with_retries(attempt, sample, max_retries=self._max_retries)


def _load_tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as exc:
        raise MissingDependencyError('a tokenizer by name needs transformers: pip install "harbor-gym[trl]"') from exc
    return AutoTokenizer.from_pretrained(name)
