"""The policy that comes with the package: it fits the shipped task, answers it, and spares a first run its making."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.embedded import ensure_policy
from harbor_gym.embedded.shipped import POLICIES, policy_fingerprint, unpack_policy
from harbor_gym.errors import HarborGymError
from harbor_gym.formats import parse_action, prompts
from tests.helpers.paths import ROOT

TASK = ROOT / "tasks" / "devops_task"
RENDERER = "qwen3_instruct"
SHIPPED = POLICIES / TASK.name
NO_SANDBOX = "tests.nothing:Here"
"""Demonstrations that have to be played in this one fail."""


def ensure(task_dir: Path, seed: int = 0) -> Path:
    return asyncio.run(ensure_policy(task_dir, sandbox=NO_SANDBOX, renderer_name=RENDERER, seed=seed))


def test_it_was_shown_the_task_and_the_prompts_as_they_are() -> None:
    assert (SHIPPED / "key.txt").read_text().strip() == policy_fingerprint(TASK, RENDERER), "run `make policy`"


def test_another_instruction_another_renderer_or_another_seed_have_none(tmp_path: Path) -> None:
    task = tmp_path / "task"
    shutil.copytree(TASK, task)
    assert policy_fingerprint(task, RENDERER) == policy_fingerprint(TASK, RENDERER)
    (task / "instruction.md").write_text("Something else.\n")
    assert unpack_policy(task, RENDERER, tmp_path / "out") is None
    assert unpack_policy(TASK, "qwen3", tmp_path / "out") is None
    assert not (tmp_path / "out").exists()


@pytest.mark.tinker
@pytest.mark.server
def test_a_first_run_plays_no_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    made = ensure(TASK)
    assert made.is_relative_to(tmp_path / "cache")
    assert ensure(TASK) == made
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    monkeypatch.setenv("PATH", "")  # no sandbox of the local kind, in which demonstrations are played first
    with pytest.raises(HarborGymError, match=r"tests\.nothing"):
        ensure(TASK, seed=1)


@pytest.mark.tinker
@pytest.mark.server
def test_it_answers_the_task_with_a_command(tmp_path: Path) -> None:
    import torch
    from tinker_cookbook.renderers import get_renderer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from harbor_gym.adapters.tinker.codec import RendererCodec

    folder = unpack_policy(TASK, RENDERER, tmp_path)
    assert folder is not None
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    first = prompts.first_message((TASK / "instruction.md").read_text(), "root@sandbox:~#")
    messages: Any = [{"role": "system", "content": prompts.system_prompt()}, {"role": "user", "content": first}]
    prompt = RendererCodec(get_renderer(RENDERER, tokenizer)).prompt(messages)
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=96, do_sample=False)[0, len(prompt) :]
    parsed = parse_action(tokenizer.decode(answer, skip_special_tokens=True))
    assert parsed.error is None
    assert parsed.commands


def test_a_policy_of_another_seed_is_not_packed(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "policy")
    record = tmp_path / "policy" / "warm_start.json"
    record.write_text(record.read_text().replace('"seed": 0', '"seed": 3'))
    argv = [sys.executable, ROOT / ".ci" / "policy.py", TASK, tmp_path / "policy"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "was made with seed 3; a shipped policy has seed 0" in done.stderr
