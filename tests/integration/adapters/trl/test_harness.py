"""Tool harnesses without a trainer: calls in TRL's order, from its thread, against episodes in memory and real ones."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, override

import pytest

from tests.helpers.patience import PATIENCE_SEC

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.trl import HarborSpec, verified_reward
from harbor_gym.adapters.trl.slot import EPISODE_OVER, TERMINAL_LOST
from harbor_gym.errors import UsageError
from harbor_gym.testing import FakeEnvironment, write_tiny_task
from harbor_gym.testing.leftovers import find_leftovers
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.tasks import write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED = {"solved_when": {"/srv/answer": "done"}}
SOLVE = "echo done > /srv/answer"
ANSWERED = [{"role": "assistant", "content": "done"}]
CUT = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}]


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., HarborSpec]:
    """Make a spec of one task in fake sandboxes; keyword arguments of the fake are ``options``."""
    task = write_tiny_task(tmp_path / "task")

    def make(options: dict[str, Any] | None = None, **settings: Any) -> HarborSpec:
        return HarborSpec(task, sandbox=FAKE, sandbox_options=options or SOLVED, **settings)

    return make


def graded(environments: list[Any], completion: Any = ANSWERED, **settings: Any) -> list[float | None]:
    return verified_reward([completion] * len(environments), environments, **settings)


def test_an_episode_by_tool_calls(fake: Callable[..., HarborSpec]) -> None:
    with fake() as spec:
        solver, idler = spec.environment_factory(), spec.environment_factory()
        for _ in range(2):  # constructed once, reset often
            for environment in (solver, idler):
                environment.reset(prompt=[], task="task", task_index=0)
            shown: str = solver.bash(SOLVE)  # pyright: ignore[reportAttributeAccessIssue]  # the harness's tool
            assert SOLVE in shown
            assert graded([solver, idler]) == [1.0, 0.0]
            assert graded([solver, idler]) == [1.0, 0.0], "a second reward function finds the same"
        assert solver.bash("true") == EPISODE_OVER  # pyright: ignore[reportAttributeAccessIssue]


class Gated(FakeEnvironment):
    """Starts once the gate is open and all of a group are starting; is verified once all of them are."""

    GROUP = 16
    gate: ClassVar[asyncio.Event]
    starts: ClassVar[asyncio.Barrier]
    verdicts: ClassVar[asyncio.Barrier]

    @override
    async def start(self, force_build: bool) -> None:
        await self.gate.wait()
        await self.starts.wait()
        await super().start(force_build)

    @override
    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        if target_dir == "/tests":
            await self.verdicts.wait()
        await super().upload_dir(source_dir, target_dir)


async def open_gate() -> None:
    Gated.gate.set()


def test_resets_do_not_wait_and_verdicts_come_side_by_side(tmp_path: Path) -> None:
    Gated.gate, Gated.starts, Gated.verdicts = asyncio.Event(), *(asyncio.Barrier(Gated.GROUP) for _ in range(2))
    task = write_tiny_task(tmp_path / "task")
    with HarborSpec(task, sandbox=f"{__name__}:Gated", sandbox_options=SOLVED) as spec:
        environments: list[Any] = [spec.environment_factory() for _ in range(Gated.GROUP)]
        for environment in environments:
            environment.reset(task_index=0)
        get_portal().call(open_gate)  # no sandbox has started by now: a reset that waited for one would never return
        environments[0].bash(SOLVE)
        assert graded(environments) == [1.0, *[0.0] * (Gated.GROUP - 1)]


@pytest.mark.parametrize("point", ["start", "exec", "verifier"])
def test_an_infrastructure_failure_has_no_reward(
    fake: Callable[..., HarborSpec], point: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics: dict[str, float] = {}
    with fake({**SOLVED, "fail": {point: 1}}, max_retries=0) as spec:
        environment: Any = spec.environment_factory()
        environment.reset(task_index=0)
        shown = environment.bash(SOLVE)
        assert (shown == TERMINAL_LOST) is (point != "verifier")
        assert graded([environment, object()], log_metric=metrics.__setitem__) == [None, None]
    assert metrics == {"harbor/lost": 1.0}
    assert "an episode was lost (" in caplog.text


def test_a_wrong_task_is_raised_and_not_masked(fake: Callable[..., HarborSpec], tmp_path: Path) -> None:
    with fake() as spec:
        environment: Any = spec.environment_factory()
        (tmp_path / "task/task.toml").unlink()
        environment.reset(task_index=0)
        assert environment.bash("true") == TERMINAL_LOST
        with pytest.raises(Exception, match=r"task\.toml"):
            graded([environment])


def test_a_cut_rollout_counts_as_truncated(fake: Callable[..., HarborSpec]) -> None:
    with fake(zero_reward_on_limit=True) as spec:
        for completion, reward in ((ANSWERED, 1.0), (CUT, 0.0), ([*CUT, {"role": "tool", "content": ""}], 0.0)):
            environment: Any = spec.environment_factory()
            environment.reset(task_index=0)
            environment.bash(SOLVE)
            assert graded([environment], completion) == [reward]


@pytest.mark.parametrize("wrong", [5, None, ["ls"], "null\0byte", "half \ud800"])
def test_what_cant_be_typed_is_the_policys_failure_alone(fake: Callable[..., HarborSpec], wrong: Any) -> None:
    with fake() as spec:
        environment: Any = spec.environment_factory()
        environment.reset(task_index=0)
        with pytest.raises(UsageError):
            environment.bash(wrong)
        environment.bash(SOLVE)
        assert graded([environment]) == [1.0]


async def test_inside_a_running_loop(fake: Callable[..., HarborSpec]) -> None:
    with fake() as spec:
        environment: Any = spec.environment_factory()
        environment.reset(task_index=0)
        environment.bash(SOLVE)
        assert graded([environment]) == [1.0]
        assert await asyncio.to_thread(graded, [environment]) == [1.0]


def test_from_threads_with_a_pool(fake: Callable[..., HarborSpec]) -> None:
    with fake(pool_size=2) as spec, ThreadPoolExecutor(8) as threads:

        def play(number: int) -> float | None:
            environment: Any = spec.environment_factory()
            environment.reset(task_index=0)
            environment.bash(SOLVE if number % 2 else "true")
            return graded([environment])[0]

        assert list(threads.map(play, range(16))) == [0.0, 1.0] * 8


def test_a_closed_spec_refuses_and_leaves_nothing(fake: Callable[..., HarborSpec]) -> None:
    with fake() as spec:
        running: Any = spec.environment_factory()
        running.reset(task_index=0)
        running.bash("true")
    with pytest.raises(UsageError, match="closed"):
        running.reset(task_index=0)
    assert running.bash("true") == TERMINAL_LOST
    with pytest.raises(UsageError, match="closed"):
        graded([running])


def test_a_forgotten_environment_is_closed(fake: Callable[..., HarborSpec]) -> None:
    before = find_leftovers(is_exempt=lambda pid: True)
    environment: Any = fake().environment_factory()
    environment.reset(task_index=0)
    environment.bash("true")
    assert find_leftovers(is_exempt=lambda pid: True) > before, "the trial has a folder"
    del environment
    gc.collect()
    deadline = time.monotonic() + PATIENCE_SEC
    while find_leftovers(is_exempt=lambda pid: True) > before and time.monotonic() < deadline:
        get_portal().call(asyncio.sleep, 0.05)
    assert find_leftovers(is_exempt=lambda pid: True) <= before


PROGRAM = """\
import sys
from harbor_gym.adapters.trl import HarborSpec
with HarborSpec(sys.argv[1], sandbox="local") as spec:
    environments = [spec.environment_factory() for _ in range(2)]
    for environment in environments:
        environment.reset(task_index=0)
    for environment in environments:
        environment.bash("true")
    print("running", flush=True)
    {end}
"""

WAIT = "environments[0].bash('sleep 100')"


@pytest.mark.local
@pytest.mark.parametrize(
    ("end", "number", "status"),
    [
        (WAIT, signal.SIGTERM, 143),
        (WAIT, signal.SIGINT, -signal.SIGINT),
        ("raise SystemExit(7)", None, 7),
    ],
    ids=["SIGTERM", "SIGINT", "exit"],
)
def test_every_end_of_a_program_stops_its_sandboxes(
    tmp_path: Path, scratch: Path, end: str, number: signal.Signals | None, status: int
) -> None:
    task = write_task(tmp_path / "task")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end=end), str(task)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        if number is not None:
            time.sleep(1.0)
            program.send_signal(number)
        assert program.wait(60) == status
    finally:
        program.kill()
        program.communicate()
    left = [path.name for path in scratch.iterdir() if path.name.startswith("harbor-gym")]
    assert left == []
