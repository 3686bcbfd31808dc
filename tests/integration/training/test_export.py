"""Supervised training on an exported run: one step of TRL's trainer in both forms, and the cookbook's loader."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, HFCodec, Sample, TokenTerminalEnv, run_episode
from harbor_gym.report import export, messages
from harbor_gym.transcripts import write_transcript
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run of two episodes, and the policy with whose tokenizer they were played."""
    pytest.importorskip("trl")
    from harbor_gym.embedded.policy import build_model, build_tokenizer, save_policy

    folder = tmp_path_factory.mktemp("run")
    tokenizer: Any = build_tokenizer([COMPLETE, message("ls\n")] * 8)
    save_policy(build_model(tokenizer, hidden_size=64, layers=1), tokenizer, folder / "policy")
    for number, answers in enumerate(([message("ls\n"), COMPLETE], [message("pwd\n"), COMPLETE]), start=1):
        given = iter(answers)

        async def sample(_prompt: Sequence[int], given: Any = given) -> Sample:
            tokens = [*tokenizer.encode(next(given)), tokenizer.eos_token_id]
            return Sample(tokens, [-0.5] * len(tokens))

        config = fake_config(folder / f"task{number}")
        env = TokenTerminalEnv(AsyncTerminalGymEnv(config), HFCodec(tokenizer), max_tokens=1000)
        rollout = asyncio.run(run_episode(env, sample))
        assert rollout.error is None
        name = f"transcripts/train/batch_0000/group_{number}/episode_001.json"
        write_transcript(folder / name, rollout.transcript, labels={"task": "tiny"})
    return folder, folder / "policy"


@pytest.mark.parametrize("form", ["messages", "tokens"])
def test_trls_trainer_takes_a_step(form: Any, run: tuple[Path, Path], tmp_path: Path) -> None:
    from datasets import load_dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    folder, policy = run
    export([folder], tmp_path / "data", form=form)
    data: Any = load_dataset(str(tmp_path / "data"), split="train", cache_dir=str(tmp_path / "cache"))
    settings = SFTConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=2,
        max_length=None,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
    )
    trainer = SFTTrainer(str(policy), args=settings, train_dataset=data)
    loss = trainer.train().training_loss
    assert 0 < loss < 20
    if form == "tokens":
        (batch,) = trainer.get_train_dataloader()
        rows = {tuple(row["input_ids"]): row["assistant_masks"] for row in data}
        for tokens, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            length = int(mask.sum())
            row = rows[tuple(tokens[:length].tolist())]
            assert [int(label != -100) for label in labels[:length].tolist()] == row


def test_the_cookbooks_loader_reads_it(run: tuple[Path, Path], tmp_path: Path) -> None:
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    folder, policy = run
    export([folder], tmp_path / "data.jsonl")
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=os.fspath(policy), renderer_name="qwen3_instruct", max_length=None, batch_size=2
    )
    train, _ = FromConversationFileBuilder(common_config=common, file_path=os.fspath(tmp_path / "data.jsonl"))()
    batch = train.get_batch(0)
    assert len(batch) == len(messages(folder)) == 2
    assert all(sum(datum.loss_fn_inputs["weights"].data) > 0 for datum in batch)
