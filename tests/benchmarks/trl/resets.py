"""Many resets of a trainer's environments, and their leftovers on the machine."""

import time
from dataclasses import dataclass
from typing import Any, override

from harbor_gym.adapters.trl import HarborSpec, verified_reward
from harbor_gym.testing.leftovers import find_leftovers
from tests.benchmarks.report import BenchReport
from tests.benchmarks.sandbox import bench_task

_ANSWERED = [{"role": "assistant", "content": "done"}]
_SETTLE_SEC = 10.0


@dataclass(frozen=True, slots=True)
class ResetsReport(BenchReport):
    """The results."""

    resets: int
    seconds: float
    left: tuple[str, ...]
    """Folders, mounts and processes that are still there, a line each."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether nothing is left."""
        return not self.left


def bench_resets(*, resets: int = 640, slots: int = 16, sandbox: str = "local") -> ResetsReport:
    """Reset environments over and over: each third round is verified, in each third the policy acts, one is untouched.

    Args:
        resets: How often, of all environments together.
        slots: Environments.
        sandbox: As ``TerminalEnvConfig.sandbox``.
    """
    from harbor_gym.sandboxes.supervisor.forkserver_client import forkserver_pid

    with bench_task() as task:
        before = find_leftovers(is_exempt=lambda pid: pid == forkserver_pid())
        started = time.monotonic()
        with HarborSpec(task, agent="bash", sandbox=sandbox) as spec:
            environments: list[Any] = [spec.environment_factory() for _ in range(slots)]
            for number in range(resets):
                environment = environments[number % slots]
                environment.reset(task_index=0)
                if number // slots % 3 == 1:
                    environment.bash("sleep 1000 &")
                elif number // slots % 3 == 2 and number % slots == slots - 1:
                    verified_reward([_ANSWERED] * slots, environments)
        seconds = time.monotonic() - started
        deadline = time.monotonic() + _SETTLE_SEC
        while (left := find_leftovers(is_exempt=lambda pid: pid == forkserver_pid()) - before) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
    return ResetsReport(resets, seconds, tuple(sorted(left)))
