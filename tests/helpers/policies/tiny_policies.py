"""Tiny Qwen3 policies that write one of four letters into a file, made on the spot for trainers on a CPU."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor_gym import AsyncTerminalGymEnv, HFCodec, Sample, TokenTerminalEnv, flatten, run_episode
from harbor_gym.adapters.trl import BashHarness
from tests.helpers.sandboxes.fake_episodes import fake_config

ANSWER = "/srv/answer"
LETTERS = "abcd"
COMMANDS = tuple(f"echo {letter} > {ANSWER}" for letter in LETTERS)
DONE_LINE = "<task_complete/>"
INSTRUCTION = "Write the right letter, one of a b c d, into /srv/answer.\n"
STEPS, BATCH = 120, 4

type Example = tuple[list[int], list[int]]
"""Tokens, and 1 where the policy wrote them."""


def tiny_policy(kind: str, tmp_path: Path) -> tuple[Any, Any]:
    """Return a model and its tokenizer, for the harness ``bash`` or ``terminal`` (action format keystrokes)."""
    import torch
    import trl

    from harbor_gym.embedded.policy import build_model, build_tokenizer

    template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    tool = BashHarness.bash.__doc__ or ""
    corpus = [template, tool, INSTRUCTION, *COMMANDS, *map(_call, COMMANDS), DONE_LINE, "$ \n"] * 3
    tokenizer: Any = build_tokenizer(corpus, 1024)
    tokenizer.chat_template = template
    model = build_model(tokenizer, hidden_size=64, layers=2)
    examples = _bash_examples(tokenizer) if kind == "bash" else _terminal_examples(tokenizer, tmp_path)
    _imitate(model, examples)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    assert isinstance(model, torch.nn.Module)
    return model, tokenizer


def _call(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


def _bash_examples(tokenizer: Any) -> list[Example]:
    from trl.chat_template_utils import get_training_chat_template

    template = get_training_chat_template(tokenizer)

    tools = [BashHarness.bash]

    def ids(messages: list[dict[str, Any]], *, opened: bool) -> list[int]:
        return tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, add_generation_prompt=opened, return_dict=False
        )

    examples: list[Example] = []
    prompt = ids([{"role": "user", "content": INSTRUCTION}], opened=True)
    for command in COMMANDS:
        called = [*tokenizer.encode(_call(command), add_special_tokens=False), tokenizer.eos_token_id]
        function = {"name": "bash", "arguments": {"command": command}}
        chat: list[dict[str, Any]] = [
            {"role": "user", "content": INSTRUCTION},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        ]
        before = ids(chat, opened=False)
        end = len(before) - before[::-1].index(tokenizer.eos_token_id)
        shown = ids([*chat, {"role": "tool", "name": "bash", "content": f"$ {command}\n$"}], opened=True)[end:]
        final = [*tokenizer.encode("done", add_special_tokens=False), tokenizer.eos_token_id]
        parts = [(prompt, 0), (called, 1), (shown, 0), (final, 1)]
        examples.append(([t for part, _ in parts for t in part], [mask for part, mask in parts for _ in part]))
    return examples


def _terminal_examples(tokenizer: Any, tmp_path: Path) -> list[Example]:
    codec = HFCodec(tokenizer)
    config = fake_config(tmp_path / "imitated", action_format="keystrokes")
    (config.task_dir / "instruction.md").write_text(INSTRUCTION)

    async def play(command: str) -> Example:
        answers = iter([f"{command}\n", DONE_LINE])

        async def sample(prompt: Sequence[int]) -> Sample:
            return Sample([*tokenizer.encode(next(answers), add_special_tokens=False), tokenizer.eos_token_id])

        rollout = await run_episode(TokenTerminalEnv(AsyncTerminalGymEnv(config), codec, max_tokens=64), sample)
        flat = flatten(rollout)
        return flat.prompt + flat.completion, [0] * len(flat.prompt) + flat.mask

    async def play_all() -> list[Example]:
        return [await play(command) for command in COMMANDS]

    return asyncio.run(play_all())


def _imitate(model: Any, examples: list[Example]) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    lots = random.Random(0)
    longest = max(len(tokens) for tokens, _ in examples)
    tokens = torch.zeros((len(examples), longest), dtype=torch.long)
    labels = torch.full((len(examples), longest), -100)
    for row, (ids, mask) in enumerate(examples):
        tokens[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.tensor([t if kept else -100 for t, kept in zip(ids, mask, strict=True)])
    for _ in range(STEPS):
        rows = [lots.randrange(len(examples)) for _ in range(BATCH)]
        loss = model(input_ids=tokens[rows], labels=labels[rows]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
