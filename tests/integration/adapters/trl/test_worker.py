"""The rollout worker of AsyncGRPO without a trainer: its process, its end, and the loss of every episode."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym import Sample
from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.trl import HarborRolloutWorker, HarborSpec
from harbor_gym.adapters.trl.groups import GroupPlayer
from harbor_gym.config import require_own_loop
from harbor_gym.errors import HarborGymError, SandboxStartError, UsageError
from harbor_gym.pool import close_shared_pools, shared_pool
from harbor_gym.testing import write_tiny_task
from tests.contract.players.episode import Script
from tests.helpers.chats.code_points import CodePoints
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC, wait_until
from tests.helpers.policies import typists
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, message
from tests.helpers.tasks import DONE, write_steps, write_task

if TYPE_CHECKING:
    from harbor_gym.adapters.trl.layout import AsyncGRPOConfig  # seconds to import

pytestmark = pytest.mark.usefixtures("nothing_left")

GROUP = 4
FORMAT_AGENT = "tests.helpers.gateway.format_agent:FormatAgent"
SETTINGS: dict[str, Any] = {"agent": "terminal", "action_format": "keystrokes", "confirm_task_complete": False}
SOLVED = {"solved_when": {"/srv/answer": "done"}}
START_LIMIT_SEC = PATIENCE_SEC
Typist = functools.partial(typists.Typist, tokenizer=CodePoints)


def config(**settings: Any) -> "AsyncGRPOConfig":
    from harbor_gym.adapters.trl.layout import AsyncGRPOConfig

    merged: dict[str, Any] = {"per_device_train_batch_size": GROUP, "num_generations": GROUP, **settings}
    return AsyncGRPOConfig(output_dir="unused", use_cpu=True, bf16=False, gradient_checkpointing=False, **merged)


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[HarborSpec]:
    """A suite of two tasks in fake sandboxes."""
    for name in ("one", "two"):
        write_tiny_task(tmp_path / "suite" / name)
    with HarborSpec(tmp_path / "suite", sandbox=FAKE, sandbox_options=SOLVED, **SETTINGS) as made:
        yield made


def make_worker(spec: HarborSpec, sampler: Any = None, **settings: Any) -> HarborRolloutWorker:
    sampler = functools.partial(contextlib.nullcontext, sampler or Typist())
    return spec.rollout_worker(config(), CodePoints(), model="policy", sampler=sampler, **settings)


async def ignore(sample: object) -> None:
    return None


def play(worker: HarborRolloutWorker, groups: int, metrics: list[Any] | None = None, version: int = 1) -> list[Any]:
    """Play groups in this process, one after the other; return their samples."""

    async def run() -> list[Any]:
        report = [].append if metrics is None else metrics.append
        player = GroupPlayer(worker.plan, emit=ignore, report=report, version=lambda: version)
        async with worker.plan.open_sampler() as sampler:
            return [sample for number in range(groups) for sample in await player.play(number, sampler)]

    return get_portal().call(run)


def wait_for(worker: HarborRolloutWorker, count: int) -> list[Any]:
    """Return so many of the process's samples."""
    deadline, samples = time.monotonic() + START_LIMIT_SEC, list[Any]()
    while len(samples) < count:
        worker.check_health(START_LIMIT_SEC)
        assert time.monotonic() < deadline, "no sample came"
        if worker.rollout_buffer.empty():
            time.sleep(0.05)
        else:
            samples.append(worker.rollout_buffer.get())
    return samples


def test_samples_of_the_rollout_process(spec: HarborSpec) -> None:
    worker = make_worker(spec)
    worker.update_model_version(3)
    worker.start()
    try:
        samples = wait_for(worker, 2 * GROUP)
        worker.update_model_version(4)
        later = wait_for(worker, 8 * GROUP)
    finally:
        worker.stop()
    groups = Counter(sample.group_id for sample in (*samples, *later))
    assert set(groups.values()) >= {GROUP}, "a group's samples are complete"
    assert set(groups) >= {0, 1, 2, 3}
    assert {(sample.model_version, sample.metrics["reward"], sample.advantage) for sample in samples} == {(3, 1.0, 0.0)}
    assert later[-1].model_version == 4
    for sample in samples:
        assert sample.completion_mask.sum() > 0
        assert not sample.old_log_probs[sample.completion_mask == 0].any()
        assert set(sample.old_log_probs[sample.completion_mask == 1]) == {-0.5}
        assert [message["role"] for message in sample.completion] == ["assistant", "user", "assistant"]
        assert CodePoints().decode(sample.input_ids).startswith("<|im_start|>system")
    assert worker.metrics_queue.get()["harbor/lost"] == (0.0, GROUP)
    worker.stop()


@pytest.mark.parametrize(("limit", "is_first_trained", "version"), [(None, True, 3), (2, True, 3), (1, False, 4)])
def test_weights_that_change_in_the_middle_of_an_episode(
    spec: HarborSpec, limit: int | None, is_first_trained: bool, version: int
) -> None:
    """The trainer makes two steps while the first answers of the group are sampled."""
    asked, all_asked = 0, asyncio.Event()

    class Slow(typists.Typist):
        async def __call__(self, prompt: Sequence[int]) -> Sample:
            nonlocal asked
            asked += 1
            if asked == GROUP:
                all_asked.set()
            await all_asked.wait()
            return await super().__call__(prompt)

    metrics: list[Any] = []
    plan = make_worker(spec, max_token_staleness=limit).plan

    async def run() -> list[Any]:
        player = GroupPlayer(plan, emit=ignore, report=metrics.append, version=lambda: 3 if asked < GROUP else 5)
        return await player.play(0, Slow(tokenizer=CodePoints))

    samples = get_portal().call(run)
    first, second = (len(CodePoints().encode(text)) + 1 for text in ("echo done > /srv/answer\n", "<task_complete/>"))
    assert [sample.completion_mask.sum() for sample in samples] == [first * is_first_trained + second] * GROUP
    assert {sample.model_version for sample in samples} == {version}
    behind = {name: count for name, count in metrics[0].items() if "behind" in name}
    assert behind == {"rollout/tokens_2_behind_total": first * GROUP, "rollout/tokens_0_behind_total": second * GROUP}


def test_an_agents_episode_is_a_sample_for_each_of_its_sequences(tmp_path: Path) -> None:
    task, script = write_steps(tmp_path / "task"), Script((message(DONE), COMPLETE))
    agent: dict[str, Any] = {"agent": FORMAT_AGENT, "agent_options": {"base_url": "{gateway_url}"}}
    with HarborSpec(task, sandbox=FAKE, sandbox_options=SOLVED, **agent) as spec:
        opened = functools.partial(contextlib.nullcontext, script)
        samples = play(spec.rollout_worker(config(), typists.tokenizer(), model="policy", sampler=opened), 1)
    assert len(samples) == 2 * GROUP, "Harbor runs an agent anew in each step"
    assert {(sample.metrics["reward"], sample.advantage, sample.group_id) for sample in samples} == {(1.0, 0.0, 0)}
    assert all(sample.completion_mask.sum() > 0 for sample in samples)


@pytest.mark.usefixtures("spec")
def test_each_task_has_its_warm_pool(tmp_path: Path) -> None:
    with HarborSpec(tmp_path / "suite", sandbox=FAKE, sandbox_options=SOLVED, pool_size=2, **SETTINGS) as pooled:
        plan = make_worker(pooled).plan

    async def run() -> list[int]:
        player = GroupPlayer(plan, emit=ignore, report=[].append, version=lambda: 1)
        for number in range(4):
            assert len(await player.play(number, Typist())) == GROUP
        tasks = (plan.episode.model_copy(update={"task_dir": task}) for task in plan.task_dirs)
        counts = [shared_pool(require_own_loop(task, "a pool"), size=1).counts for task in tasks]
        await close_shared_pools()
        return [pool.hits + pool.misses for pool in counts]

    assert get_portal().call(run) == [2 * GROUP] * 2


def test_advantages_are_trls(spec: HarborSpec) -> None:
    class First(typists.Typist):
        asked = 0

        async def __call__(self, prompt: Sequence[int]) -> Sample:
            First.asked += 1
            return await Typist(solves=First.asked == 1).__call__(prompt)

    worker = make_worker(spec)
    first = First(tokenizer=CodePoints)
    plan = worker.plan

    async def run() -> list[Any]:
        return await GroupPlayer(plan, emit=ignore, report=[].append, version=lambda: 1).play(0, first)

    rewards = {sample.metrics["reward"]: sample for sample in get_portal().call(run)}
    assert set(rewards) == {0.0, 1.0}
    assert rewards[1.0].advantage == pytest.approx(3**0.5, rel=1e-6), "one of four: (1 - 1/4) / (sqrt(3) / 4)"
    assert rewards[0.0].advantage == pytest.approx(-(3**-0.5), rel=1e-6)
    assert rewards[0.0].metrics["reward_std"] == pytest.approx(3**0.5 / 4)


def test_groups_that_are_lost_whole_raise(tmp_path: Path) -> None:
    task = write_tiny_task(tmp_path / "task")
    options = {"fail": {"start": 1}}
    with HarborSpec(task, sandbox=FAKE, sandbox_options=options, max_retries=0, **SETTINGS) as spec:
        metrics: list[Any] = []
        assert play(make_worker(spec, max_lost_groups=3), 2, metrics) == []
        assert metrics[1]["harbor/lost"] == (GROUP, GROUP)
        assert metrics[1]["harbor/sandbox_start_total"] == GROUP
        with pytest.raises(HarborGymError, match=r"3 groups of 4 episodes in a row .*sandbox_start: 4") as caught:
            play(make_worker(spec, max_lost_groups=3), 3)
        assert isinstance(caught.value.__cause__, SandboxStartError)
        worker = make_worker(spec, max_lost_groups=1)
        worker.start()
        try:
            with pytest.raises(HarborGymError, match="1 groups of 4 episodes in a row"):
                wait_for(worker, 1)
        finally:
            worker.stop()


def test_a_good_group_forgives_the_lost_ones_before_it(spec: HarborSpec) -> None:
    class Flaky(typists.Typist):
        group = 0

        async def __call__(self, prompt: Sequence[int]) -> Sample:
            if Flaky.group % 2:
                raise SandboxStartError("lost")
            return await super().__call__(prompt)

    plan, flaky = make_worker(spec, max_lost_groups=2).plan, Flaky(tokenizer=CodePoints)

    async def run() -> list[int]:
        player = GroupPlayer(plan, emit=ignore, report=[].append, version=lambda: 1)
        sizes: list[int] = []
        for Flaky.group in range(6):
            sizes.append(len(await player.play(Flaky.group, flaky)))
        return sizes

    assert get_portal().call(run) == [GROUP, 0, GROUP, 0, GROUP, 0]


def test_what_cant_be_sent_to_the_process_is_refused(spec: HarborSpec) -> None:
    async def local(prompt: Sequence[int]) -> Sample:
        return Sample([])

    with pytest.raises(UsageError, match="must pickle"):
        make_worker(spec, local)
    with pytest.raises(UsageError, match="max_lost_groups must be at least 1"):
        make_worker(spec, max_lost_groups=0)


@pytest.mark.parametrize(
    ("settings", "groups", "queued"),
    [
        ({}, 4, 16),
        ({"max_staleness": 0}, 1, 4),
        ({"max_staleness": 2, "gradient_accumulation_steps": 3}, 6, 24),
        ({"max_inflight_tasks": 9}, 2, 16),
        ({"max_inflight_tasks": 1, "queue_maxsize": 6}, 1, 6),
    ],
)
def test_how_many_at_once_is_the_trainers_setting(settings: dict[str, Any], groups: int, queued: int) -> None:
    from harbor_gym.adapters.trl.async_settings import groups_at_once, queue_size

    args = config(**settings)
    assert (groups_at_once(args), queue_size(args)) == (groups, queued)


PROGRAM = """\
import sys, time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
if __name__ == "__main__":  # the rollout process imports this file
    from tests.helpers.patience import PATIENCE_SEC, wait_until
    from tests.integration.adapters.trl.test_worker import SETTINGS, CodePoints, HarborSpec, Typist
    # What the worker reads of a trainer's configuration. TRL's own class takes seven seconds to import, and so does a
    # sample, here: none is taken out of the buffer. A tokenizer of transformers takes four, in both processes.
    settings = {"num_generations": 2, "max_inflight_tasks": 4, "max_completion_length": 100, "max_staleness": 1}
    settings |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "world_size": 1}
    settings |= {"queue_maxsize": 0, "chat_template_kwargs": None}
    with HarborSpec(sys.argv[1], sandbox="local", **SETTINGS) as spec:
        opened = partial(nullcontext, Typist())
        worker = spec.rollout_worker(SimpleNamespace(**settings), CodePoints(), model="policy", sampler=opened)
        worker.start()
        def has_sample():
            worker.check_health(PATIENCE_SEC)
            return not worker.rollout_buffer.empty()
        wait_until(has_sample)
        print("running", flush=True)
        time.sleep(100)
"""


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda item: item.name)
def test_every_end_of_the_trainer_ends_the_process_and_its_sandboxes(
    tmp_path: Path, scratch: Path, number: signal.Signals
) -> None:
    """Nothing hears SIGTERM in such a program: to what it leaves behind it is SIGKILL."""
    task, file = write_task(tmp_path / "task"), tmp_path / "program.py"
    file.write_text(PROGRAM)
    # Its end waits for the program alone, and not for its output, which a process that it leaves behind holds open.
    with subprocess.Popen(
        [sys.executable, str(file), str(task)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "running\n"
            (child,) = children(program.pid)
            program.send_signal(number)
            assert program.wait(PATIENCE_SEC) in (128 + number, -number)
        finally:
            program.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists())
    assert [path.name for path in scratch.iterdir() if path.name.startswith("harbor-gym")] == []


def children(pid: int) -> list[int]:
    """Return the rollout processes of a program."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in found if "spawn_main" in line]
