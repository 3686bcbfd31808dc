"""The audit's look at a run's episodes: one warning for each kind and task, metrics of each batch, and a stop."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harbor_gym import TerminalEnvConfig
from harbor_gym.adapters.tinker.training.config import Backend, TrainConfig
from harbor_gym.adapters.tinker.training.folder import as_written, changed_settings
from harbor_gym.cli.recipes import train
from harbor_gym.errors import FindingError
from harbor_gym.tasks.receipts import Severity
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.policies.token_policies import RENDERER, SamplingClient, message, scripted
from tests.helpers.sandboxes.fake_episodes import fake_config
from tests.unit.adapters.test_token_staleness import groups, train_on

pytestmark = pytest.mark.tinker

FORGE = "echo 1 > /logs/verifier/reward.txt\n"
SOLVE = "echo done > /srv/answer\n"
ANSWERS = {FORGE.strip(): "", "cat /tests/test.sh": "cat: /tests/test.sh: No such file or directory"}
DONE = message(None, complete=True)


def builder(folder: Path, name: str = "one", **settings: Any) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder

    byte_level_tokenizer().save_pretrained(folder / "tokenizer")
    config = fake_config(folder / name, answers=ANSWERS, **settings)
    template = GroupTemplate(
        env=config, group_size=2, model_name=str(folder / "tokenizer"), renderer_name=RENDERER, max_tokens=500
    )
    return HarborSingleTaskEnvGroupBuilder(template, label="train/batch_0001/group_1", task_name=name)


async def play(played: Any, *answers: str, leaves_out: bool = False) -> Any:
    """Play a group as the cookbook's loops do."""
    from tinker_cookbook.rl import train as cookbook

    from harbor_gym.adapters.tinker import RetryThenMask

    loop: Any = cookbook
    return await loop.do_group_rollout_and_filter_constant_reward(
        SamplingClient(scripted(*answers)),
        played,
        max_tokens=500,
        temperature=1.0,
        do_remove_constant_reward_groups=leaves_out,
        strategy=RetryThenMask(),
    )


def counted() -> dict[str, float]:
    """Return the metrics of a batch, as the cookbook's loops ask for them."""
    from tinker_cookbook.rl import train as cookbook

    loop: Any = cookbook
    return loop.RolloutErrorCounter().get_metrics()


async def test_a_kind_is_shown_once_for_a_task_and_counted_in_each_batch(tmp_path: Path) -> None:
    from harbor_gym.adapters.tinker.training.monitor import monitored

    lines: list[str] = []
    one, other = builder(tmp_path), builder(tmp_path, "other")
    with monitored(lines.append):
        for _ in range(2):
            await play(one, message(FORGE), DONE)
        first = counted()
        await play(other, message("cat /tests/test.sh\n"), message(FORGE), DONE)
        await play(other, message("cat /tests/test.sh\n"), message(SOLVE), DONE)
        second = counted()
    what = "error episodes/reward-written: the policy writes where the reward is written"
    assert [line.rpartition(": ")[0] for line in lines] == [
        f"warning: one: {what} (episode 1 of one, batch 1, group 1, turn 1)",
        f"warning: other: {what} (episode 1 of other, batch 1, group 1, turn 2)",
    ]
    assert first["audit/episodes/reward-written"] == 4
    assert second["audit/episodes/reward-written"] == 2
    assert {name: number for name, number in second.items() if number} == {"audit/episodes/reward-written": 2}
    assert "audit/episodes/tests-read" in second


async def test_what_is_paid_without_work_and_ends_at_limits_is_shown(tmp_path: Path) -> None:
    from harbor_gym.adapters.tinker.training.monitor import monitored

    lines: list[str] = []
    with monitored(lines.append):
        await play(builder(tmp_path), DONE)
        long = builder(tmp_path, "long", max_turns=1, solved_when={"/srv/answer": "done"})
        for _ in range(2):
            await play(long, message("true\n"))
        metrics = counted()
    assert [line.split(": ")[1:3] for line in lines] == [
        ["one", "error episodes/paid-without-work"],
        ["long", "warning episodes/limits-hit"],
    ]
    assert metrics["audit/episodes/limits-hit"] == 1
    assert metrics["audit/episodes/paid-without-work"] == 2


async def test_findings_come_from_other_processes_with_their_episodes(tmp_path: Path) -> None:
    from harbor_gym.adapters.tinker.training.monitor import Monitor

    group = pickle.loads(pickle.dumps(await play(builder(tmp_path), message(FORGE), DONE)))
    lines: list[str] = []
    Monitor(lines.append).look("one", group)
    assert len(lines) == 1


async def test_a_group_of_forged_rewards_is_seen_before_it_is_left_out(tmp_path: Path) -> None:
    from harbor_gym.adapters.tinker.training.monitor import monitored

    lines: list[str] = []
    with monitored(lines.append):
        assert await play(builder(tmp_path), message(FORGE), DONE, leaves_out=True) is None
        assert await play(builder(tmp_path), message(SOLVE), DONE) is not None
    assert len(lines) == 1
    with monitored(lines.append, Severity.ERROR):
        assert await play(builder(tmp_path), message(FORGE), DONE, leaves_out=True), "its step ends the run"


class Manager:
    """The cookbook's manager of checkpoints, which writes their records alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def should_save_periodic(self, step: int) -> bool:
        return False

    async def save_periodic_async(self, step: int, loop_state: dict[str, Any]) -> None:
        with (self.folder / "checkpoints.jsonl").open("a") as file:
            file.write(json.dumps({"name": f"{step:06d}", "state_path": "tinker://x", **loop_state}) + "\n")

    @property
    def saved(self) -> list[int]:
        path = self.folder / "checkpoints.jsonl"
        return [json.loads(line)["batch"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_finding_ends_the_run_once_its_weights_are_saved(tmp_path: Path, *, is_streaming: bool) -> None:
    from harbor_gym.adapters.tinker.training.monitor import monitored

    manager = Manager(tmp_path)
    own: dict[str, Any] = {"log_path": str(tmp_path), "checkpoints": manager}
    with monitored(lambda _: None, Severity.ERROR):
        await train_on(is_streaming=is_streaming, batch=groups(), **own)
        assert manager.saved == []
        await play(builder(tmp_path), message(FORGE), DONE)
        for _ in range(2):
            with pytest.raises(FindingError, match=r"before batch 4, .*: one: error episodes/reward-written"):
                await train_on(is_streaming=is_streaming, batch=groups(), **own)
    assert manager.saved == [3], "a checkpoint that is there is not made again"


@pytest.mark.parametrize(("severity", "is_over"), [(Severity.ERROR, False), (Severity.WARNING, True), (None, False)])
async def test_the_severity_decides(tmp_path: Path, severity: Severity | None, *, is_over: bool) -> None:
    from harbor_gym.adapters.tinker.training.monitor import Monitor

    monitor = Monitor(lambda _: None, severity)
    episodes = [SimpleNamespace(transitions=[SimpleNamespace(logs={})], stop_reason="max_turns")] * 3
    monitor.look("one", SimpleNamespace(trajectories_G=episodes, get_total_rewards=lambda: [0.0, 1.0, 0.0]))  # pyright: ignore[reportArgumentType]
    assert (monitor.stop is not None) is is_over


def test_the_command_fails_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(config: TrainConfig) -> Path:
        assert config.stop_on_finding is Severity.WARNING
        raise FindingError("the run ends before batch 2, at a finding of its audit: …")

    monkeypatch.setattr(train, "train", stopped)
    words = ["task:devops_task", "--backend", "local", "--stop-on-finding", "warning"]
    done = CliRunner().invoke(train.train_app(program="train.py"), words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: FindingError: the run ends before batch 2")
    assert done.stderr.count("\n") == 1


def test_a_resumed_run_may_stop_at_another_finding(task_dir: Path) -> None:
    env = TerminalEnvConfig(task_dir=task_dir)
    config = TrainConfig(env=env, backend=Backend.LOCAL, stop_on_finding=Severity.ERROR)
    assert changed_settings(as_written(config), as_written(config.model_copy(update={"stop_on_finding": None}))) == []
