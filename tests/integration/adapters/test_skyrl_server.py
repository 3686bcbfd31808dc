"""SkyRL's generator with episodes on Harbor's own server."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from harbor_gym import Sample
from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym.errors import UsageError
from tests.helpers.gateway.harbor_server import KEY, started
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task

if find_spec("skyrl") is None:
    pytest.skip('pip install "harbor-gym[skyrl]"', allow_module_level=True)

from tests.helpers import skyrl as sky
from tests.helpers.chats.tokenizers import byte_level_tokenizer

AGENT = {"agent": "tests.helpers.gateway.relayed_agent:RelayedAgent", "env": {}}


async def solve(prompt: Sequence[int]) -> Sample:
    """Write the answer, then declare the task complete."""
    tokenizer = byte_level_tokenizer()
    turn = tokenizer.decode(list(prompt)).count("<|im_start|>assistant") - 1
    tokens = [*tokenizer.encode((message(DONE), COMPLETE)[turn], add_special_tokens=False), tokenizer.eos_token_id]
    return Sample(tokens, [-0.5] * len(tokens))


@pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a server since 0.26")
async def test_an_agents_episodes_run_on_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_API_KEY", KEY)
    task = write_task(tmp_path / "task")
    with started(tmp_path / "server") as server:
        own = {**AGENT, "harbor_server": server.url, "sandbox_options": {"solved_when": {"/srv/answer": "done"}}}
        engine = sky.SamplerEngine(solve)
        batch, _ = sky.make_input(task, size=2)
        output = await sky.make_generator(engine, own).generate(batch)
    assert output["stop_reasons"] == ["stop"] * 2
    assert output["rewards"] == [1.0] * 2
    for tokens, mask in zip(output["response_ids"], output["loss_masks"], strict=True):
        trained = [token for token, own in zip(tokens, mask, strict=True) if own]
        assert byte_level_tokenizer().decode(trained, skip_special_tokens=True) == message(DONE) + COMPLETE


@pytest.mark.skipif(VERSION >= (0, 26), reason="this Harbor has a server")
def test_an_older_harbor_says_so_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"new in Harbor 0\.26"):
        sky.make_generator(sky.SamplerEngine(solve), {**AGENT, "harbor_server": "http://127.0.0.1:1"})
