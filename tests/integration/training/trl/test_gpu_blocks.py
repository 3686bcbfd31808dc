"""The pages' blocks that train a model of billions of weights: as they stand, but for the model, the tasks, the GPU."""

import contextlib
import re
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.errors import HarborGymError
from tests.helpers import tiny_trl
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.letters import DYING, LETTER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
    pytest.mark.filterwarnings("ignore:You are using .* experimental feature:UserWarning"),
]

MODEL = '"Qwen/Qwen3-4B"'
GROUP = 16


def block_with(page: str, words: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = (block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if words in block)
    return found


def run(
    text: str,
    changes: dict[str, str],
    names: dict[str, Any],
    end: contextlib.AbstractContextManager[Any] | None = None,
) -> Any:
    """Run a block with each text in it changed, inside of ``end``; return the trainer."""
    for old, new in {**changes, ").train()": ")).train()"}.items():
        assert old in text, f"the block has no {old}"
        text = text.replace(old, new)
    text = re.sub(r"(\w*GRPOConfig)\((?=\w|\n)", r"\1(**on_cpu, ", text)
    text = re.sub(r"(?<=\s)(\w*GRPOTrainer\()", r"kept(\1", text)
    trainers: list[Any] = []

    def kept(trainer: Any) -> Any:
        trainers.append(trainer)
        return trainer

    with end or contextlib.nullcontext():
        exec(compile(text, "block", "exec"), {"__name__": "__main__", "kept": kept, **names})
    (trainer,) = trainers
    return trainer


def on_cpu(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return the settings of a configuration without a GPU, and an end after one step."""
    return {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        **settings,
    }


def rewards(trainer: Any) -> list[float]:
    return [row["reward"] for row in trainer.state.log_history if "reward" in row]


@contextlib.contextmanager
def serving(policy: Path) -> "Generator[tiny_trl.CompletionsEngine]":
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    with tiny_trl.CompletionsEngine(model, tokenizer) as engine, tiny_trl.async_grpo_on_cpu():
        yield engine


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("letters", "more_letters"):
        tiny_trl.write_letter_task(tmp_path / "tasks" / name)
    return tmp_path / "tasks"


def test_grpo(letter_policy: Callable[[str], Path], tasks: Path, tmp_path: Path) -> None:
    changes = {MODEL: repr(str(letter_policy("bash"))), '"tasks"': repr(str(tasks)), '"docker"': repr(LETTER)}
    names = {"on_cpu": on_cpu(tmp_path)}
    trainer = run(block_with("docs/trl.md", "spec.trainer_arguments"), changes, names)
    assert len(rewards(trainer)) == 1


ALIVE = 3 * GROUP
"""Episodes before all are lost: the trainer reads one batch ahead, and a process that fails may not send its last."""


def test_async_grpo_trains_until_its_groups_are_lost(
    letter_policy: Callable[[str], Path], tasks: Path, tmp_path: Path
) -> None:
    policy = letter_policy("terminal")
    with serving(policy) as engine:
        changes = {
            MODEL: repr(str(policy)),
            '"tasks"': f"{str(tasks)!r}, sandbox={DYING!r}, sandbox_options={{'alive': {ALIVE}}}, max_retries=0",
            'action_format="bash-tool"': "**settings",
            "per_device_train_batch_size=16": f"per_device_train_batch_size=16, max_inflight_tasks={GROUP}",
            '"http://localhost:8000"': repr(engine.url),
            "rollout_worker=worker": "rollout_worker=worker, weight_transfer=transfer",
        }
        names = {
            "settings": tiny_trl.SETTINGS,
            "transfer": tiny_trl.EngineWeights(engine),
            "on_cpu": on_cpu(tmp_path, token_budget=-1, max_steps=9),
        }
        lost = pytest.raises(HarborGymError, match=rf"4 groups of {GROUP} episodes in a row .*sandbox_start: {GROUP}")
        trainer = run(block_with("docs/trl.md", "spec.rollout_worker"), changes, names, lost)
    assert rewards(trainer)
