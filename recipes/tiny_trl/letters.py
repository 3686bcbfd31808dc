"""A minimal problem: a task that requires one of four letters, and a policy that writes each letter equally often.

The policy is a Qwen3 of some 200 000 weights that imitates four demonstrations, one for each letter, played in the
spec's own sandbox. A trainer then has to find the right letter from the reward alone.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import trl
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl.chat_template_utils import get_training_chat_template

from harbor_gym._runtime.portal import get_portal
from harbor_gym.codecs import HFCodec
from harbor_gym.embedded.policy import build_model, build_tokenizer, save_policy
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import UsageError
from harbor_gym.formats import prompts
from harbor_gym.trl import BashHarness, HarborSpec, verified_reward
from harbor_gym.types import ActionFormat, ChatMessage

LETTERS = "abcd"
RIGHT = "c"
ANSWER = "/srv/answer"
INSTRUCTION = f"Write the right letter, one of a b c d, into {ANSWER}.\n"
COMMANDS = tuple(f"echo {letter} > {ANSWER}" for letter in LETTERS)
SETTINGS: dict[str, Any] = {"action_format": "keystrokes", "confirm_task_complete": False, "max_turns": 3}
"""The policy's settings of a ``HarborSpec`` with ``agent="terminal"``."""

_TEST = f"""\
#!/bin/bash
if [ "$(cat {ANSWER} 2>/dev/null)" = {RIGHT} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
_TASK = {
    "task.toml": 'schema_version = "1.4"\n[task]\nname = "harbor-gym/pick-letter"\n',
    "instruction.md": INSTRUCTION,
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /srv\n",
    "tests/test.sh": _TEST,
    "solution/solve.sh": f"#!/bin/bash\necho {RIGHT} > {ANSWER}\n",
}
_FINAL_ANSWER = "done"
_COMPLETE = "<task_complete/>"
_VOCABULARY, _HIDDEN_SIZE, _LAYERS = 2048, 64, 2
_LEARNING_RATE = 5e-3


@dataclass(frozen=True)
class Demonstration:
    """One episode as text: the prompts and the answers, in order."""

    shown: list[str]
    answers: list[str]
    command: str


@dataclass(frozen=True)
class _Row:
    tokens: list[int]
    is_learnt: list[bool]


def write_letter_task(directory: Path) -> Path:
    """Write the task; return its directory."""
    for name, text in _TASK.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


def make_letter_policy(
    spec: HarborSpec, out_dir: Path, *, seed: int = 0, steps: int = 80
) -> tuple[Path, Qwen3ForCausalLM, Any]:
    """Play four demonstrations with a spec, and return a policy that imitates them. Blocks for some seconds.

    Args:
        spec: The spec of the task of :func:`write_letter_task`, with the agent ``bash``, or ``terminal`` and
            :data:`SETTINGS`. Its sandboxes play the demonstrations.
        out_dir: The policy's Hugging Face directory.
        seed: Seed of the initial weights.
        steps: Steps of imitation. With fewer steps the policy makes typing errors more often.

    Returns:
        ``out_dir``, the model and the tokenizer.

    Raises:
        UsageError: The spec has another agent.
    """
    settings = spec.settings.config_of(None)
    if spec.agent is BashHarness:
        demonstrations = _demonstrate_calls(spec)
    elif spec.agent is None and settings.action_format is ActionFormat.KEYSTROKES:
        demonstrations = get_portal().call(_demonstrate_keystrokes, spec)
    else:
        raise UsageError("the letters' policy is for agent='bash', or 'terminal' with action_format='keystrokes'")
    tokenizer = _tokenizer(demonstrations)
    encode = _encode_calls if spec.agent is BashHarness else _encode_keystrokes
    model = build_model(tokenizer, hidden_size=_HIDDEN_SIZE, layers=_LAYERS, seed=seed)
    _imitate(model, [encode(tokenizer, demonstration) for demonstration in demonstrations], steps)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    save_policy(model, tokenizer, out_dir)
    return out_dir, model, tokenizer


def _demonstrate_calls(spec: HarborSpec) -> list[Demonstration]:
    environments = [cast("BashHarness", spec.environment_factory()) for _ in COMMANDS]
    for environment in environments:
        environment.reset()
    demonstrations = [
        Demonstration([INSTRUCTION, environment.bash(command)], [_call(command), _FINAL_ANSWER], command)
        for environment, command in zip(environments, COMMANDS, strict=True)
    ]
    verified_reward([[]] * len(environments), environments)
    return demonstrations


async def _demonstrate_keystrokes(spec: HarborSpec) -> list[Demonstration]:
    async def play(command: str) -> Demonstration:
        async with AsyncTerminalGymEnv(spec.settings.config_of(None)) as env:
            screen, info = await env.reset()
            answers = [f"{command}\n", _COMPLETE]
            shown = [prompts.first_message(info.get("instruction", ""), screen)]
            shown.append((await env.step(answers[0])).observation)
            return Demonstration(shown, answers, command)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play(command)) for command in COMMANDS]
    return [task.result() for task in tasks]


def _call(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


def _tokenizer(demonstrations: Sequence[Demonstration]) -> PreTrainedTokenizerFast:
    template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text(encoding="utf-8")
    system = prompts.system_prompt(ActionFormat.KEYSTROKES)
    corpus = [template, BashHarness.bash.__doc__ or "", system, INSTRUCTION]
    corpus += [text for item in demonstrations for text in (*item.shown, *item.answers)]
    tokenizer = build_tokenizer(corpus * 3, _VOCABULARY)
    tokenizer.chat_template = template
    return tokenizer


def _encode_keystrokes(tokenizer: Any, demonstration: Demonstration) -> _Row:
    codec = HFCodec(tokenizer)
    chat: list[ChatMessage] = [
        {"role": "system", "content": prompts.system_prompt(ActionFormat.KEYSTROKES)},
        {"role": "user", "content": demonstration.shown[0]},
    ]
    first, last = (_answer(tokenizer, text) for text in demonstration.answers)
    return _row(
        [(codec.prompt(chat), False), (first, True), (codec.next_turn(first, demonstration.shown[1]), False)], last
    )


def _encode_calls(tokenizer: Any, demonstration: Demonstration) -> _Row:
    template = get_training_chat_template(tokenizer)

    def write(messages: list[dict[str, Any]], *, is_opened: bool) -> list[int]:
        return tokenizer.apply_chat_template(
            messages,
            tools=[BashHarness.bash],
            chat_template=template,
            add_generation_prompt=is_opened,
            return_dict=False,
        )

    first, last = (_answer(tokenizer, text) for text in demonstration.answers)
    function = {"name": "bash", "arguments": {"command": demonstration.command}}
    chat: list[dict[str, Any]] = [{"role": "user", "content": demonstration.shown[0]}]
    prompt = write(chat, is_opened=True)
    chat.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]})
    before = write(chat, is_opened=False)
    end = len(before) - before[::-1].index(tokenizer.eos_token_id)
    chat.append({"role": "tool", "name": "bash", "content": demonstration.shown[1]})
    return _row([(prompt, False), (first, True), (write(chat, is_opened=True)[end:], False)], last)


def _answer(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def _row(parts: Sequence[tuple[list[int], bool]], last: list[int]) -> _Row:
    whole = [*parts, (last, True)]
    return _Row([token for part, _ in whole for token in part], [learnt for part, learnt in whole for _ in part])


def _imitate(model: Qwen3ForCausalLM, rows: Sequence[_Row], steps: int) -> None:
    """Train on all rows at each step, so that each letter is written as often as the others."""
    width = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    is_learnt = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
        is_learnt[number, : len(row.tokens)] = torch.tensor(row.is_learnt)
    backbone, head = cast("Any", model.model), cast("Any", model.lm_head)
    optimizer = torch.optim.AdamW(model.parameters(), _LEARNING_RATE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so few weights gain nothing from more threads
    try:
        for _ in range(steps):
            states = backbone(input_ids=tokens[:, :-1]).last_hidden_state[is_learnt[:, 1:]]
            loss = torch.nn.functional.cross_entropy(head(states), tokens[is_learnt])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads)
    model.eval()
