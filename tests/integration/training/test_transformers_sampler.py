"""A model of transformers in this process as the policy of episodes, and of one of Harbor's agents."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from harbor.models.trial.config import TaskConfig

from harbor_gym import HFCodec
from harbor_gym.errors import ContextOverflowError, SamplerError, UsageError
from harbor_gym.gateway import SessionLimits, TemplateConversationCodec
from harbor_gym.harbor import RolloutInterface
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.policies.random_policy import write_endless_policy, write_random_model, write_random_policy
from tests.helpers.sandboxes.fake_episodes import FAKE
from tests.helpers.tasks import write_task
from tests.integration.training.test_embedded_engine import PROMPTS, TOLERANCE, trained

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("engines")]


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def model(engines: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(write_random_model(tmp_path_factory.mktemp("model"), "LlamaForCausalLM"))


def sampler(model: Any, **settings: Any) -> Any:
    from harbor_gym.embedded.sampler import TransformersSampler

    settings = {"max_tokens": 6, **settings}
    return TransformersSampler(model, **settings)


async def test_messages_of_prompts_at_once_have_the_logprobs_of_training(model: Any) -> None:
    sample = sampler(model, sequences_at_once=2)
    messages = await asyncio.gather(*(sample(prompt) for prompt in PROMPTS))
    for prompt, message in zip(PROMPTS, messages, strict=True):
        assert message.checked(max_tokens=6).logprobs == pytest.approx(
            trained(model, prompt, message.tokens), abs=TOLERANCE
        )
        assert (message.version, message.queued_sec >= 0) == (0, True)
    before = sample.computed_tokens
    await sample([*PROMPTS[0], *messages[0].tokens, 3, 4])
    assert sample.computed_tokens == before + 3, "the last sampled token and two new ones"


async def test_the_seed_decides(model: Any) -> None:
    async def play(**settings: Any) -> list[Any]:
        sample = sampler(model, **settings)
        return [(await sample(prompt)).tokens for prompt in PROMPTS]

    assert await play(seed=3) == await play(seed=3)
    assert await play(seed=3) != await play(seed=4)
    assert await play(temperature=0, seed=3) == await play(temperature=0, seed=4)


async def test_a_message_ends_with_the_models_own_token_or_a_given_one(model: Any) -> None:
    (first, *_) = (await sampler(model, temperature=0)(PROMPTS[0])).tokens
    ended = await sampler(model, temperature=0, stop_token_ids=[first])(PROMPTS[0])
    assert (ended.tokens, ended.stop_reason) == ([first], "stop")
    model.generation_config.eos_token_id, own = first, model.generation_config.eos_token_id
    try:
        assert (await sampler(model, temperature=0)(PROMPTS[0])).tokens == [first]
        model.generation_config.eos_token_id = None
        with pytest.raises(UsageError, match="no eos_token_id: pass stop_token_ids"):
            sampler(model)
    finally:
        model.generation_config.eos_token_id = own


async def test_an_episode_that_is_cancelled_costs_no_other_its_message(model: Any) -> None:
    sample = sampler(model, sequences_at_once=2)
    episodes = [asyncio.create_task(sample(prompt)) for prompt in (*PROMPTS, *PROMPTS)]
    await asyncio.sleep(0)  # the first leads the batch of two; the last waits
    for cancelled in (episodes[0], episodes[-1]):
        cancelled.cancel()
    answers: list[Any] = await asyncio.gather(*episodes, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, *[False] * 4, True]
    assert all(len(answer.tokens) <= 6 for answer in answers[1:-1])
    assert (await sample(PROMPTS[0])).tokens


async def test_other_weights_give_other_messages_of_another_version(model: Any) -> None:
    sample = sampler(model, temperature=0)
    before = await sample(PROMPTS[0])
    async with sample.changing_weights():
        waiting = asyncio.create_task(sample(PROMPTS[0]))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        for weight in model.parameters():
            weight.data *= -1
    after = await waiting
    try:
        assert after.logprobs == pytest.approx(trained(model, PROMPTS[0], after.tokens), abs=TOLERANCE)
    finally:
        for weight in model.parameters():
            weight.data *= -1
    assert (before.version, after.version) == (0, 1)
    assert before.logprobs != after.logprobs


async def test_what_does_not_fit_or_fails_is_an_error_of_ours(model: Any) -> None:
    sample = sampler(model)
    assert await sample.context_tokens() == 512
    with pytest.raises(ContextOverflowError, match="507 tokens and an answer of 6 exceed the model's context of 512"):
        await sample(range(507))
    with pytest.raises(SamplerError, match="the model failed"):
        await sample([10**6])  # no such token
    assert (await sample(PROMPTS[0])).tokens
    with pytest.raises(UsageError, match="max_tokens and sequences_at_once must be at least 1"):
        sampler(model, max_tokens=0)


@pytest.mark.parametrize("agent", [pytest.param("terminus-2", marks=[pytest.mark.local, pytest.mark.slow]), None])
async def test_it_plays_episodes_and_keeps_their_turns(agent: str | None, engines: None, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    # A message that is cut ends an episode of our own loop, and none of an agent's.
    folder = (write_endless_policy if agent else write_random_policy)(tmp_path / "policy")
    policy = load(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    codec = TemplateConversationCodec(tokenizer) if agent else HFCodec(tokenizer)
    sample = sampler(policy, max_tokens=12 if agent else 64)
    episode: dict[str, Any] = {"max_turns": 3, "sandbox": "local", "agent": agent}
    if agent is None:
        episode = {"max_turns": 3, "sandbox": FAKE, "task_dir": tmp_path / "task", "action_format": "keystrokes"}
    else:
        require_engine("local")
    # The order of the prompts decides what is sampled; a random message that is cut would end our own loop's episode.
    order: dict[str, Any] = {} if agent else {"n_concurrent": 1}
    interface = RolloutInterface(episode, sample, codec, limits=SessionLimits(max_answer_tokens=64), **order)
    rollouts = await interface.run([TaskConfig(path=write_task(tmp_path / "task"))] * 2)
    for rollout in rollouts:
        assert rollout.error is None
        main = rollout.main
        prompt, sampled = main.prompt, []
        for span in main.spans:
            sampled += main.completion[span.start : span.end]
            expected = trained(
                policy, [*prompt, *main.completion[: span.start]], main.completion[span.start : span.end]
            )
            assert main.logprobs[span.start : span.end] == pytest.approx(expected, abs=TOLERANCE)
        assert len(main.spans) == 3
        assert len(sampled) == sum(main.mask) > 3
    whole = sum(len(rollout.main.token_ids) for rollout in rollouts)
    assert sample.computed_tokens <= whole, "no turn is read twice"


@pytest.mark.local
@pytest.mark.slow
async def test_the_pages_programs(engines: None, tmp_path: Path) -> None:
    """They run as docs/guide/engines.md has them, but for the model, the task and a size."""
    require_engine("local")
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/engines.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    policy = write_endless_policy(tmp_path / "policy")
    places = {"models/smollm2": str(policy), "task:devops_task": str(write_task(tmp_path / "task"))}
    for number, text in enumerate(programs):
        for place, own in {**places, "max_tokens=64": "max_tokens=12"}.items():
            text = text.replace(place, own)
        (tmp_path / f"{number}.py").write_text(text)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def begin(number: int) -> Any:
        command = sys.executable, f"{number}.py"
        return asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE)

    played = await begin(0)
    *episodes, computed = (await played.communicate())[0].decode().splitlines()
    assert played.returncode == 0
    assert [line.split()[:2] for line in episodes] == [["0.0", "max_turns"]] * 2
    assert re.fullmatch(r"\d+ prompt tokens went through the model", computed)
    serving = await begin(1)
    try:
        address = (await serving.stdout.readline()).decode().strip()
        body = {"model": "policy", "messages": [{"role": "user", "content": "ls"}]}
        async with aiohttp.ClientSession() as client, client.post(f"{address}/chat/completions", json=body) as answer:
            assert answer.status == 200
            assert (await answer.json())["usage"]["completion_tokens"] <= 12
    finally:
        serving.kill()
        await serving.wait()
