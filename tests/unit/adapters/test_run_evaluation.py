"""Evaluations during a run: greedy, each written down, the best of them named; and sampling that a run repeats."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import TerminalEnvConfig, report
from harbor_gym.adapters.tinker.policies import EvalConfig, checkpoint_address, find_policy, in_the_runs_format
from harbor_gym.errors import UsageError
from harbor_gym.evaluation import Evaluated, note_evaluation, read_best, read_evaluations
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.policies.token_policies import RENDERER, SamplingClient, message, scripted
from tests.helpers.tasks import DONE

GIVE_UP = message(None, complete=True)


def evaluated(batch: int, reward: float) -> Evaluated:
    return Evaluated(batch=batch, checkpoint=f"{batch:06d}", reward=reward, turns=2.0, episodes=4)


def test_the_best_has_the_highest_reward_and_of_equal_ones_is_the_earliest(tmp_path: Path) -> None:
    for batch, reward, best in ((0, 0.2, 0), (5, 0.7, 5), (10, 0.7, 5), (15, 0.6, 5)):
        assert note_evaluation(tmp_path, evaluated(batch, reward)).batch == best
    assert read_best(tmp_path) == evaluated(5, 0.7)
    # A resumed run evaluates a batch again: the newer result counts.
    assert note_evaluation(tmp_path, evaluated(5, 0.1)).batch == 10
    assert [item.batch for item in read_evaluations(tmp_path)] == [0, 5, 10, 15]


def test_eval_takes_the_best_checkpoint(tmp_path: Path) -> None:
    take = checkpoint_address
    with pytest.raises(UsageError, match="was not evaluated"):
        take(tmp_path, "best", "state_path")
    saved = [{"name": name, "state_path": f"tinker://run/weights/{name}"} for name in ("000005", "000010", "final")]
    (tmp_path / "checkpoints.jsonl").write_text("".join(json.dumps(item) + "\n" for item in saved))
    note_evaluation(tmp_path, evaluated(5, 0.7))
    note_evaluation(tmp_path, evaluated(10, 0.6))
    assert take(tmp_path, "best", "state_path") == "tinker://run/weights/000005"
    note_evaluation(tmp_path, Evaluated(batch=0, checkpoint="base", reward=1.0, turns=None, episodes=None))
    assert take(tmp_path, "best", "state_path") is None


def test_batches_that_are_done_again_are_forgotten_first(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    kept = [json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(2)]
    metrics.write_text("".join([*kept, *kept[1:], json.dumps({"step": 2}) + "\n", '{"step": 1, "half']))
    for batch in range(4):
        (tmp_path / f"transcripts/train/batch_{batch:04d}/group_0").mkdir(parents=True)
        (tmp_path / f"transcripts/test/batch_{batch:04d}/group_0").mkdir(parents=True)
    report.forget_batches(tmp_path, first=2)
    assert metrics.read_text().splitlines(keepends=True) == [*kept, *kept[1:]]
    left = sorted(path.relative_to(tmp_path / "transcripts").as_posix() for path in tmp_path.glob("transcripts/*/*"))
    assert left == ["test/batch_0000", "test/batch_0001", "train/batch_0000", "train/batch_0001", "train/batch_0002"]
    report.forget_batches(tmp_path, first=0)
    assert metrics.read_text() == ""


class Asked(SamplingClient):
    """A client that notes how it was asked to sample."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.parameters: list[Any] = []

    async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        self.parameters.append(sampling_params)
        return await super().sample_async(prompt, num_samples, sampling_params)


@pytest.fixture
def dataset_builder(task_dir: Path, tmp_path: Path) -> Any:
    from harbor_gym.adapters.tinker import GroupTemplate, HarborRLDatasetBuilder

    byte_level_tokenizer().save_pretrained(tmp_path / "tokenizer")
    template = GroupTemplate(
        env=TerminalEnvConfig(
            task_dir=task_dir,
            sandbox="harbor_gym.testing:FakeEnvironment",
            sandbox_options={"solved_when": {"/srv/answer": "done"}},
        ),
        model_name=str(tmp_path / "tokenizer"),
        renderer_name=RENDERER,
        max_tokens=500,
        max_context_tokens=4321,
        group_size=2,
        transcripts_dir=tmp_path / "transcripts",
    )
    return HarborRLDatasetBuilder(template=template, num_batches=3, test_episodes=2)


@pytest.mark.tinker
def test_a_run_is_evaluated_in_the_context_window_that_it_was_trained_in(
    dataset_builder: Any, task_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinker_cookbook.utils.ml_log import dump_config

    monkeypatch.setenv("TINKER_API_KEY", "key")
    written = {"model_name": "m", "dataset_builder": dump_config(dataset_builder)}
    (tmp_path / "config.json").write_text(json.dumps(written, default=str))
    policy = find_policy(
        EvalConfig(paths=(task_dir,), env=TerminalEnvConfig(task_dir=task_dir), run=tmp_path, checkpoint="base")
    )
    assert (policy.max_context_tokens, policy.renderer_name) == (4321, RENDERER)


@pytest.mark.parametrize(("given", "played"), [({}, "keystrokes"), ({"action_format": "bash-tool"}, "bash-tool")])
def test_a_run_is_evaluated_in_the_action_format_that_it_was_trained_in(
    given: dict[str, Any], played: str, tmp_path: Path
) -> None:
    written = {"dataset_builder": {"template": {"env": {"action_format": "keystrokes"}}}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = EvalConfig(paths=(tmp_path,), env=TerminalEnvConfig(task_dir=tmp_path, **given), run=tmp_path)
    env = in_the_runs_format(config)
    assert isinstance(env, TerminalEnvConfig)
    assert env.action_format == played
    without = config.model_copy(update={"run": None})
    assert in_the_runs_format(without) is without.env


@pytest.mark.parametrize(("is_there", "why"), [(True, "no config.json with a model_name"), (False, "is no folder")])
def test_a_folder_without_a_run_is_told_from_one_that_is_not_there(is_there: bool, why: str, tmp_path: Path) -> None:
    run = tmp_path if is_there else tmp_path / "x"
    with pytest.raises(UsageError, match=why):
        find_policy(EvalConfig(paths=(tmp_path,), env=TerminalEnvConfig(task_dir=tmp_path), run=run))


@pytest.mark.tinker
async def test_an_evaluation_is_greedy_and_written_down_under_its_batch(dataset_builder: Any, tmp_path: Path) -> None:
    from tinker_cookbook.rl.rollout_logging import RolloutSummaryExportConfig

    from harbor_gym.adapters.tinker import HarborEvaluator, RetryThenMask

    strategy = RetryThenMask(seed=1)
    test_set = await dataset_builder.test_set()
    evaluator = HarborEvaluator(test_set, max_tokens=500, run_dir=tmp_path, strategy=strategy)
    for batch, first in ((0, message("true\n")), (4, message(DONE)), (8, message(DONE))):
        client: Any = Asked(scripted(first, GIVE_UP, GIVE_UP))
        export = RolloutSummaryExportConfig(split="eval/test", iteration=batch, base_name="eval_test")
        metrics = await evaluator(client, rollout_summary_export=export)
        assert {item.temperature for item in client.parameters} == {0.0}
        assert metrics["test/env/all/total_episodes"] == 2
        assert len(list((tmp_path / f"transcripts/test/batch_{batch:04d}").rglob("*.json"))) == 2
    assert [(item.checkpoint, item.reward) for item in read_evaluations(tmp_path)] == [
        ("base", 0.0),
        ("000004", 1.0),
        ("000008", 1.0),
    ]
    assert read_best(tmp_path).batch == 4


@pytest.mark.tinker
async def test_each_message_of_a_run_has_a_seed_of_its_own_and_the_same_again(dataset_builder: Any) -> None:
    from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward

    from harbor_gym.adapters.tinker import RetryThenMask

    async def seeds(batch: int, seed: int | None) -> list[int | None]:
        train, _ = await dataset_builder()
        client: Any = Asked(scripted(message(DONE), [GIVE_UP], GIVE_UP, random=random.Random(0)))
        (builder,) = train.get_batch(batch)
        strategy = RetryThenMask(seed=seed)
        await do_group_rollout_and_filter_constant_reward(client, builder, 500, 1.0, False, False, strategy)
        assert {item.temperature for item in client.parameters} == {1.0}
        return sorted((item.seed for item in client.parameters), key=str)

    first = await seeds(0, 7)
    assert first == await seeds(0, 7)
    everything = [*first, *await seeds(1, 7), *await seeds(0, 8)]
    assert len(set(everything)) == len(everything) == 18, "2 episodes of 3 messages in 3 groups"
    assert set(await seeds(0, None)) == {None}
