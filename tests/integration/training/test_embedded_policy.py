"""The tiny policy's tokenizer and model, and the warm start that makes a policy of them."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harbor_gym.embedded as embedded
from harbor_gym.adapters.tinker.training.config import Backend
from harbor_gym.embedded import policy, warm_start
from harbor_gym.embedded.policy import ADDED_TOKENS, SPECIAL_TOKENS, build_model, build_tokenizer, save_policy
from harbor_gym.embedded.service import require_backend
from harbor_gym.errors import MissingDependencyError, TaskError, UsageError
from tests.helpers.engines import require_engine

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("engines")]

RENDERERS = ("qwen3", "qwen3_disable_thinking", "qwen3_instruct")


def _answer(keystrokes: str) -> str:
    command = {"keystrokes": keystrokes, "duration": 1.0}
    return json.dumps({"analysis": "Look.", "plan": "Act.", "commands": [command]}, separators=(",", ":"))


def _conversation(*keystrokes: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": "Write JSON."}, {"role": "user", "content": "Task:\nlook\n\nroot@a:/# "}]
    for keys in keystrokes:
        messages.append({"role": "assistant", "content": _answer(keys)})
        messages.append({"role": "user", "content": f"root@a:/# {keys}done <|im_end|> 1\n"})
    return messages[:-1]


CONVERSATIONS = [_conversation("ls\n", "pwd\n"), _conversation("ls\n"), _conversation("id\n", "ls\n", "pwd\n")] * 4


@pytest.fixture(scope="module")
def tokenizer(engines: None) -> Any:
    return build_tokenizer((m["content"] for conversation in CONVERSATIONS for m in conversation), 384)


@pytest.fixture(scope="module")
def model_dir(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    save_policy(build_model(tokenizer, hidden_size=64, layers=2), tokenizer, path)
    return path


def test_every_chat_token_is_one_token_and_survives_loading(tokenizer: Any, model_dir: Path) -> None:
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    loaded = get_tokenizer(str(model_dir))
    for token in SPECIAL_TOKENS + ADDED_TOKENS:
        assert len(loaded.encode(token, add_special_tokens=False)) == 1, token
    text = CONVERSATIONS[0][2]["content"] + "\n\tuser: äöü 12345"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.eos_token == "<|im_end|>"


@pytest.mark.parametrize("renderer_name", RENDERERS)
def test_the_cookbooks_renderers_work_from_the_directory(model_dir: Path, renderer_name: str) -> None:
    from tinker_cookbook import model_info
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    loaded = get_tokenizer(str(model_dir))
    renderer = get_renderer(renderer_name, loaded, model_name=str(model_dir))
    (end,) = loaded.encode("<|im_end|>", add_special_tokens=False)
    assert renderer.get_stop_sequences() == [end]
    message, ended = renderer.parse_response([*loaded.encode(_answer("ls\n")), end])
    assert ended.is_clean
    assert message["content"] == _answer("ls\n")
    model_info.warn_if_renderer_not_recommended(str(model_dir), renderer_name)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(tokenizer: Any, text: str) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(tokens) == text
    assert not {tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS} & set(tokens)


def test_the_model_is_small_seeded_and_sized_to_the_tokenizer(tokenizer: Any) -> None:
    model = build_model(tokenizer)
    assert 1_000_000 < model.num_parameters() < 2_500_000
    assert model.config.vocab_size % 64 == 0
    assert model.config.vocab_size >= len(tokenizer)
    first, again, other = (next(build_model(tokenizer, seed=seed).parameters()) for seed in (1, 1, 2))
    assert first.equal(again)
    assert not first.equal(other)


def test_sizes_that_cannot_be_used_are_refused(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="multiple of 64"):
        build_tokenizer(["a"], 1000)
    with pytest.raises(UsageError, match="multiple of 64"):
        build_model(tokenizer, hidden_size=100)


def test_a_missing_package_is_named_and_a_broken_one_keeps_its_error() -> None:
    with pytest.raises(MissingDependencyError, match="needs torch, which is not installed"), policy.training_stack():
        raise ModuleNotFoundError("No module named 'torch.x'", name="torch.x")
    with pytest.raises(ModuleNotFoundError, match="libx"), policy.training_stack():
        raise ModuleNotFoundError("No module named 'libx'", name="libx")


@pytest.mark.parametrize(
    ("backend", "advice"),
    [
        (Backend.TINKER, r'"harbor-gym\[tinker\]"$'),
        (Backend.LOCAL, r'"harbor-gym\[tinker,server\]", then run `.* install`$'),
    ],
)
def test_a_backend_that_is_not_installed_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, advice: str
) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(MissingDependencyError, match=f"needs tinker, which is not installed: pip install {advice}"):
        require_backend(backend)


def test_rows_are_the_prompts_that_the_renderer_writes(tokenizer: Any) -> None:
    from tinker_cookbook.renderers import get_renderer

    conversation = _conversation("ls\n", "id\n", "pwd\n")
    row = warm_start.conversation_encoder(tokenizer, "qwen3_instruct")(conversation)
    renderer = get_renderer("qwen3_instruct", tokenizer)
    starts = [i for i, learnt in enumerate(row.learnt) if learnt and not row.learnt[i - 1]]
    assert len(starts) == 3
    for turn, start in enumerate(starts):
        prompt: list[Any] = list(conversation[: 2 + 2 * turn])
        assert row.tokens[:start] == renderer.build_generation_prompt(prompt).to_ints()
    learnt = tokenizer.decode([token for token, own in zip(row.tokens, row.learnt, strict=True) if own])
    assert learnt == "".join(f"{_answer(keys)}<|im_end|>" for keys in ("ls\n", "id\n", "pwd\n"))


@pytest.mark.parametrize(
    "roles", [["system", "user"], ["user", "assistant", "user"], ["user", "assistant", "assistant"]]
)
def test_conversations_that_are_no_episodes_are_refused(tokenizer: Any, roles: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="must go on as assistant, user"):
        warm_start.conversation_encoder(tokenizer, "qwen3")([{"role": role, "content": "x"} for role in roles])


def _files(directory: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("shape", [(24, 24), (24, 40), (40, 24)])
def test_the_optimizer_updates_as_torchs_but_for_rounding(shape: tuple[int, int]) -> None:
    import torch

    from harbor_gym.embedded.muon import Muon

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = Muon([ours], 0.1, 0.01), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.01)
    for _ in range(5):
        ours.grad = torch.randn(shape, generator=generator)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert (ours - theirs).norm() < 0.02 * (theirs - start).norm()


@pytest.mark.slow
def test_a_warm_start_is_repeatable_learns_and_is_made_once(tmp_path: Path) -> None:
    losses: list[float] = []

    def build(folder: str, seed: int, steps: int = 12) -> Path:
        return warm_start.warm_start(
            CONVERSATIONS,
            tmp_path / folder,
            renderer_name="qwen3",
            seed=seed,
            steps=steps,
            progress=lambda now: losses.append(now.loss),
        )

    first, again, other = build("a", 0), build("b", 0), build("a", 1)
    assert losses[11] < losses[0] / 2
    assert first.name == again.name != other.name
    assert _files(first) == _files(again)
    assert _files(first)["model.safetensors"] != _files(other)["model.safetensors"]
    made = len(losses)
    assert build("a", 0) == first
    assert len(losses) == made, "a policy that is there is not made again"


@pytest.mark.slow
def test_short_conversations_count_no_more_than_long_ones(tmp_path: Path) -> None:
    """An imitator of those who stop at once as often as they go on does the same, however long they go on."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    conversations = [_conversation("exit\n"), _conversation(*["ls\n"] * 8)] * 16
    made = warm_start.warm_start(conversations, tmp_path, renderer_name="qwen3", steps=40)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(made), AutoTokenizer.from_pretrained(made)
    chances: list[float] = []
    for conversation in conversations[:2]:
        row = warm_start.conversation_encoder(tokenizer, "qwen3")(conversation[:3])
        start = row.learnt.index(True)
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([row.tokens])).logits[0].log_softmax(-1)
        chances.append(sum(scores[at - 1, row.tokens[at]].item() for at in range(start, len(row.tokens))))
    stops, goes_on = (math.exp(chance) for chance in chances)
    assert stops + goes_on > 0.9
    assert 0.3 < stops < 0.7


def test_an_interrupted_warm_start_leaves_nothing(tmp_path: Path) -> None:
    def stop(now: warm_start.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start.warm_start(CONVERSATIONS, tmp_path, renderer_name="qwen3", progress=stop)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="there are none"):
        warm_start.warm_start([], tmp_path, renderer_name="qwen3")


def test_a_policy_that_lost_its_record_is_not_returned(tmp_path: Path) -> None:
    made = warm_start.warm_start(CONVERSATIONS, tmp_path, renderer_name="qwen3", steps=1)
    (made / warm_start.RECORD_NAME).unlink()
    with pytest.raises(UsageError, match=f"{made.name} is a policy without its warm_start.json"):
        warm_start.warm_start(CONVERSATIONS, tmp_path, renderer_name="qwen3", steps=1)


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_a_tasks_policy_is_built_in_its_sandbox_and_cached(
    tmp_path: Path, task_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine("local")
    monkeypatch.setattr(embedded, "DEMONSTRATIONS", 2)
    monkeypatch.setattr(embedded, "STEPS", 2)
    monkeypatch.setattr(embedded, "cache_dir", lambda: tmp_path / "cache")
    seen: list[tuple[str, int, int, float | None]] = []

    def note(phase: str, done: int, total: int, loss: float | None) -> None:
        seen.append((phase, done, total, loss))

    async def ensure(*, rebuild: bool = False) -> Path:
        return await embedded.ensure_policy(
            task_dir,
            sandbox="local",
            renderer_name="qwen3",
            rebuild=rebuild,
            progress=note,
        )

    with pytest.raises(TaskError, match=r"moves\.json"):
        await ensure()
    moves = task_dir / "demonstrations" / "moves.json"
    moves.parent.mkdir()
    move = {"kind": "good", "weight": 1, "analysis": "a", "plan": "p", "keystrokes": "echo done > /srv/answer\n"}
    last = {"kind": "good", "weight": 1, "analysis": "a", "plan": "p"}
    stages = {"start": {"moves": [{**move, "next": "end"}]}, "end": {"moves": [last]}}
    moves.write_text(json.dumps({"format_version": 1, "max_turns": 4, "first_stage": "start", "stages": stages}))
    made = await ensure()
    assert (made / "model.safetensors").is_file()
    assert [phase for phase, *_ in seen] == ["demonstrations"] * 2 + ["warm start"] * 2
    assert await ensure() == made
    assert len(seen) == 4, "the cached one is returned as it is"
    assert (await ensure(rebuild=True)).is_dir()
    assert len(seen) == 8
    (task_dir / "instruction.md").write_text("Something else.\n")
    assert (await ensure()).parent != made.parent
