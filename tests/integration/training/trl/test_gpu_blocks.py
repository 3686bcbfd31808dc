"""The pages' blocks that train a model of billions of weights: as they stand, but for the model, the tasks, the GPU."""

import contextlib
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None or find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[trl]" "harbor-gym[openenv]"', allow_module_level=True)

from harbor_gym import TerminalEnvConfig
from harbor_gym.adapters import openenv
from harbor_gym.adapters.openenv.config import ServerConfig
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


@dataclass
class InTurn:
    """Episodes of several sources, one after the other, until only those of the last are left."""

    sources: tuple[Any, ...]
    last: Any
    played: int = 0

    def bind(self, task: Any, seed: int | None) -> Any:
        """Return what makes the next episode's environment."""
        self.played += 1
        source = self.last if self.played > ALIVE else self.sources[self.played % len(self.sources)]
        return source.bind(task, seed)


def test_openenv_sessions_are_token_exact_local_and_served_until_all_are_lost(
    letter_policy: Callable[[str], Path], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of TRL's worker takes ten seconds to start: one plays both halves of a group, and then loses all."""
    from trl.experimental.async_grpo import async_rollout_worker

    # It asks for the package, and speaks to the server alone.
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    policy, task = letter_policy("terminal"), str(tasks / "letters")
    config = TerminalEnvConfig(task_dir=task, sandbox=LETTER, **tiny_trl.SETTINGS)
    broken = openenv.LocalTasks(
        openenv.TaskSuite.resolve(str(tasks)), config.model_copy(update={"sandbox_options": {"fail": {"start": 1}}})
    )

    def in_turn(local: Any) -> InTurn:
        return InTurn((local, openenv.ServedTasks(server.url, server.token)), broken)

    limits = ServerConfig(env=config, tasks=(str(tasks),), port=0, max_sessions=GROUP)
    with serving(policy) as engine, openenv.TerminalServer(limits) as server:
        changes = {
            MODEL: repr(str(policy)),
            '"http://127.0.0.1:8001"': repr(engine.url),
            '"tasks"': repr(str(tasks)),
            '"task:devops_task", sandbox="docker", max_turns=30': f"{task!r}, sandbox={LETTER!r}, **settings",
            "LocalTasks(suite, config)": "in_turn(LocalTasks(suite, config))",
            "max_tokens=2048": f"max_tokens=40, max_retries=0, max_lost_in_a_row={2 * GROUP}",
            "args = AsyncGRPOConfig(": f"args = AsyncGRPOConfig(per_device_train_batch_size={GROUP}, ",
            "max_inflight_tasks=64": f"max_inflight_tasks={GROUP}, queue_maxsize={GROUP}",
            "rollout_worker=worker": "rollout_worker=worker, weight_transfer=transfer",
        }
        names = {
            "settings": tiny_trl.SETTINGS,
            "in_turn": in_turn,
            "transfer": tiny_trl.EngineWeights(engine),
            "on_cpu": on_cpu(tmp_path, token_budget=-1, max_steps=9, max_staleness=0, dtype="float32"),
        }
        lost = pytest.raises(
            RuntimeError,
            match="Rollout worker child has failed",
            check=lambda error: "episodes in a row were lost (max_lost_in_a_row)" in str(error.__cause__),
        )
        trainer = run(block_with("docs/openenv.md", "TerminalRolloutWorker"), changes, names, lost)
    rows = [row for row in trainer.state.log_history if "ratio" in row]
    assert abs(rows[0]["ratio"] - 1) < 1e-3
    assert abs(rows[0]["kl"]) < 1e-3
    assert 0 < rows[0]["reward"] < 1, "the policy writes all four letters"
    assert rows[0].get("rollout/realign_frac", 0.0) == 0.0
    assert rows[0].get("rollout/drift_tokens_mean", 0.0) == 0.0
    assert engine.versions >= 1
