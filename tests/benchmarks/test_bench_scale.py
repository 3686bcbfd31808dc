"""Many sandboxes at once and many episodes in a row: the benchmarks run, and notice losses and leaks."""

import json
from pathlib import Path
from typing import Any, override

import pytest

from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.testing import FakeEnvironment
from tests.benchmarks.memory import measure_idle_memory
from tests.benchmarks.scale import SoakReport, bench_scale, bench_soak, holdings
from tests.benchmarks.scale.holdings import Holdings, take_holdings
from tests.benchmarks.scale.soak import format_soak
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.sandboxes.fake_episodes import FAKE, fake_config
from tests.helpers.sandboxes.local import make_sandbox, running

HERE = __name__


class SeventhDoesNotStart(FakeEnvironment):
    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SeventhDoesNotStart.made += 1
        super().__init__(*args, **kwargs, fail={"start": 1} if SeventhDoesNotStart.made == 7 else {})


class LeavesDescriptors(FakeEnvironment):
    kept: list[Any] = []  # noqa: RUF012 - of the class on purpose: it leaks

    @override
    async def stop(self, delete: bool) -> None:
        self.kept.append(Path("/dev/null").open(encoding="utf-8"))  # noqa: SIM115, ASYNC230 - likewise
        await super().stop(delete)


@pytest.mark.usefixtures("nothing_left")
async def test_a_fleet_is_live_at_once_and_gone_afterwards() -> None:
    report = await bench_scale(FAKE, sandboxes=40, starts_at_once=8)
    assert (report.sandboxes, report.lost, report.left, report.is_right) == (40, 0, (), True)
    assert 0 < report.first_prompt_p50_sec <= report.first_prompt_p99_sec <= report.live_sec
    assert 0 < report.answer_p50_ms <= report.answer_p99_ms


async def test_a_sandbox_that_does_not_start_is_lost() -> None:
    SeventhDoesNotStart.made = 0
    report = await bench_scale(f"{HERE}:SeventhDoesNotStart", sandboxes=10)
    assert (report.lost, report.is_right) == (1, False)


async def test_what_is_left_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "_SETTLE_SEC", 0.5)  # nothing settles
    try:
        report = await bench_scale(f"{HERE}:LeavesDescriptors", sandboxes=5)
        assert report.left
        assert "descriptors" in report.left[0]
        soak = await bench_soak(f"{HERE}:LeavesDescriptors", episodes=20, at_once=4, trouble_share=0.0)
        assert not soak.is_right
        assert "descriptors" in soak.left[0]
    finally:
        for file in LeavesDescriptors.kept:
            file.close()


@pytest.mark.local
async def test_a_sandboxs_network_descriptors_and_groups_are_held(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path / "first")):
        before = take_holdings()
        async with running(make_sandbox(tmp_path / "second")):
            held = take_holdings()
    assert held.networks == before.networks + 1
    assert held.descriptors_below > before.descriptors_below
    assert held.groups > before.groups or not cgroups.places()


@pytest.mark.usefixtures("nothing_left")
async def test_every_troubled_episode_is_accounted_for() -> None:
    done: list[int] = []
    report = await bench_soak(FAKE, episodes=120, at_once=8, trouble_share=0.5, on_progress=done.append)
    assert report.unaccounted == 0
    assert done == list(range(1, 121))
    assert sum(report.outcomes.values()) == 120
    assert report.outcomes["killed: sandbox_lost"] > 0
    assert report.outcomes["full_disk: verifier_error"] > 0
    assert report.outcomes["none: completed"] > 40
    assert len(report.samples) == 10
    assert report.left == ()


def test_a_soak_is_shown_with_its_outcomes_below_one_another() -> None:
    outcomes = {"killed: sandbox_lost": 2, "none: completed": 118}
    report = SoakReport("local", 120, 8, 3.5, outcomes, 0, [], ("3 processes, were 2",), 0.25)
    assert format_soak(report).splitlines() == [
        "env                     local",
        "episodes                120",
        "at_once                 8",
        "wall_sec                3.5",
        "unaccounted             0",
        "  killed: sandbox_lost  2",
        "  none: completed       118",
        "growth                  0.25 KiB an episode",
        "left                    3 processes, were 2",
    ]


def test_holdings_are_compared_but_for_memory() -> None:
    before = Holdings(1, 1, 10, 5, 2, 0, 0)
    assert Holdings(9, 9, 10, 4, 2, 0, 0).exceeds(before) == []
    assert Holdings(1, 1, 10, 5, 2, 0, 0, 1, 2, 3).exceeds(before) == [
        "1 descriptors_below, were 0", "2 networks, were 0", "3 groups, were 0",
    ]  # fmt: skip
    assert Holdings(1, 1, 11, 5, 3, 0, 0).exceeds(before) == ["11 descriptors, were 10", "3 processes, were 2"]


async def test_idle_memory_is_what_one_more_sandbox_holds(tmp_path: Path) -> None:
    idle = await measure_idle_memory(fake_config(tmp_path / "task"), count=20)
    assert (idle.count, idle.files_bytes) == (20, 0)
    assert idle.below_bytes < 1 << 20, "a fake sandbox has no process; children of earlier tests change their shares"
    assert idle.host_bytes < 4 << 20


@pytest.mark.local
@pytest.mark.slow
def test_local_sandboxes_by_the_command() -> None:
    done = run_benchmark("scale", "--env", "local", "--sandboxes", "6", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["lost"], report["left"]) == (0, 0, [])
    assert report["below_mib"] > 1
    done = run_benchmark("soak", "--episodes", "20", "--at-once", "4", "--trouble", "0.6", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["unaccounted"], report["left"]) == (0, 0, [])
