"""HarborTerminalGenerator: SkyRL's inputs in, its outputs out, and its refusals."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("skyrl") is None:
    pytest.skip('pip install "harbor-gym[skyrl]"', allow_module_level=True)

from harbor_gym.adapters import skyrl
from harbor_gym.errors import SamplerError, TaskError, UsageError
from harbor_gym.samplers import statuses
from harbor_gym.testing import write_tiny_task
from harbor_gym.types import Sample
from tests.contract.players.episode import Script
from tests.helpers import skyrl as sky
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVE = message("echo done > /srv/answer\n")
SOLVED = {"solved_when": {"/srv/answer": "done"}}
HERE = __name__


def turn_of(prompt: Sequence[int]) -> int:
    return byte_level_tokenizer().decode(list(prompt)).count("<|im_start|>assistant") - 1


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_tiny_task(tmp_path / "task")


@pytest.mark.parametrize("step_wise", [False, True])
async def test_a_batch_is_valid_and_token_exact(task: Path, *, step_wise: bool) -> None:
    engine = sky.SamplerEngine(Script((SOLVE, COMPLETE)))
    generator = sky.make_generator(engine, {"sandbox_options": SOLVED}, step_wise_trajectories=step_wise)
    batch, uids = sky.make_input(task, groups=2, size=3)
    output = await generator.generate(batch)
    metrics: Any = output.pop("rollout_metrics")
    sky.validate_generator_output(6, output, step_wise=step_wise)
    assert len(output["response_ids"]) == (12 if step_wise else 6)
    ids = output["trajectory_ids"]
    assert ids is not None
    assert list(dict.fromkeys(item.instance_id for item in ids)) == list(dict.fromkeys(uids))
    whole = sky.merge_stepwise_output(output) if step_wise else output
    tokenizer = byte_level_tokenizer()
    sampled = [token for text in (SOLVE, COMPLETE) for token in [*tokenizer.encode(text), tokenizer.eos_token_id]]
    for response, mask in zip(whole["response_ids"], whole["loss_masks"], strict=True):
        assert [token for token, is_sampled in zip(response, mask, strict=True) if is_sampled] == sampled
    assert metrics["harbor/lost"] == 0
    assert metrics["harbor/avg_reward"] == 1.0
    assert metrics["harbor/end/completed"] == 6
    assert engine.finished == dict.fromkeys((item.to_string() for item in batch["trajectory_ids"]), 1)
    assert set(engine.sessions.values()) == {2}
    assert engine.salts == {"0"}


@pytest.mark.parametrize("step_wise", [False, True])
@pytest.mark.parametrize("limit", [None, 1, 0])
async def test_tokens_of_older_weights_are_counted_and_cut(task: Path, limit: int | None, *, step_wise: bool) -> None:
    answer = Script((SOLVE, COMPLETE))

    async def sample(prompt: Sequence[int]) -> Sample:
        sampled = await answer(prompt)
        if turn_of(prompt) == 0:
            engine.increment_weight_version()  # a sync behind the first message
        return sampled

    engine = sky.SamplerEngine(sample)
    own = {"sandbox_options": SOLVED, "max_token_staleness": limit}
    batch, _ = sky.make_input(task, size=1)
    output = await sky.make_generator(engine, own, step_wise_trajectories=step_wise).generate(batch)
    metrics: Any = output.pop("rollout_metrics")
    sky.validate_generator_output(1, output, step_wise=step_wise)
    first, second = (len(byte_level_tokenizer().encode(text)) + 1 for text in (SOLVE, COMPLETE))
    assert (metrics["harbor/tokens_1_behind"], metrics["harbor/tokens_0_behind"]) == (first, second)
    trained = sum(sum(mask) for mask in output["loss_masks"])
    assert trained == (second if limit == 0 else first + second)


def test_an_engine_without_versions_can_not_cut_old_tokens() -> None:
    engine = sky.SamplerEngine(Script((COMPLETE,)))
    del engine.weight_version
    with pytest.raises(UsageError, match="max_token_staleness needs an inference engine with a weight_version"):
        sky.make_generator(engine, {"max_token_staleness": 1})


async def test_an_engine_that_fails_ends_the_run_only_after_some_calls(task: Path) -> None:
    async def fail(prompt: Sequence[int]) -> Sample:
        raise OSError("connection refused")

    generator = sky.make_generator(sky.SamplerEngine(fail), {"max_retries": 0, "max_lost_calls": 2})
    batch, _ = sky.make_input(task, size=2)
    output = await generator.generate(batch)
    assert output["stop_reasons"] == ["error", "error"]
    with pytest.raises(SamplerError, match="connection refused"):
        await generator.generate(batch)


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_message_that_the_engine_fails_at_is_asked_for_again(
    task: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuses, "_BACKOFF_SEC", 0.001)
    failures = iter([True, True])

    async def sometimes(prompt: Sequence[int]) -> Sample:
        if next(failures, False):
            raise StatusFailure(status)
        return await Script((COMPLETE,))(prompt)

    generator = sky.make_generator(sky.SamplerEngine(sometimes), {"max_retries": 0})
    batch, _ = sky.make_input(task, size=1)
    output: Any = await generator.generate(batch)
    assert output["stop_reasons"] == ["stop"]
    assert output["rollout_metrics"]["harbor/failed_attempts"] == 0


class StatusFailure(Exception):
    """A failure with a status, as SkyRL's remote client raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def thrice(rewards: Mapping[str, float]) -> float:
    """A reward function."""
    return 3 * rewards["reward"]


@pytest.mark.parametrize("has_agent", [False, True])
async def test_a_reward_function_and_the_trials_folders(task: Path, tmp_path: Path, *, has_agent: bool) -> None:
    agent = {"agent": "tests.helpers.gateway.format_agent:FormatAgent", "agent_options": {"base_url": "{gateway_url}"}}
    own = {"env": agent} if has_agent else {}
    kept = {"reward_function": f"{HERE}:thrice", "trials_dir": str(tmp_path / "trials")}
    engine = sky.SamplerEngine(Script((SOLVE, COMPLETE)))
    generator = sky.make_generator(engine, {"sandbox_options": SOLVED, **kept, **own}, step_wise_trajectories=True)
    batch, _ = sky.make_input(task, size=2)
    output = await generator.generate(batch)
    merged: Any = sky.merge_stepwise_output(output)
    assert [sum(rewards) for rewards in merged["rewards"]] == [3.0, 3.0]
    assert len(list((tmp_path / "trials").glob("*/result.json"))) == 2


async def test_a_call_with_a_verdict_resets_the_count(task: Path) -> None:
    outcomes = iter([True, False, True, False])

    async def sometimes(prompt: Sequence[int]) -> Sample:
        if next(outcomes):
            raise OSError("connection refused")
        return await Script((COMPLETE,))(prompt)

    generator = sky.make_generator(sky.SamplerEngine(sometimes), {"max_retries": 0, "max_lost_calls": 2})
    batch, _ = sky.make_input(task, size=1)
    for expected in ("error", "stop", "error", "stop"):
        output = await generator.generate(batch)
        assert output["stop_reasons"] == [expected]


async def test_logprobs_are_required_where_they_are_asked_for(task: Path) -> None:
    async def without(prompt: Sequence[int]) -> Sample:
        sample: Sample = await Script((COMPLETE,))(prompt)
        return Sample(sample.tokens)

    generator = sky.make_generator(sky.SamplerEngine(without), {"max_retries": 0})
    batch, _ = sky.make_input(task, size=1)
    output = await generator.generate(batch)
    assert output["stop_reasons"] == ["error"]
    batch["sampling_params"] = {"max_tokens": 500}
    output = await generator.generate(batch)
    assert output["stop_reasons"] == ["stop"]
    assert output["rollout_logprobs"] is None


async def test_an_evaluations_own_limit_of_a_message_counts(task: Path) -> None:
    engine = sky.SamplerEngine(Script((COMPLETE,)))
    generator = sky.make_generator(
        engine, max_input_length=3000, sampling_params=sky.SamplingParams(max_generate_length=500)
    )
    batch, _ = sky.make_input(task, size=1, phase="eval")
    batch["sampling_params"] = {"logprobs": 1, "max_tokens": 7}
    await generator.generate(batch)
    assert engine.params == [{"logprobs": 1, "max_tokens": 7}]


@pytest.mark.parametrize(
    ("own", "generator", "problem"),
    [
        ({"max_retries": -1}, {}, "harbor can't be used: max_retries: Input should be greater than or equal to 0"),
        ({"n_concurrent": 0}, {}, "n_concurrent: Input should be greater"),
        ({"max_lost_calls": 0}, {}, "max_lost_calls: Input should be greater"),
        ({"max_token_staleness": -1}, {}, "max_token_staleness: Input should be greater"),
        ({"env": {"max_turn": 3}}, {}, r"harbor can't be used: env\.max_turn: Extra inputs"),
        ({"env": {"task_dir": "x"}}, {}, "env: Value error, task_dir can't be set"),
        ({"env": {"agent": "terminus-2", "mcp_tools": False}}, {}, r"env\.mcp_tools: for our own loop"),
        ({"env": {"sandbox": "no-such"}}, {}, "no-such"),
        ({"env": {"harbor_server": "http://127.0.0.1:1"}}, {}, r"env\.harbor_server: for the episodes of one of"),
        ({}, {"batched": True}, "generator.batched is not supported"),
        ({}, {"use_conversation_multi_turn": False}, "use_conversation_multi_turn must be true"),
        ({}, {"max_input_length": None}, "max_input_length is not set"),
    ],
)
def test_what_cant_be_used_is_refused(own: dict[str, Any], generator: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        sky.make_generator(sky.SamplerEngine(Script((COMPLETE,))), own, **generator)


async def test_a_wrong_row_ends_the_run(task: Path, tmp_path: Path) -> None:
    generator = sky.make_generator(sky.SamplerEngine(Script((COMPLETE,))))
    batch, _ = sky.make_input(tmp_path / "nowhere", size=2)
    with pytest.raises((TaskError, UsageError), match="nowhere"):
        await generator.generate(batch)
    batch, _ = sky.make_input(task, size=1)
    batch["env_extras"] = [{}]
    with pytest.raises(UsageError, match="write_dataset"):
        await generator.generate(batch)


async def test_step_wise_rows_need_ids(task: Path) -> None:
    generator = sky.make_generator(sky.SamplerEngine(Script((COMPLETE,))), step_wise_trajectories=True)
    batch, _ = sky.make_input(task, size=1)
    batch["trajectory_ids"] = None
    with pytest.raises(UsageError, match="trajectory_ids"):
        await generator.generate(batch)


def test_a_dataset_is_read_by_skyrl(task: Path, tmp_path: Path) -> None:
    from skyrl.train.dataset import PromptDataset

    (task / "instruction.md").write_text("Do it.\n")
    path = skyrl.write_dataset([task], tmp_path / "data" / "train.jsonl", min_rows=3)
    dataset = PromptDataset([str(path)], sky.chat_tokenizer(), max_prompt_length=100, num_workers=0)
    assert len(dataset) == 3
    messages, env_class, extra, uid = dataset[1]
    assert (env_class, uid) == ("harbor", "1")
    assert messages == [{"role": "user", "content": "Do it.\n"}]
    assert extra == {"data_source": "harbor", "task_dir": str(task), "task": "task"}
    with pytest.raises(UsageError, match=r"must end with \.jsonl"):
        skyrl.write_dataset([task], tmp_path / "train.parquet.txt")
    with pytest.raises(UsageError, match="min_rows"):
        skyrl.write_dataset([task], path, min_rows=0)


def test_settings_are_flags() -> None:
    from harbor_gym.adapters.skyrl.experiment import HarborTrainConfig, check_config

    flags = [
        *("harbor.env.sandbox=local", 'harbor.tasks=["tasks"]', "harbor.env.max_consecutive_parse_failures=2"),
        *("generator.max_input_length=1000", "generator.max_turns=5", "trainer.algorithm.grpo_norm_by_std=false"),
    ]
    cfg: Any = HarborTrainConfig.from_cli_overrides(flags)
    earlier = [flag.replace("env.sandbox", "sandbox") for flag in flags]
    assert HarborTrainConfig.from_cli_overrides(earlier) == cfg
    assert cfg.harbor == skyrl.HarborSettings(
        tasks=["tasks"], env={"sandbox": "local", "max_consecutive_parse_failures": 2}
    )
    check_config(cfg)
    cfg.trainer.algorithm.grpo_norm_by_std = True
    with pytest.raises(UsageError, match="step_wise_trajectories=true"):
        check_config(cfg)
    cfg.generator.step_wise_trajectories = True
    check_config(cfg)
    cfg.generator.step_wise_trajectories = False
    cfg.trainer.algorithm.advantage_estimator = "rloo"
    with pytest.raises(UsageError, match="number of rows"):
        check_config(cfg)
