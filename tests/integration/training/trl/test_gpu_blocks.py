"""The pages' blocks that train a model of billions of weights: as they stand, but for the model, the tasks, the GPU."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None or find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[trl]" "harbor-gym[openenv]"', allow_module_level=True)

from harbor_gym.adapters.trl import HarborSpec
from tests.helpers import tiny_trl
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.letters import LETTER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
    pytest.mark.filterwarnings("ignore:You are using .* experimental feature:UserWarning"),
]

MODEL = '"Qwen/Qwen3-4B"'


def block_with(page: str, words: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = (block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if words in block)
    return found


def run(text: str, changes: dict[str, str], names: dict[str, Any]) -> Any:
    """Run a block with each text in it changed, whose first step is its last; return the trainer."""
    for old, new in {**changes, ").train()": ")).train()"}.items():
        assert old in text, f"the block has no {old}"
        text = text.replace(old, new)
    text = re.sub(r"(\w*GRPOConfig)\((?=\w|\n)", r"\1(**on_cpu, ", text)
    text = re.sub(r"(?<=\s)(\w*GRPOTrainer\()", r"kept(\1", text)
    trainers: list[Any] = []

    def kept(trainer: Any) -> Any:
        trainers.append(trainer)
        return trainer

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


@pytest.fixture(scope="module", params=["bash", "terminal"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that writes one of four letters, saved."""
    folder = tmp_path_factory.mktemp("policy")
    own: dict[str, Any] = tiny_trl.SETTINGS if request.param == "terminal" else {}
    with HarborSpec(tiny_trl.write_letter_task(folder / "task"), agent=request.param, sandbox=LETTER, **own) as spec:
        saved, _, _ = tiny_trl.make_letter_policy(spec, folder / "saved")
    resource_tracker.ensure_running()  # TRL spawns its worker, and Python keeps this process until the end
    return saved


@pytest.fixture
def engine(policy: Path) -> "Iterator[tiny_trl.CompletionsEngine]":
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with (
        tiny_trl.CompletionsEngine(
            AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
        ) as one,
        tiny_trl.async_grpo_on_cpu(),
    ):
        yield one


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("letters", "more_letters"):
        tiny_trl.write_letter_task(tmp_path / "tasks" / name)
    return tmp_path / "tasks"


@pytest.mark.parametrize("policy", ["bash"], indirect=True)
def test_grpo(policy: Path, tasks: Path, tmp_path: Path) -> None:
    changes = {MODEL: repr(str(policy)), '"tasks"': repr(str(tasks)), '"docker"': repr(LETTER)}
    names = {"on_cpu": on_cpu(tmp_path)}
    trainer = run(block_with("docs/trl.md", "spec.trainer_arguments"), changes, names)
    assert len(rewards(trainer)) == 1


@pytest.mark.parametrize("policy", ["terminal"], indirect=True)
def test_async_grpo(policy: Path, tasks: Path, engine: "tiny_trl.CompletionsEngine", tmp_path: Path) -> None:
    changes = {
        MODEL: repr(str(policy)),
        '"tasks"': f"{str(tasks)!r}, sandbox={LETTER!r}",
        'action_format="bash-tool"': "**settings",
        '"http://localhost:8000"': repr(engine.url),
        "rollout_worker=worker": "rollout_worker=worker, weight_transfer=transfer",
    }
    names = {
        "settings": tiny_trl.SETTINGS,
        "transfer": tiny_trl.EngineWeights(engine),
        "on_cpu": on_cpu(tmp_path, token_budget=-1),
    }
    trainer = run(block_with("docs/trl.md", "spec.rollout_worker"), changes, names)
    assert len(rewards(trainer)) == 1


@pytest.mark.parametrize("policy", ["terminal"], indirect=True)
def test_openenv_sessions(
    policy: Path, tasks: Path, engine: "tiny_trl.CompletionsEngine", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.experimental.async_grpo import async_rollout_worker

    # It asks for the package, and speaks to the server alone.
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    task = str(tasks / "letters")
    changes = {
        MODEL: repr(str(policy)),
        '"http://127.0.0.1:8001"': repr(engine.url),
        '"tasks"': repr(str(tasks)),
        '"task:devops_task", sandbox="docker", max_turns=30': f"{task!r}, sandbox={LETTER!r}, **settings",
        "rollout_worker=worker": "rollout_worker=worker, weight_transfer=transfer",
    }
    names = {
        "settings": tiny_trl.SETTINGS,
        "transfer": tiny_trl.EngineWeights(engine),
        "on_cpu": on_cpu(tmp_path, token_budget=-1),
    }
    trainer = run(block_with("docs/openenv.md", "TerminalRolloutWorker"), changes, names)
    assert len(rewards(trainer)) == 1
