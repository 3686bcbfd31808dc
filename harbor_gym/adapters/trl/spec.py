"""A suite of Harbor tasks as the arguments of a ``GRPOTrainer``."""

import contextlib
import difflib
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harbor_gym._runtime.interrupts import exit_on_sigterm
from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.harbor.agents import require_agent
from harbor_gym.adapters.trl.agents import TERMINAL, Agent, find_harness
from harbor_gym.adapters.trl.async_settings import engine_sampler, groups_at_once, queue_size
from harbor_gym.adapters.trl.async_worker import HarborRolloutWorker
from harbor_gym.adapters.trl.bash import BashHarness, BashStepsHarness
from harbor_gym.adapters.trl.groups import GroupPlan
from harbor_gym.adapters.trl.harness import HarnessSettings, ToolHarness, make_factory
from harbor_gym.adapters.trl.layout import require_known_settings
from harbor_gym.adapters.trl.rewards import verified_reward
from harbor_gym.adapters.trl.rollouts import TASK_KEY, TerminalRollouts, rollout_reward
from harbor_gym.adapters.trl.slot import close_run
from harbor_gym.codecs import HFCodec
from harbor_gym.codecs.hf import ChatTokenizer
from harbor_gym.config import (
    DEFAULT_MAX_RETRIES,
    AgentEpisodeConfig,
    AnyEpisode,
    TerminalEnvConfig,
    read_episode,
    require_one_conversation,
    require_own_loop,
)
from harbor_gym.episode.task import require_sandbox
from harbor_gym.errors import UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.stragglers import Stragglers
from harbor_gym.tasks import SourcedTask, TaskSource, read_instruction, resolve_tasks
from harbor_gym.tasks.receipts import playable_tasks
from harbor_gym.types import DEFAULT_SANDBOX, Sampler

if TYPE_CHECKING:
    from datasets import Dataset  # seconds to import

    from harbor_gym.adapters.trl.layout import AsyncGRPOConfig  # likewise


class HarborSpec:
    """Makes a dataset, environments or a rollout function, and a reward function from a suite of tasks.

    The constructor checks tasks, harness and sandbox; no sandbox starts before the first episode. The context manager
    stops the episodes' sandboxes at its end, also after an exception or Ctrl-C, and turns SIGTERM into an exit that
    cleans up. Without it, the interpreter's exit stops them; SIGTERM then ends the process at once, and the reaper of
    :mod:`harbor_gym.sandboxes` removes the leftover sandboxes.

    Args:
        tasks: Directories of tasks, or other sources as :func:`harbor_gym.tasks.resolve_tasks` reads them.
        agent: ``bash``, one tool in one persistent session, and with a task of several steps a second one that ends a
            step; ``terminal_notes``, the same with a scratchpad; ``jupyter``, cells of a notebook's kernel;
            ``terminal``, keystrokes in the configuration's ``action_format``; a subclass of :class:`ToolHarness`, or
            its ``module.path:Class``. For :meth:`rollout_worker` also one of Harbor's agents, as
            :attr:`harbor_gym.config.AgentEpisodeConfig.agent` names it.
        sandbox: ``local``, a Harbor environment type by name, or ``module.path:Class``.
        pool_size: Sandboxes that a warm pool keeps ready for each task; None starts one per episode.
        indices: Indices of the tasks in the suite, from 0; None takes all. ``task_index`` stays the suite's.
        max_retries: Most retries of an episode after failures of the infrastructure: of its start with a tool harness,
            of the whole episode else.
        stragglers: Limits on the slowest episodes of each group of :meth:`rollout_worker`, or of each task in a batch
            of ``rollout_func``. With a tool harness, which TRL's own loop plays, only ``batch_deadline_sec`` is
            possible, counted from each episode's start: the next tool call then ends the episode.
        max_context_tokens: See :class:`TerminalRollouts`; not with a tool harness.
        settings: Other fields of :class:`harbor_gym.TerminalEnvConfig`, or with one of Harbor's agents of
            :class:`harbor_gym.config.AgentEpisodeConfig`.

    Raises:
        UsageError: An argument is wrong; the message lists near matches.
        TaskError: A directory is not a usable Harbor task.
        MissingDependencyError: The sandbox needs a program, a package or a key that is missing.

    Example::

        with HarborSpec("tasks", agent="bash", sandbox="docker", pool_size=16) as spec:
            GRPOTrainer(model, args=args, **spec.trainer_arguments).train()
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[TaskSource],
        *,
        agent: Agent = "bash",
        sandbox: str = DEFAULT_SANDBOX,
        pool_size: int | None = None,
        indices: Sequence[int] | None = None,
        max_retries: int = DEFAULT_MAX_RETRIES,
        stragglers: Stragglers | None = None,
        max_context_tokens: int | None = None,
        **settings: Any,
    ) -> None:
        _require_at_least("pool_size", pool_size, 1)
        _require_at_least("max_retries", max_retries, 0)
        _require_at_least("max_context_tokens", max_context_tokens, 1)
        self._harness = find_harness(agent)
        is_harbors = self._harness is None and agent != TERMINAL
        if is_harbors and pool_size is not None:
            raise UsageError("an agent of Harbor's starts its own sandbox: leave pool_size out")
        if self._harness is not None and max_context_tokens is not None:
            raise UsageError("max_context_tokens is not for tools: max_completion_length is their limit")
        self._stragglers = stragglers or Stragglers()
        if self._harness is not None and self._stragglers.over_sample > 1:
            raise UsageError(
                "over_sample is for agent='terminal': with tools TRL itself decides how many episodes it plays"
            )
        self._max_context_tokens = max_context_tokens
        selected = _select(get_portal().call(resolve_tasks, tasks), indices)
        player = {"agent": agent} if is_harbors else {}
        config = _make_config(next(iter(selected.values())).path, {"sandbox": sandbox, **player, **settings})
        played = {task.path for task in playable_tasks(list(selected.values()), config)}
        self._tasks = {index: task for index, task in selected.items() if task.path in played}
        config = config.model_copy(update={"task_dir": next(iter(self._tasks.values())).path})
        self._instructions = {index: read_instruction(task) for index, task in self._tasks.items()}
        if self._harness is not None:
            self._harness = _fit_steps(self._harness, self._tasks.values())
        if isinstance(config, AgentEpisodeConfig):
            require_agent(config)
        elif self._harness is not None and self._harness._takes_text and config.terminal.keys is None:  # pyright: ignore[reportPrivateUsage]  # as harnesses set it
            config = config.model_copy(update={"terminal": config.terminal.model_copy(update={"keys": "literal"})})
        require_sandbox(config)
        self._config, self._pool_size, self._max_retries = config, pool_size, max_retries
        self._run_id = uuid.uuid4().hex
        self._restore_sigterm: Callable[[], object] = lambda: None
        self._workers: weakref.WeakSet[HarborRolloutWorker] = weakref.WeakSet()

    @property
    def agent(self) -> type[ToolHarness] | None:
        """The tool harness; None for ``terminal`` and Harbor's agents."""
        return self._harness

    @property
    def settings(self) -> HarnessSettings:
        """The settings of the environments.

        Raises:
            UsageError: The agent is one of Harbor's, or ``compaction`` is set.
        """
        config = require_own_loop(self._config, "a GRPOTrainer")
        require_one_conversation(config, "a GRPOTrainer")
        return HarnessSettings(
            config,
            self._task_dirs,
            pool_size=self._pool_size,
            max_retries=self._max_retries,
            stragglers=self._stragglers,
            run_id=self._run_id,
        )

    @property
    def _task_dirs(self) -> dict[int, Path]:
        return {index: task.path for index, task in self._tasks.items()}

    @property
    def train_dataset(self) -> "Dataset":
        """A row per task: ``prompt`` (the instruction as the user's message), ``task`` (its name), ``task_index``.

        The prompt has no skills and MCP servers, which only a sandbox knows. Without a tool harness the prompt names
        the task for ``rollout_func``, and the policy sees the episode's own first prompt instead.
        """
        from datasets import Dataset

        named = self._harness is None
        messages = [
            [{"role": "user", "content": text, **({TASK_KEY: index} if named else {})}]
            for index, text in self._instructions.items()
        ]
        names = [task.name for task in self._tasks.values()]
        return Dataset.from_dict({"prompt": messages, "task": names, "task_index": list(self._tasks)})

    @property
    def environment_factory(self) -> Callable[[], ToolHarness]:
        """A picklable function that makes one environment of a tool harness.

        Raises:
            UsageError: The agent is no tool harness.
        """
        settings = self.settings
        if self._harness is None:
            raise UsageError("agent='terminal' calls no tools: pass rollout_func to the trainer, or trainer_arguments")
        return make_factory(self._harness, settings)

    def rollout_worker(
        self,
        args: "AsyncGRPOConfig",
        tokenizer: ChatTokenizer,
        *,
        model: str,
        max_lost_groups: int = 4,
        max_token_staleness: int | None = None,
        sampler: Callable[[], AbstractAsyncContextManager[Sampler]] | None = None,
    ) -> HarborRolloutWorker:
        """Return the rollouts for ``AsyncGRPOTrainer(rollout_worker=…)``, exact to the token.

        Args:
            args: The trainer's configuration, which has the engine, sampling, ``num_generations``,
                ``max_inflight_tasks`` and ``queue_maxsize``. ``max_completion_length`` limits one message.
            tokenizer: The policy's tokenizer.
            model: The policy's name on the engine.
            max_lost_groups: Number of groups in a row without a sample that ends the training with an error, because
                the trainer would wait for ever.
            max_token_staleness: Train no token that was sampled more weight versions before its group's end. The
                sample's version, by which ``args.max_staleness`` drops it, is then that of its oldest trainable token.
            sampler: Opens a sampler instead of ``args.vllm_server_base_url``. It must pickle.

        Raises:
            UsageError: The agent is a tool harness, ``max_lost_groups`` is out of range, something can't be pickled, or
                the installed TRL's ``AsyncGRPOConfig`` is one that was never run here.
        """
        if self._harness is not None:
            raise UsageError(
                "rollout_worker is for agent='terminal', whose action_format may be 'bash-tool', and Harbor's agents"
            )
        require_known_settings()
        template_kwargs: Any = args.chat_template_kwargs or {}
        codec = HFCodec(tokenizer, **template_kwargs)
        worker = HarborRolloutWorker(
            GroupPlan(
                self._config,
                tuple(self._task_dirs.values()),
                codec,
                engine_sampler(args, model, codec.stop) if sampler is None else sampler,
                SessionLimits(
                    max_answer_tokens=args.max_completion_length, max_context_tokens=self._max_context_tokens
                ),
                num_generations=args.num_generations,
                groups_at_once=groups_at_once(args),
                max_retries=self._max_retries,
                stragglers=self._stragglers,
                pool_size=self._pool_size,
                max_lost_groups=max_lost_groups,
                max_token_staleness=max_token_staleness,
            ),
            queue_size=queue_size(args),
        )
        self._workers.add(worker)
        return worker

    @property
    def rollout_func(self) -> TerminalRollouts:
        """A picklable function that runs the episodes of ``terminal``.

        Raises:
            UsageError: The agent is a tool harness, or one of Harbor's.
        """
        if self._harness is not None:
            raise UsageError(
                "rollout_func is for agent='terminal': pass environment_factory to the trainer, or trainer_arguments"
            )
        return TerminalRollouts(self.settings, max_context_tokens=self._max_context_tokens)

    @property
    def reward_funcs(self) -> Callable[..., list[float | None]]:
        """The function that returns the verifier's rewards; None, which TRL does not train, for a lost episode."""
        return rollout_reward if self._harness is None else verified_reward

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """Every keyword argument that a ``GRPOTrainer`` takes from this object."""
        name = "rollout_func" if self._harness is None else "environment_factory"
        return {"train_dataset": self.train_dataset, "reward_funcs": self.reward_funcs, name: getattr(self, name)}

    def close(self) -> None:
        """Stop every sandbox and warm pool of this object's episodes, here and in its workers. Idempotent; blocks."""
        for worker in self._workers:
            worker.stop()
        get_portal().call(close_run, self._run_id)

    def __enter__(self) -> Self:
        self._restore_sigterm = exit_on_sigterm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._restore_sigterm)
            self.close()


def _require_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}")


def _select(tasks: Sequence[SourcedTask], indices: Sequence[int] | None) -> dict[int, SourcedTask]:
    """Return tasks by their index in the suite."""
    if indices is None:
        return dict(enumerate(tasks))
    if not indices:
        raise UsageError("indices is empty: None takes every task")
    if wrong := [index for index in indices if not 0 <= index < len(tasks)]:
        raise UsageError(f"indices must be from 0 to {len(tasks) - 1} ({len(tasks)} tasks), got {wrong[0]}")
    return {index: tasks[index] for index in indices}


def _fit_steps(harness: type[ToolHarness], tasks: Iterable[SourcedTask]) -> type[ToolHarness]:
    """Return the harness; for ``bash`` and a task of several steps, its variant with ``finish_step``."""
    from harbor.models.task.task import Task

    for task in tasks:
        if not (steps := Task(task.path).config.steps) or harness._takes_steps:  # pyright: ignore[reportPrivateUsage]  # public names would be tools
            continue
        if harness is BashHarness:
            return BashStepsHarness
        raise UsageError(
            f"{task.name} has {len(steps)} steps, and {harness.__name__} ends with the first: use agent='bash' or "
            "'terminal', or a harness with a tool that calls _finish_step"
        )
    return harness


def _make_config(task_dir: Path, settings: dict[str, Any]) -> AnyEpisode:
    known = (TerminalEnvConfig.model_fields | AgentEpisodeConfig.model_fields).keys() - {"task_dir"}
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}"
            raise UsageError(f"there is no setting {name!r}; {hint}")
    return read_episode({"task_dir": task_dir, **settings})
