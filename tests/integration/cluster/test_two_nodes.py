"""Two Ray nodes with caches and temporary folders of their own: every episode once, also where a process is killed."""

import asyncio
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Set
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("ray") is None:
    pytest.skip('pip install "harbor-gym[ray]"', allow_module_level=True)

from harbor_gym import TerminalEnvConfig
from harbor_gym.checking.audit.run import AuditPlan, audit_tasks
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.cluster import ClusterExecutor, ClusterLimits
from harbor_gym.errors import SandboxLostError, SandboxStartError
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import find_tasks, resolve_tasks
from harbor_gym.tasks.receipts import read_receipts
from harbor_gym.testing import FakeEnvironment
from tests.helpers.cluster.groups import play_group, wait_and_note
from tests.helpers.cluster.nodes import SANDBOXES, Nodes, two_nodes
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC, wait_until
from tests.helpers.sandboxes.fake_episodes import fake_config
from tests.helpers.seeded_tasks import SEEDS, write_seed
from tests.helpers.tasks import write_task
from tests.integration.episode.test_kill import mounts

pytestmark = [pytest.mark.slow]

SIZE = 8
SOLVED: dict[str, Any] = {"solved_when": {"/srv/answer": "done"}}


class Slow(FakeEnvironment):
    """A sandbox that notes on its node that it was there, and gives the other node time to be there, too."""

    async def start(self, force_build: bool) -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(Path(tempfile.gettempdir(), "audited").touch)
        await super().start(force_build)


class KillsItsWorker(FakeEnvironment):
    """A sandbox that takes its process with it."""

    async def start(self, force_build: bool) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


def executor(output: Path, **limits: Any) -> ClusterExecutor:
    import ray

    settings: dict[str, Any] = {"max_workers": 2, "sandboxes_per_worker": SANDBOXES, "interrupt_timeout_sec": 30.0}
    settings |= limits
    return ClusterExecutor(ray, ClusterLimits(**settings), output_dir=output)


def expect_each_once(
    futures: list[Future[Any]], output: Path, groups: int, *, size: int = SIZE, rewards: Set[float] = frozenset({1.0})
) -> list[dict[str, Any]]:
    episodes = [episode for future in futures for episode in future.result(timeout=2 * PATIENCE_SEC)]
    names = Counter((episode["group"], episode["episode"]) for episode in episodes)
    assert names == {(f"group_{group}", number): 1 for group in range(groups) for number in range(size)}
    assert {episode["reward"] for episode in episodes} == rewards
    for future in futures:
        assert len({episode["process"] for episode in future.result()}) == 1, "a group is played in one place"
    written = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert written == {f"transcripts/{group}/episode_{number}.json" for group, number in names}
    return episodes


START_SEC = 240.0
"""Longest wait for workers of Ray, each of which imports all the rest."""


def leftovers(nodes: Nodes, name: str) -> list[str]:
    return sorted(path.name for path in nodes.tmp(name).glob("harbor-gym*"))


def test_nodes_share_an_audit(nodes: Nodes, tmp_path: Path) -> None:
    for number in range(4):
        write_task(tmp_path / f"tasks/t{number}", instruction=f"Write done into /srv/answer, which is {number}.\n")
    write_seed(tmp_path / "tasks/wrong", SEEDS["leak/tests"]["git"])
    tasks = asyncio.run(resolve_tasks(tmp_path / "tasks"))
    with executor(tmp_path / "none") as judging:  # a worker fills a node
        environment = environment_config(f"{__name__}:Slow", options=SOLVED)
        check = CheckPlan(environment, tmp_path / "trials", repeat=1, try_exploits=False)
        plan = AuditPlan(tmp_path / "audit", check, sandbox="slow", jobs=2, vary=False, executor=judging)
        receipts = asyncio.run(audit_tasks(tasks, plan)).receipts
    assert [Path(receipt.path) for receipt in receipts] == [task.path for task in tasks]
    assert {receipt.verdict for receipt in receipts} == {"unsolved"}  # the fake runs no solution
    assert "leak/tests" in {one.kind for one in receipts[-1].findings}
    assert read_receipts(tmp_path / "audit").keys() == {task.digest for task in tasks}
    assert not (tmp_path / "trials").exists()
    assert all((nodes.tmp(name) / "audited").exists() for name in ("first", "second"))


def test_nodes_share_the_groups_and_at_the_end_close_what_is_under_way(nodes: Nodes, tmp_path: Path) -> None:
    """One set of workers, whose start takes most of the time, shows both."""
    config = fake_config(tmp_path / "task", **SOLVED, delay_sec=0.05)
    pool = executor(tmp_path / "run", starts_per_sec=200.0, max_workers=3, sandboxes_per_worker=SIZE)
    futures = [pool.submit(play_group, config, f"group_{n}", tmp_path / "run" / "transcripts", SIZE) for n in range(8)]
    episodes = expect_each_once(futures, tmp_path / "run", 8)
    assert pool.granted_starts() == 8 * SIZE
    assert pool.reruns == 0
    used = {(episode["node"], episode["cache"], episode["task"]) for episode in episodes}
    assert {node for node, _, _ in used} == {str(nodes.tmp("first")), str(nodes.tmp("second"))}
    for node, cache, task in used:
        assert Path(cache) == Path(node).parent / "cache"
        assert Path(task).is_relative_to(cache)
    assert len({Path(task).parent.name for _, _, task in used}) == 1
    assert [leftovers(nodes, name) for name in ("first", "second")] == [[], []]

    slow = fake_config(tmp_path / "slow", **SOLVED, delay_sec=300.0)
    noting = pool.submit(wait_and_note, tmp_path)
    futures = [pool.submit(play_group, slow, f"group_{n}", tmp_path / "run", SIZE) for n in range(5)]
    # Three calls are under way, and two of them have made their folders.
    wait_until((tmp_path / "began").exists, limit_sec=START_SEC)
    wait_until(
        lambda: sum(len(leftovers(nodes, name)) // SIZE for name in ("first", "second")) >= 2, limit_sec=START_SEC
    )
    pool.shutdown(cancel_futures=True)
    assert [future.cancelled() for future in futures] == [False] * 2 + [True] * 3
    assert [type(future.exception()) for future in (noting, *futures[:2])] == [InterruptedError] * 3
    assert (tmp_path / "ended").exists(), "its process was killed"
    assert [leftovers(nodes, name) for name in ("first", "second")] == [[], []]


def test_a_call_that_kills_its_workers_fails_in_the_end(nodes: Nodes, tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", sandbox=f"{__name__}:KillsItsWorker")
    with executor(tmp_path / "run", max_workers=1, max_attempts=2) as pool:
        future = pool.submit(play_group, config, "group_0", tmp_path / "run", 1)
        with pytest.raises(SandboxLostError, match="lost its worker 2 times"):
            future.result(timeout=PATIENCE_SEC)
        idle = pool.submit(os.getpid).result(timeout=PATIENCE_SEC)
        os.kill(idle, signal.SIGKILL)
        assert pool.submit(os.getpid).result(timeout=PATIENCE_SEC) != idle
        assert pool.reruns == 1, "a worker that is lost while it is idle costs no call an attempt"
    assert [leftovers(nodes, name) for name in ("first", "second")] == [[], []]


def test_no_room_is_reported(nodes: Nodes, tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task")
    with executor(tmp_path / "run", sandboxes_per_worker=99, node_timeout_sec=1.0) as pool:
        future = pool.submit(play_group, config, "group_0", tmp_path / "run", 1)
        with pytest.raises(SandboxStartError, match="harbor_sandbox"):
            future.result(timeout=PATIENCE_SEC)


@pytest.mark.local
def test_24_episodes_of_two_tasks_survive_a_killed_node(nodes: Nodes, tmp_path: Path) -> None:
    """Each node has one worker and builds each image by itself: two of the shipped tasks show it."""
    before = mounts()
    configs = [TerminalEnvConfig(task_dir=task, sandbox="local") for task in find_tasks([ROOT / "tasks"])[:2]]
    assert len(configs) == 2
    expect_survival(nodes, tmp_path, configs, groups=6, size=SIZE // 2, rewards={0.0})
    wait_until(lambda: mounts() == before)


def expect_survival(
    nodes: Nodes, folder: Path, configs: list[TerminalEnvConfig], *, groups: int, size: int, rewards: Set[float]
) -> None:
    """Kill a node in the middle of some groups, and expect each of their episodes once."""
    transcripts = folder / "run" / "transcripts"
    with executor(folder / "run", max_workers=2, sandboxes_per_worker=2 * SIZE) as pool:  # a worker on each node
        futures = [
            pool.submit(play_group, configs[n % len(configs)], f"group_{n}", transcripts, size) for n in range(groups)
        ]
        wait_until(lambda: sum(future.done() for future in futures) >= groups // 4, limit_sec=START_SEC)
        wait_until(lambda: bool(leftovers(nodes, "second")))  # it is in the middle of some
        nodes.kill("second")
        episodes = expect_each_once(futures, folder / "run", groups, size=size, rewards=rewards)
        assert pool.reruns >= 1
        nodes.add("second")  # the machine returns; its leftovers are removed before it plays
        last = [pool.submit(play_group, configs[0], "again", folder / "other", 1) for _ in range(4)]
        wait_until(
            lambda: all(future.done() for future in last) and not leftovers(nodes, "second"), limit_sec=START_SEC
        )
    assert len(episodes) == groups * size
    assert [leftovers(nodes, name) for name in ("first", "second")] == [[], []]
