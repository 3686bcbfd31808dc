"""Groups rolled out in other processes, through the cookbook's own executor hook."""

import asyncio
import dataclasses
import json
import multiprocessing
import os
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.stragglers import Stragglers
from harbor_gym.types import ExecutorKind
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.cluster.nodes import ray_of_its_own
from tests.helpers.policies.token_policies import RENDERER, SamplingClient, message, scripted

pytestmark = pytest.mark.tinker

GIVE_UP = message(None, complete=True)


@dataclass
class Client:
    """A sampling client that pickles, as Tinker's own does."""

    answers: tuple[str, ...]

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        return await SamplingClient(scripted(*self.answers)).sample_async(prompt, num_samples, sampling_params)


@pytest.fixture
def no_executor() -> Iterator[None]:
    """Leave no executor and no worker behind."""
    yield
    from tinker_cookbook.rl.rollouts import set_rollout_executor

    set_rollout_executor(None)
    assert multiprocessing.active_children() == []


@pytest.fixture(params=list(ExecutorKind))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutorKind]:
    """Each kind of executor, Ray in an environment of its own."""
    if request.param is ExecutorKind.PROCESS:
        yield request.param
        return
    pytest.importorskip("ray", reason='pip install "harbor-gym[ray]"')
    with ray_of_its_own() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield request.param


def make_builder(task_dir: Path, meeting: Path, processes: int) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    model_dir = task_dir.parent / "tokenizer"
    byte_level_tokenizer().save_pretrained(model_dir)
    config = TerminalEnvConfig(
        task_dir=task_dir,
        sandbox="tests.helpers.sandboxes.meeting:Meeting",
        sandbox_options={"place": str(meeting), "processes": processes},
    )
    return HarborSingleTaskEnvGroupBuilder(
        GroupTemplate(env=config, group_size=2, model_name=str(model_dir), renderer_name=RENDERER, max_tokens=500)
    )


async def play(
    executor: Any, builder: Any, strategy: Any, *answers: str, groups: int = 2, client: Any = None
) -> list[Any]:
    """Roll out as the loop does with ``main(config, rollout_executor)``."""
    from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward, set_rollout_executor

    set_rollout_executor(executor)
    client = client or Client(answers)
    rollouts = [
        do_group_rollout_and_filter_constant_reward(client, builder, 500, 1.0, False, False, strategy)
        for _ in range(groups)
    ]
    return await asyncio.gather(*rollouts)


@pytest.mark.usefixtures("no_executor")
async def test_workers_play_at_once_stop_stragglers_and_have_stocks_until_a_bug_in_one_ends_the_run(
    kind: ExecutorKind, task_dir: Path, tmp_path: Path
) -> None:
    """One pair of workers, whose start takes most of the time, shows all four."""
    from harbor_gym.adapters.tinker import RetryThenMask
    from harbor_gym.adapters.tinker.executors import rollout_executor

    met, alone = tmp_path / "met", tmp_path / "alone"
    met.mkdir()
    alone.mkdir()
    strategy = RetryThenMask()
    options: dict[str, Any] = {} if kind is ExecutorKind.PROCESS else {"output_dir": tmp_path / "run"}
    played: list[asyncio.Future[Any]] = []

    async def run() -> None:
        with rollout_executor(kind, 2, strategy, sandboxes_per_worker=4, **options) as executor:
            groups = await play(executor, make_builder(task_dir, met, 2), strategy, GIVE_UP, GIVE_UP)
            expect_two_workers(groups)
            kept = tmp_path / "run" / "transcripts"
            await expect_stragglers(executor, make_builder(task_dir, met, 1), kept)
            await expect_stocks(executor, make_builder(task_dir, met, 2), strategy)
            assert names_in(tmp_path, "running-*"), "a stock outlives the groups"
            assert strategy.fault is None
            # Nobody else will come to this meeting; meanwhile the other worker's policy runs out of answers.
            waiting = make_builder(task_dir, alone, 2)
            played.append(asyncio.ensure_future(play(executor, waiting, strategy, groups=1)))
            while not any(alone.iterdir()):  # noqa: ASYNC110 - another process sends no event
                await asyncio.sleep(0.01)
            await play(executor, make_builder(task_dir, met, 1), strategy, message("true\n"), groups=1)

    with pytest.raises(IndexError):
        await run()
    with pytest.raises(InterruptedError):
        await played[0]
    assert isinstance(strategy.fault, IndexError), "the bug is the run's fault, the interruption is not"
    assert names_in(tmp_path, "running-*") == []


async def expect_stocks(executor: Any, builder: Any, strategy: Any) -> None:
    """Play batches until both workers' groups begin in sandboxes that were ready."""
    from harbor_gym.adapters.tinker import HarborSingleTaskRLDataset

    builder = dataclasses.replace(builder, warm_sandboxes=4)
    dataset = HarborSingleTaskRLDataset(builder, groups_per_batch=2, num_batches=20, split="train", workers=2)
    hits = list[list[float]]()
    while len(hits) < len(dataset) and not (hits and all(hits[-1])):
        groups = dataset.get_batch(len(hits))
        answers = [play(executor, group, strategy, GIVE_UP, GIVE_UP, groups=1) for group in groups]
        trajectories = [group.trajectories_G for (group,) in await asyncio.gather(*answers)]
        hits.append([t.transitions[0].metrics["pool/hit"] for group in trajectories for t in group])
    assert all(hits[-1]), hits


def expect_two_workers(groups: list[Any]) -> None:
    assert [group.get_total_rewards() for group in groups] == [[1.0, 1.0]] * 2
    played_in = [{t.transitions[-1].metrics["verifier/process"] for t in group.trajectories_G} for group in groups]
    assert [len(processes) for processes in played_in] == [1, 1]
    assert len(set.union(*played_in)) == 2
    assert float(os.getpid()) not in set.union(*played_in)


@dataclass
class Hanging(Client):
    """A client whose answers to so many second prompts, the first ones, never come."""

    hanging: int

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        tokenizer = byte_level_tokenizer()
        if tokenizer.decode(prompt.to_ints()).count("<|im_start|>assistant") == 2:
            self.hanging -= 1
            if self.hanging >= 0:
                await asyncio.Event().wait()
        return await super().sample_async(prompt, num_samples, sampling_params)


async def expect_stragglers(executor: Any, builder: Any, kept: Path) -> None:
    """What a worker drops or cuts is stopped there, and its transcript is brought."""
    from harbor_gym.adapters.tinker import RetryThenMask

    strategies = {
        "dropped": RetryThenMask(stragglers=Stragglers(over_sample=2)),
        "cut": RetryThenMask(stragglers=Stragglers(batch_deadline_sec=8)),
    }
    for label, strategy in strategies.items():
        template = dataclasses.replace(builder.template, transcripts_dir=kept)
        group = dataclasses.replace(builder, template=template, label=label)
        client: Any = Hanging((message("true\n"), GIVE_UP, GIVE_UP), 2 if label == "dropped" else 1)
        (played,) = await play(executor, group, strategy, groups=1, client=client)
        assert played.get_total_rewards() == [1.0, 1.0]
        assert names_in(kept.parents[1], "running-*") == [], "while the worker lives"
    ends = {
        label: Counter(json.loads(path.read_text())["end_reason"] for path in (kept / label).glob("*.json"))
        for label in strategies
    }
    assert ends == {"dropped": {"completed": 2, "dropped": 2}, "cut": {"completed": 1, "batch_deadline": 1}}


def names_in(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.glob(pattern)]


def test_workers_keep_no_stock_of_many_tasks(task_dir: Path, tmp_path: Path) -> None:
    from harbor_gym.adapters.tinker import HarborRLDataset
    from harbor_gym.tasks import TaskOrder

    builder = make_builder(task_dir, tmp_path, 1)
    settings: dict[str, Any] = {"groups_per_batch": 1, "num_batches": 1, "split": "train", "workers": 2}
    with pytest.raises(UsageError, match="single task"):
        HarborRLDataset([builder] * 2, TaskOrder([1.0] * 2), warm_sandboxes=1, **settings)


def test_copies_of_a_strategy_are_one_in_the_process_they_come_to() -> None:
    from harbor_gym.adapters.tinker import RetryThenMask

    strategy = RetryThenMask(max_retries=2, seed=3, temperature=0.0)
    first, second = (pickle.loads(pickle.dumps(strategy)) for _ in range(2))
    assert first == strategy
    assert first is second
    assert first is not pickle.loads(pickle.dumps(RetryThenMask(max_retries=2, seed=3, temperature=0.0)))


def test_no_workers_are_refused() -> None:
    from harbor_gym.adapters.tinker import RetryThenMask
    from harbor_gym.adapters.tinker.executors import rollout_executor

    with (
        pytest.raises(UsageError, match="at least 1 worker"),
        rollout_executor(ExecutorKind.PROCESS, 0, RetryThenMask()),
    ):
        pass
