"""Groups closed at their size and a batch's deadline, in the rollouts of TRL's trainers."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, override

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.trl import HarborSpec, verified_reward
from harbor_gym.adapters.trl.groups import GroupPlayer
from harbor_gym.adapters.trl.slot import EPISODE_OVER, TERMINAL_LOST
from harbor_gym.errors import UsageError
from harbor_gym.stragglers import Stragglers
from harbor_gym.testing import FakeEnvironment, write_tiny_task
from tests.helpers.policies.typists import Typist, tokenizer

pytestmark = pytest.mark.usefixtures("nothing_left")

GROUP = 4
SETTINGS: dict[str, Any] = {"action_format": "keystrokes", "confirm_task_complete": False}
SOLVED = {"solved_when": {"/srv/answer": "done"}}
LONG_ENOUGH_SEC = 8.0
"""A deadline by which a busy machine's fakes have started and been answered."""


class SomeNeverStart(FakeEnvironment):
    """Fakes of which the first so many never start."""

    left: ClassVar[int] = 0

    @override
    async def start(self, force_build: bool) -> None:
        SomeNeverStart.left -= 1
        if SomeNeverStart.left >= 0:
            await asyncio.Event().wait()
        await super().start(force_build)


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Path]:
    """Two tasks."""
    for name in ("one", "two"):
        write_tiny_task(tmp_path / "suite" / name)
    yield tmp_path / "suite"
    SomeNeverStart.left = 0


def make_spec(suite: Path, stragglers: Stragglers | None, *, agent: str = "terminal", never: int = 2) -> HarborSpec:
    SomeNeverStart.left = never
    settings: dict[str, Any] = {**SETTINGS, "max_context_tokens": 4000} if agent == "terminal" else {}
    sandbox = f"{__name__}:SomeNeverStart"
    return HarborSpec(suite, agent=agent, sandbox=sandbox, sandbox_options=SOLVED, stragglers=stragglers, **settings)


class Trainer(SimpleNamespace):
    """The parts of a GRPOTrainer that ``rollout_func`` uses, with a policy that solves the task."""

    def __init__(self) -> None:
        super().__init__(
            _tokenizer=tokenizer(),
            eos_token_ids=[tokenizer().eos_token_id],
            chat_template_kwargs={},
            max_completion_length=100,
        )

    def _generate_single_turn(self, prompts: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        samples = [asyncio.run(Typist()(prompt)) for prompt in prompts]
        return [list(sample.tokens) for sample in samples], [sample.logprobs for sample in samples]


def rolled_out(spec: HarborSpec) -> dict[str, Any]:
    rows = spec.train_dataset
    return spec.rollout_func([rows[place]["prompt"] for place in (0, 0, 1, 1)], Trainer())


def test_rollout_func_returns_the_first_that_end_of_each_task(suite: Path) -> None:
    noted: dict[str, Any] = {}
    with make_spec(suite, Stragglers(over_sample=2)) as spec:
        columns = rolled_out(spec)
        rewards = spec.reward_funcs(
            **{name: value for name, value in columns.items() if name.startswith("harbor_")},
            log_metric=noted.__setitem__,
            log_extra=noted.__setitem__,
        )
    assert rewards == [1.0] * 4
    assert columns["harbor_end"] == ["completed"] * 4
    assert all(sum(mask) for mask in columns["env_mask"])
    assert sum(columns["harbor_dropped"]) == 4, "two of four for each task"
    assert noted == {
        "harbor/lost": 0.0,
        "harbor/dropped": 1.0,
        "harbor_end": ["completed"] * 4,
        "harbor_dropped": columns["harbor_dropped"],
    }


def test_rollout_func_drops_at_the_deadline_what_has_not_begun(suite: Path) -> None:
    with make_spec(suite, Stragglers(batch_deadline_sec=LONG_ENOUGH_SEC), never=1) as spec:
        columns = rolled_out(spec)
    assert sorted(columns["harbor_end"]) == ["completed", "completed", "completed", "dropped"]
    place = columns["harbor_end"].index("dropped")
    assert columns["harbor_reward"][place] is None
    assert not any(columns["env_mask"][place])
    assert columns["prompt_ids"][place], "no sequence is empty"


def test_without_settings_there_is_no_further_column(suite: Path) -> None:
    with make_spec(suite, None, never=0) as spec:
        assert set(rolled_out(spec)) == {
            *("prompt_ids", "completion_ids", "logprobs", "env_mask", "harbor_reward", "harbor_end")
        }


def play(spec: HarborSpec) -> tuple[list[Any], dict[str, Any]]:
    from harbor_gym.adapters.trl.layout import AsyncGRPOConfig

    args = AsyncGRPOConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
    )
    metrics: dict[str, Any] = {}

    async def ignore(sample: object) -> None:
        return None

    async def run() -> list[Any]:
        opened = functools.partial(contextlib.nullcontext, Typist())
        worker = spec.rollout_worker(args, tokenizer(), model="policy", sampler=opened)
        player = GroupPlayer(worker.plan, emit=ignore, report=metrics.update, version=lambda: 1)
        async with worker.plan.open_sampler() as sampler:
            return await player.play(0, sampler)

    return get_portal().call(run), metrics


def test_the_workers_group_is_closed_at_its_size(suite: Path) -> None:
    with make_spec(suite, Stragglers(over_sample=1.5)) as spec:
        samples, metrics = play(spec)
    assert [sample.metrics["reward"] for sample in samples] == [1.0] * GROUP
    assert metrics["harbor/completed_total"] == GROUP
    assert metrics["harbor/lost"] == (0.0, GROUP)
    assert (metrics["stragglers/started"], metrics["stragglers/one/dropped_total"]) == (6, 2)


def test_the_workers_group_is_what_has_begun_by_the_deadline(suite: Path) -> None:
    with make_spec(suite, Stragglers(batch_deadline_sec=LONG_ENOUGH_SEC)) as spec:
        samples, metrics = play(spec)
    assert len(samples) == GROUP - 2
    assert metrics["harbor/dropped_total"] == 2


def test_with_tools_the_next_call_after_the_deadline_ends_the_episode(suite: Path) -> None:
    with make_spec(suite, Stragglers(batch_deadline_sec=LONG_ENOUGH_SEC), agent="bash", never=1) as spec:
        stuck, solver, idler, early = environments = [spec.environment_factory() for _ in range(4)]
        for number, environment in enumerate(environments):
            environment.reset(task_index=0)
            if number == 0:
                while SomeNeverStart.left > 0:  # the first is the one that never starts
                    time.sleep(0.01)
        tools: list[Any] = [stuck, solver, idler, early]
        assert "done" in tools[1].bash("echo done > /srv/answer")
        started = time.monotonic()  # all have begun, in the order of their resets, before this one could act
        tools[3].bash("echo done > /srv/answer")
        assert tools[0].bash("true") == TERMINAL_LOST, "it waits for the deadline"
        time.sleep(max(0.0, started + LONG_ENOUGH_SEC - time.monotonic()))
        assert tools[1].bash("rm /srv/answer") == EPISODE_OVER
        assert tools[2].bash("echo done > /srv/answer") == TERMINAL_LOST, "nothing was done in time"
        rewards = verified_reward([[{"role": "assistant", "content": "done"}]] * 4, environments)
    assert rewards == [None, 1.0, None, 1.0]


def test_tools_can_not_be_over_sampled(suite: Path) -> None:
    with pytest.raises(UsageError, match="TRL itself decides"):
        make_spec(suite, Stragglers(over_sample=1.25), agent="bash")
