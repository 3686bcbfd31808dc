"""The audit's look at finished episodes while they train: warnings, metrics, and a stop."""

import contextlib
import json
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

from tinker_cookbook.checkpoint_utils import get_last_checkpoint
from tinker_cookbook.rl.rollouts import RolloutErrorCounter
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.utils.misc_utils import all_same

from harbor_gym._runtime.imports import replaced_names
from harbor_gym.adapters.tinker.env import FINDINGS, LIMITS
from harbor_gym.checking.audit.episodes import BY_EPISODE, Ended, find_in_task
from harbor_gym.checking.audit.report import line
from harbor_gym.errors import FindingError
from harbor_gym.tasks.receipts import Finding, Severity

_BY_TASK = "episodes/limits-hit"
_RECENT = 64
"""Episodes of a task, the last ones, of which a share is found."""


class Monitor:
    """What the episodes of a run show so far.

    Args:
        show: Takes a line for the first finding of each kind and task.
        stop_on: The least severity that ends the run; None ends it never.
    """

    def __init__(self, show: Callable[[str], None], stop_on: Severity | None = None) -> None:
        self._show, self._stop_on = show, stop_on
        self._known: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()
        self._recent: dict[str, deque[Ended]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self.stop: str | None = None
        """The finding that ends the run, as a line."""

    def look(self, task: str, group: TrajectoryGroup) -> None:
        """Take the findings of a group's episodes, which their environments have made."""
        recent = self._recent[task]
        for trajectory, reward in zip(group.trajectories_G, group.get_total_rewards(), strict=True):
            logs = trajectory.transitions[-1].logs if trajectory.transitions else {}
            for written in json.loads(str(logs.get(FINDINGS, "[]"))):
                self._take(task, Finding.model_validate(written))
            reason = str(trajectory.stop_reason)
            recent.append(Ended("", reward, reason if reason in LIMITS else None))
        for found in find_in_task(list(recent)):
            if found.kind == _BY_TASK:
                self._take(task, found)

    def _take(self, task: str, found: Finding) -> None:
        self._counts[found.kind] += 1
        if (task, found.kind) in self._known:
            return
        self._known.add((task, found.kind))
        text = line(task, found)
        self._show(f"warning: {text}")
        if self._stop_on is not None and found.severity.rank <= self._stop_on.rank:
            self.stop = self.stop or text

    def metrics(self) -> dict[str, float]:
        """Return the numbers of episodes by kind since the last call; of groups for what a task's episodes show."""
        counts = {f"audit/{kind}": float(self._counts[kind]) for kind in (*BY_EPISODE, _BY_TASK)}
        self._counts.clear()
        return counts


@contextlib.contextmanager
def monitored(show: Callable[[str], None], stop_on: Severity | None = None) -> Generator[None]:
    """Look at each group that the cookbook's loop plays during the block.

    A finding as bad as ``stop_on`` ends the run before the next step, or after one that took its groups while they
    were played: the weights are saved first.

    Raises:
        FindingError: By the loop: such a finding.
    """
    from tinker_cookbook.rl import train

    loop: Any = train
    play: Callable[..., Awaitable[TrajectoryGroup | None]] = loop.do_group_rollout_and_filter_constant_reward
    monitor = Monitor(show, stop_on)

    async def play_and_look(client: Any, builder: Any, **options: Any) -> TrajectoryGroup | None:
        # A policy that forges every reward of a group has a constant one: look before such groups are left out.
        leaves_out = options.pop("do_remove_constant_reward_groups")
        group = await play(client, builder, do_remove_constant_reward_groups=False, **options)
        if group is None:
            return None
        monitor.look(builder.logging_tags()[0], group)
        is_constant = leaves_out and monitor.stop is None and all_same(group.get_total_rewards())
        return None if is_constant else group

    class Counting(RolloutErrorCounter):
        def get_metrics(self, prefix: str = "rollout_errors") -> dict[str, float]:
            return super().get_metrics(prefix) | monitor.metrics()

    def stopping(step: Callable[..., Awaitable[Any]], manager: int) -> Callable[..., Awaitable[Any]]:
        async def step_or_stop(config: Any, i_batch: int, *rest: Any) -> Any:
            await _stop_if_found(monitor, config.log_path, rest[manager], i_batch)
            result = await step(config, i_batch, *rest)
            await _stop_if_found(monitor, config.log_path, rest[manager], i_batch + 1)
            return result

        return step_or_stop

    with replaced_names(
        train,
        do_group_rollout_and_filter_constant_reward=play_and_look,
        RolloutErrorCounter=Counting,
        do_train_step_and_get_sampling_client=stopping(loop.do_train_step_and_get_sampling_client, 1),
        do_train_step_streaming_and_get_sampling_client=stopping(
            loop.do_train_step_streaming_and_get_sampling_client, 2
        ),
    ):
        yield


async def _stop_if_found(monitor: Monitor, log_path: str, manager: Any, batch: int) -> None:
    if monitor.stop is None:
        return
    last = get_last_checkpoint(log_path)
    if last is None or cast("int | None", last.batch) != batch:
        await manager.save_periodic_async(step=batch, loop_state={"batch": batch})
    raise FindingError(f"the run ends before batch {batch + 1}, at a finding of its audit: {monitor.stop}")
