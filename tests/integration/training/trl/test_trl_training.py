"""A real GRPOTrainer on the CPU, with a tiny policy made on the spot: tool calls, keystrokes, lost episodes."""

import json
import logging
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.adapters.trl import HarborSpec
from harbor_gym.testing import FakeEnvironment
from tests.helpers import tiny_trl
from tests.helpers.sandboxes.fake_episodes import FAKE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:You are using .* experimental feature:UserWarning"),
]

GROUP = 8
SECOND_IS_LOST = "tests.integration.training.trl.test_trl_training:SecondIsLost"


class SecondIsLost(FakeEnvironment):
    """A fake of which every second one crashes its verifier."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SecondIsLost.made += 1
        super().__init__(*args, **kwargs, fail={"verifier": 1} if SecondIsLost.made % 2 else {})


def solved() -> dict[str, Any]:
    return {"solved_when": {tiny_trl.ANSWER: tiny_trl.RIGHT}}


@pytest.fixture(scope="module", params=["bash", "terminal"])
def policy(request: pytest.FixtureRequest, letter_policy: Callable[[str], Path]) -> tuple[str, Any, Any]:
    """The agent, and a policy for it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = letter_policy(request.param)
    return request.param, AutoModelForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)


@pytest.fixture
def letter_task(tmp_path: Path) -> Path:
    return tiny_trl.write_letter_task(tmp_path / "pick_letter")


def train(spec: HarborSpec, policy: tuple[str, Any, Any], out: Path, *, steps: int = 1) -> Any:
    """Train and return the trainer, and the reward function's results."""
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    _, model, tokenizer = policy
    args = GRPOConfig(
        output_dir=str(out),
        optim="sgd",
        learning_rate=0.25,
        lr_scheduler_type="constant",
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_steps=steps,
        max_completion_length=200,
        max_tool_calling_iterations=3,
        beta=0.0,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        seed=0,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(model=model, args=args, processing_class=tokenizer, **spec.trainer_arguments)
    trainer.train()
    return trainer


def make(task: Path, policy: tuple[str, Any, Any], **settings: Any) -> HarborSpec:
    own = tiny_trl.SETTINGS if policy[0] == "terminal" else {}
    merged: dict[str, Any] = {"agent": policy[0], "sandbox": FAKE, "max_turns": 3, **own, **settings}
    return HarborSpec(task, **merged)


def weights(policy: tuple[str, Any, Any]) -> list[Any]:
    return [parameter.detach().clone() for parameter in policy[1].parameters()]


def wrote(completion: list[dict[str, Any]]) -> str:
    """Return the last letter that a rollout wrote into the file; empty if none."""
    is_shown = any(message["role"] == "tool" for message in completion)
    shown = [str(message["content"]) for message in completion if message["role"] == "tool" or not is_shown]
    letter, answer = f"([{tiny_trl.LETTERS}])", tiny_trl.ANSWER
    found = re.findall(rf"^\$ echo {letter} > {answer}$|# echo {letter} > {answer}$", "\n".join(shown), re.M)
    return "".join(found[-1]) if found else ""


def is_changed(policy: tuple[str, Any, Any], before: list[Any]) -> bool:
    return any(not old.equal(new) for old, new in zip(before, weights(policy), strict=True))


def test_rewards_arrive_and_the_policy_changes(policy: tuple[str, Any, Any], letter_task: Path, tmp_path: Path) -> None:
    before = weights(policy)
    with make(letter_task, policy, sandbox_options=solved()) as spec:
        trainer = train(spec, policy, tmp_path / "out", steps=2)
    steps = [row for row in trainer.state.log_history if "reward" in row]
    assert len(steps) == 2
    (rewards,) = trainer._logs["rewards"].values()
    wrote_c = [wrote(completion) == "c" for completion in trainer._logs["completion"]]
    assert list(rewards) == [float(right) for right in wrote_c]
    assert 0 < sum(wrote_c) < len(wrote_c)
    assert all(row["harbor/lost"] == 0 for row in steps)
    if policy[0] == "bash":
        assert all(row["tools/call_frequency"] > 0 and row["tools/failure_frequency"] == 0 for row in steps)
    assert is_changed(policy, before)


def test_lost_episodes_are_left_out(
    policy: tuple[str, Any, Any], letter_task: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="harbor_gym"),
        make(
            letter_task,
            policy,
            sandbox=SECOND_IS_LOST,
            sandbox_options=solved(),
            max_retries=0,
            ambiguous_failures="infrastructure",
        ) as spec,
    ):
        trainer = train(spec, policy, tmp_path / "out")
    (row,) = [row for row in trainer.state.log_history if "reward" in row]
    assert row["harbor/lost"] == 0.5
    (rewards,) = trainer._logs["rewards"].values()
    pairs = list(zip(rewards, trainer._logs["advantages"], strict=True))
    lost = [advantage for reward, advantage in pairs if reward != reward]
    assert lost == [0.0] * (GROUP // 2), "NaN rewards, and no advantage"
    assert "verifier" in caplog.text


def test_a_group_that_is_lost_whole_trains_nothing(
    policy: tuple[str, Any, Any], letter_task: Path, tmp_path: Path
) -> None:
    before = weights(policy)
    with make(letter_task, policy, sandbox_options={"fail": {"start": 1}}, max_retries=0) as spec:
        trainer = train(spec, policy, tmp_path / "out")
    (row,) = [row for row in trainer.state.log_history if "reward" in row]
    assert row["harbor/lost"] == 1.0
    assert not is_changed(policy, before)


@pytest.mark.local
@pytest.mark.parametrize("agent", ["bash", "terminal"])
def test_on_a_real_sandbox(agent: str, tmp_path: Path) -> None:
    rewards = tiny_trl.train_letters(
        tmp_path, agent=agent, sandbox="local", steps=2, group_size=GROUP, warm_start_steps=80
    )
    rows = [json.loads(line) for line in (tmp_path / tiny_trl.METRICS_NAME).read_text().splitlines()]
    assert rewards == [row["reward"] for row in rows]
    assert len(rows) == 2
    assert sum(rewards) > 0, "the policy writes the right letter one time in four"
    assert max(rewards) < 1
    assert all(row["harbor/lost"] == 0 for row in rows)
