"""Groups rolled out in other processes, through the cookbook's own executor hook."""

import asyncio
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from harbor_gym import TerminalEnvConfig
from harbor_gym.errors import UsageError
from tests.token_policies import RENDERER, SamplingClient, message, scripted
from tests.tokenizers import byte_level_tokenizer

pytestmark = pytest.mark.tinker

GIVE_UP = message(None, complete=True)


@dataclass
class Client:
    """A sampling client that pickles, as Tinker's own does."""

    answers: tuple[str, ...]

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        return await SamplingClient(scripted(*self.answers)).sample_async(prompt, num_samples, sampling_params)


@pytest.fixture
def meeting(tmp_path: Path) -> Path:
    path = tmp_path / "meeting"
    path.mkdir()
    return path


@pytest.fixture
def no_executor() -> Iterator[None]:
    """Leave no executor and no worker behind."""
    yield
    from tinker_cookbook.rl.rollouts import set_rollout_executor

    set_rollout_executor(None)
    assert multiprocessing.active_children() == []


def make_builder(task_dir: Path, meeting: Path, processes: int) -> Any:
    from harbor_gym.tinker import HarborSingleTaskEnvGroupBuilder

    model_dir = task_dir.parent / "tokenizer"
    byte_level_tokenizer().save_pretrained(model_dir)
    config = TerminalEnvConfig(
        task_dir=task_dir,
        sandbox="tests.meeting_sandboxes:Meeting",
        sandbox_options={"place": str(meeting), "processes": processes},
    )
    return HarborSingleTaskEnvGroupBuilder(
        config=config, group_size=2, model_name=str(model_dir), renderer_name=RENDERER, max_tokens=500
    )


async def play(executor: Any, builder: Any, strategy: Any, *answers: str, groups: int = 2) -> list[Any]:
    """Roll out as the loop does with ``main(config, rollout_executor)``."""
    from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward, set_rollout_executor

    set_rollout_executor(executor)
    client: Any = Client(answers)
    rollouts = [
        do_group_rollout_and_filter_constant_reward(client, builder, 500, 1.0, False, False, strategy)
        for _ in range(groups)
    ]
    return await asyncio.gather(*rollouts)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["process", "ray"])
@pytest.mark.usefixtures("no_executor")
async def test_two_workers_play_two_groups_at_once(
    kind: Literal["process", "ray"], task_dir: Path, meeting: Path
) -> None:
    if kind == "ray":
        pytest.importorskip("ray", reason='pip install "harbor-gym[ray]"')
    from harbor_gym.tinker import RetryThenMask
    from harbor_gym.tinker.executors import rollout_executor

    strategy = RetryThenMask()
    with rollout_executor(kind, 2, strategy) as executor:
        groups = await play(executor, make_builder(task_dir, meeting, 2), strategy, GIVE_UP, GIVE_UP)
    assert [group.get_total_rewards() for group in groups] == [[1.0, 1.0]] * 2
    played_in = [{t.transitions[-1].metrics["verifier/process"] for t in group.trajectories_G} for group in groups]
    assert [len(processes) for processes in played_in] == [1, 1]
    assert len(set.union(*played_in)) == 2
    assert float(os.getpid()) not in set.union(*played_in)
    assert strategy.fault is None


@pytest.mark.usefixtures("no_executor")
async def test_a_bug_in_a_worker_is_the_runs(task_dir: Path, meeting: Path) -> None:
    from harbor_gym.tinker import RetryThenMask
    from harbor_gym.tinker.executors import rollout_executor

    strategy = RetryThenMask()
    with pytest.raises(IndexError), rollout_executor("process", 1, strategy) as executor:
        await play(executor, make_builder(task_dir, meeting, 1), strategy, message("true\n"), groups=1)
    assert isinstance(strategy.fault, IndexError)


@pytest.mark.usefixtures("no_executor")
async def test_a_run_that_fails_interrupts_its_workers(task_dir: Path, meeting: Path) -> None:
    from harbor_gym.tinker import RetryThenMask
    from harbor_gym.tinker.executors import rollout_executor

    strategy = RetryThenMask()
    played: list[asyncio.Future[Any]] = []

    async def fail_while_a_group_is_played() -> None:
        with rollout_executor("process", 1, strategy) as executor:
            # Nobody else will come to this meeting.
            builder = make_builder(task_dir, meeting, 2)
            played.append(asyncio.ensure_future(play(executor, builder, strategy, groups=1)))
            while not any(meeting.iterdir()):  # noqa: ASYNC110, ASYNC240 - another process sends no event
                await asyncio.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_a_group_is_played()
    with pytest.raises(InterruptedError):
        await played[0]
    assert strategy.fault is None


def test_copies_of_a_strategy_are_one_in_the_process_they_come_to() -> None:
    from harbor_gym.tinker import RetryThenMask

    strategy = RetryThenMask(max_retries=2, seed=3, temperature=0.0)
    first, second = (pickle.loads(pickle.dumps(strategy)) for _ in range(2))
    assert first == strategy
    assert first is second
    assert first is not pickle.loads(pickle.dumps(RetryThenMask(max_retries=2, seed=3, temperature=0.0)))


def test_no_workers_are_refused() -> None:
    from harbor_gym.tinker import RetryThenMask
    from harbor_gym.tinker.executors import rollout_executor

    with pytest.raises(UsageError, match="at least 1 worker"), rollout_executor("process", 0, RetryThenMask()):
        pass
