"""verl's own managers over Ray, on the CPU: no call of these needs a GPU."""

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.errors import HarborGymError
from tests.contract.players.episode import Script
from tests.helpers.cluster.nodes import ray_of_its_own
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, UNDONE, write_task

# verl warns of each of its training engines that is not installed.
ENGINES = pytest.mark.filterwarnings("ignore:.* engine is not available:UserWarning")
pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(900), ENGINES]

SOLVED = Script((message("pwd\n"), message(DONE), COMPLETE))
UNSOLVED = Script((message(UNDONE), COMPLETE))
OWN: dict[str, Any] = {
    "sandbox": "tests.contract.players.episode:Vanishing",
    "sandbox_options": {"solved_when": {"/srv/answer": "done"}},
}


@pytest.fixture(scope="module")
def own_ray() -> Generator[None]:
    import ray

    with ray_of_its_own() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        ray.init(num_cpus=2, object_store_memory=80 * 1024 * 1024, **quiet)
        try:
            yield
        finally:
            ray.shutdown()


def config_of(directory: Path, **rollout: Any) -> Any:
    """Return verl's configuration with both of our loops in its file, and two servers."""
    from tests.helpers.verl.workers import terminal_loop, verl_config

    agent = {"agent": "tests.helpers.gateway.format_agent:FormatAgent", "agent_options": {"base_url": "{gateway_url}"}}
    loop = {"name": "agent", "_target_": "harbor_gym.adapters.verl.HarborAgentLoop", "max_answer_tokens": 500}
    servers = {"nnodes": 1, "n_gpus_per_node": 2, "tensor_model_parallel_size": 1, "calculate_log_probs": True}
    lengths = {"prompt_length": 2000, "response_length": 3000, "agent__num_workers": 2}
    loops = [terminal_loop(**OWN), {**loop, "env": {**OWN, **agent}}]
    return verl_config(directory, loops, **servers, **lengths, **rollout)


def batch_of(directory: Path) -> Any:
    """Return two tasks, one of each loop, twice each, as verl's trainer repeats a batch of its dataset."""
    import numpy as np
    from verl.protocol import DataProto

    from tests.helpers.verl.workers import make_batch

    tasks = [write_task(directory / name, instruction=f"Do {name}.\n") for name in ("first", "second")]
    batch = DataProto.concat([make_batch(tasks[0], "terminal"), make_batch(tasks[1], "agent")])
    batch.non_tensor_batch["uid"] = np.array(["a", "b"], dtype=object)
    return batch.repeat(2, interleave=True)


@pytest.mark.usefixtures("own_ray")
def test_verls_managers_play_a_batch_of_both_loops(tmp_path: Path) -> None:
    import ray

    from tests.helpers.chats.tokenizers import byte_level_tokenizer
    from tests.helpers.verl.manager import load_model, score, start
    from tests.helpers.verl.workers import row_of

    config = config_of(tmp_path)
    model_dir = config.actor_rollout_ref.model.path
    model = load_model(model_dir)
    manager, servers = start(config, [SOLVED, UNSOLVED] * 2, lost={1: 1}, model_dir=model_dir)
    given = batch_of(tmp_path)
    output = manager.generate_sequences(given)

    # A row for each episode, in the order of the batch that was given.
    rows = output.non_tensor_batch
    assert rows["uid"].tolist() == ["a", "a", "b", "b"]
    assert [harbor["task"] for harbor in rows["harbor"]] == ["first", "first", "second", "second"]
    assert {harbor["end_reason"] for harbor in rows["harbor"]} == {"completed"}
    assert rows["__num_turns__"].tolist() == [6, 4, 6, 4]
    assert rows["failed_attempts"].tolist() == [0.0, 1.0, 0.0, 0.0], "a fresh sandbox for the one that went away"
    assert output.meta_info["reward_extra_keys"] == ["truncated", "failed_attempts"]
    asked: list[int] = [ray.get(server.requests.remote()) for server in servers]
    assert (sum(asked), min(asked) > 0) == (3 + 2 + 3 + 2 + 1, True), "verl's balancer asks both servers"

    # The prompt is the task's, the mask is 1 on the answers alone, and the reward stands at the last token.
    tokenizer = byte_level_tokenizer()
    scores = output.batch["rm_scores"]
    for number, (task, script) in enumerate(zip(rows["harbor"], [SOLVED, UNSOLVED] * 2, strict=True)):
        prompt, response, mask, logprobs = row_of(output, number)
        assert f"Do {task['task']}." in tokenizer.decode(prompt)
        sampled = [token for token, is_sampled in zip(response, mask, strict=True) if is_sampled]
        assert tokenizer.decode(sampled) == "".join(f"{answer}<|im_end|>" for answer in script.answers)
        assert all((logprob == 0.0) != bool(is_sampled) for logprob, is_sampled in zip(logprobs, mask, strict=True))
        assert scores[number].nonzero().tolist() == ([[len(response) - 1]] if script is SOLVED else [])
        assert scores[number].sum().item() == float(script is SOLVED)

    # A model gives each sampled token the log-probability that the servers gave it.
    for number in range(len(output)):
        prompt, response, mask, logprobs = row_of(output, number)
        known = score(model, [*prompt, *response])[len(prompt) - 1 :].tolist()
        trained = [(own, given) for own, given, is_sampled in zip(known, logprobs, mask, strict=True) if is_sampled]
        assert [own for own, _ in trained] == pytest.approx([given for _, given in trained], abs=1e-4)


@pytest.mark.usefixtures("own_ray")
def test_a_lost_episode_ends_the_batch_with_its_own_error(tmp_path: Path) -> None:
    from tests.helpers.verl.manager import start

    manager, _ = start(config_of(tmp_path), [SOLVED], lost={2: 2})
    with pytest.raises(HarborGymError, match="it went away"):
        manager.generate_sequences(batch_of(tmp_path))
