"""A real AsyncGRPOTrainer on the CPU: our rollout process, over an engine of this process."""

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.errors import UsageError
from harbor_gym.samplers import CompletionsSampler
from tests.helpers import tiny_trl
from tests.helpers.sandboxes.letters import LETTER

pytestmark = pytest.mark.usefixtures("nothing_left")

GROUP = 8


@pytest.mark.parametrize("shared", [0, 5])
def test_attention_on_the_cpu(shared: int) -> None:
    import torch

    torch.manual_seed(0)
    lengths = [(3, 3 + shared), (1, 1), (4, 9)]
    query = torch.randn(sum(n for n, _ in lengths), 4, 8)
    key, value = (torch.randn(sum(m for _, m in lengths), 2, 8) for _ in range(2))
    ends = [
        torch.tensor([0, *(n for n, _ in lengths)]).cumsum(0),
        torch.tensor([0, *(m for _, m in lengths)]).cumsum(0),
    ]
    found = tiny_trl.attend(query, key, value, ends[0], ends[1], 4, 9, softmax_scale=0.3)
    at = 0
    for segment, (queries, keys) in enumerate(lengths):
        first = int(ends[1][segment])
        for number in range(queries):
            seen = keys - queries + number + 1
            for head in range(4):
                scores = key[first : first + seen, head // 2] @ query[at, head] * 0.3
                expected = scores.softmax(0) @ value[first : first + seen, head // 2]
                torch.testing.assert_close(found[at, head], expected, atol=1e-5, rtol=1e-5)
            at += 1
    with pytest.raises(UsageError, match="without a window"):
        tiny_trl.attend(query, key, value, ends[0], ends[1], 4, 9, window_size=(3, 0))


@pytest.fixture(scope="module")
def policy(letter_policy: Callable[[str], Path]) -> tuple[Path, Any]:
    """A saved policy of the agent ``bash``, and its tokenizer."""
    from transformers import AutoTokenizer

    return letter_policy("bash"), AutoTokenizer.from_pretrained(letter_policy("bash"))


@pytest.fixture
def engine(policy: tuple[Path, Any]) -> "Iterator[tiny_trl.CompletionsEngine]":
    from transformers import AutoModelForCausalLM

    with tiny_trl.CompletionsEngine(AutoModelForCausalLM.from_pretrained(policy[0]), policy[1]) as serving:
        yield serving


@pytest.mark.slow
async def test_the_engine_returns_the_models_own_logprobs(
    policy: tuple[Path, Any], engine: "tiny_trl.CompletionsEngine"
) -> None:
    import torch

    _, tokenizer = policy
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in ("a", "one of a b c d", "<|im_start|>user")]
    weights = {name: value.detach() * 0.5 for name, value in engine_model(engine).named_parameters()}
    for scale, temperature in ((1.0, 1.0), (0.5, 0.7)):
        if scale != 1.0:
            engine.load(weights.items())
        for prompt in prompts:
            async with CompletionsSampler(engine.url, "x", max_tokens=7, temperature=temperature) as sampler:
                sample = await sampler(prompt)
            tokens = [*prompt, *sample.tokens]
            logits = engine_model(engine)(torch.tensor([tokens])).logits[0, len(prompt) - 1 : -1] / temperature
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
            assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
            assert (sample.stop_reason == "stop") == (sample.tokens[-1] == tokenizer.eos_token_id)
    with pytest.raises(UsageError, match="no parameter 'nowhere'"):
        engine.load([("nowhere", torch.zeros(1))])


def engine_model(engine: "tiny_trl.CompletionsEngine") -> Any:
    return engine._model  # pyright: ignore[reportPrivateUsage]  # the reference is the model itself


@pytest.mark.slow
def test_the_ratio_is_one_where_no_update_came_between(tmp_path: Path) -> None:
    rewards = tiny_trl.train_letters_async(
        tmp_path, sandbox=LETTER, steps=3, group_size=GROUP, max_staleness=0, warm_start_steps=80
    )
    rows = [json.loads(line) for line in (tmp_path / tiny_trl.METRICS_NAME).read_text().splitlines()]
    assert len(rewards) == len(rows) == 3
    assert all(0 <= reward <= 1 for reward in rewards)
    # accelerate reads one batch ahead: the second one was sampled before the first update, at any staleness.
    assert abs(rows[0]["ratio"] - 1) < 1e-3
    assert abs(rows[0]["kl"]) < 1e-5
    assert all(row["sample/staleness_max"] == 0 for row in rows)
    assert all(row["harbor/lost"] == 0 for row in rows if "harbor/lost" in row)
    assert any(row["grad_norm"] > 0 for row in rows)
