"""verl's own worker around our loops, and its own dataset class on ours."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import Sample
from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym.errors import SamplerError, UsageError
from tests.contract.players.episode import Script
from tests.helpers.gateway.harbor_server import KEY, started
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.verl

SOLVED = Script((message("pwd\n"), message(DONE), COMPLETE))
OPTIONS = {"solved_when": {"/srv/answer": "done"}}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task")


async def test_a_batch_in_verls_own_form(task: Path, tmp_path: Path) -> None:
    from tests.helpers.verl.workers import SamplerServers, make_batch, play, terminal_loop, verl_config

    servers = SamplerServers(SOLVED)
    config = verl_config(tmp_path, [terminal_loop(sandbox_options=OPTIONS)])
    output = await play(config, servers, make_batch(task, "terminal", size=2))
    assert output.batch["responses"].shape == (2, 12_000)
    assert output.batch["rm_scores"].sum(dim=-1).tolist() == [1.0, 1.0]
    assert output.non_tensor_batch["__num_turns__"].tolist() == [6, 6]
    assert output.meta_info["reward_extra_keys"] == ["truncated", "failed_attempts"]
    assert output.non_tensor_batch["truncated"].tolist() == [0.0, 0.0]
    for harbor in output.non_tensor_batch["harbor"]:
        assert (harbor["task"], harbor["end_reason"], harbor["rewards"]) == ("task", "completed", {"reward": 1.0})
    assert sorted(servers.requests.values()) == [3, 3], "an id for each episode"
    assert {params["max_tokens"] for params in servers.params} == {500}
    assert min(output.non_tensor_batch["min_global_steps"]) == 3
    assert max(output.non_tensor_batch["max_global_steps"]) == 9
    assert all(item["num_preempted"] == 0 for item in output.meta_info["metrics"])


async def test_the_response_length_ends_an_episode_that_is_verified(task: Path, tmp_path: Path) -> None:
    from tests.helpers.verl.workers import SamplerServers, make_batch, play, row_of, terminal_loop, verl_config

    answers = Script((message(DONE), *[message(f"echo {'x' * 100}\n")] * 40))
    config = verl_config(tmp_path, [terminal_loop(sandbox_options=OPTIONS)], response_length=2000)
    output = await play(config, SamplerServers(answers), make_batch(task, "terminal"))
    (harbor,) = output.non_tensor_batch["harbor"]
    assert harbor["end_reason"] == "context_overflow"
    assert output.batch["rm_scores"].sum().item() == 1.0
    _, response, mask, _ = row_of(output)
    assert 1000 < len(response) <= 2000
    assert mask[-1] == 1


async def test_a_prompt_that_is_too_long_leaves_a_row_without_training(task: Path, tmp_path: Path) -> None:
    from tests.helpers.verl.workers import SamplerServers, make_batch, play, terminal_loop, verl_config

    servers = SamplerServers(SOLVED)
    config = verl_config(tmp_path, [terminal_loop(sandbox_options=OPTIONS)], prompt_length=50)
    output = await play(config, servers, make_batch(task, "terminal"))
    assert output.non_tensor_batch["harbor"][0]["end_reason"] == "context_overflow"
    assert (output.batch["response_mask"].sum().item(), output.batch["rm_scores"].sum().item()) == (0, 0.0)
    assert not servers.requests


async def test_what_vllms_servers_call_completed_is_cut_at_its_limit(task: Path, tmp_path: Path) -> None:
    from tests.helpers.verl.workers import SamplerServers, make_batch, play, terminal_loop, verl_config

    async def endless(prompt: Any) -> Sample:
        return Sample([65] * 500, [-1.0] * 500, "stop")

    output = await play(verl_config(tmp_path, [terminal_loop()]), SamplerServers(endless), make_batch(task, "terminal"))
    assert output.non_tensor_batch["harbor"][0]["end_reason"] == "max_tokens"


async def test_a_failure_of_rays_is_told_in_one_line(task: Path, tmp_path: Path) -> None:
    from ray.exceptions import RayTaskError

    from tests.helpers.verl.workers import SamplerServers, make_batch, play, terminal_loop, verl_config

    class Failing(SamplerServers):
        async def generate(self, request_id: str, **request: Any) -> Any:
            cause = ConnectionError("the server is gone")
            raise RayTaskError("generate", "Traceback:\n  a line of another process\n", cause).as_instanceof_cause()

    with pytest.raises(SamplerError, match=r"^verl's LLM server failed: ConnectionError: the server is gone$"):
        await play(verl_config(tmp_path, [terminal_loop()]), Failing(SOLVED), make_batch(task, "terminal"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sandbx": "local"}, "sandbx"),
        ({"max_answer_tokens": 20_000}, "more than rollout.response_length, 12000"),
        ({"env": {"no_such_field": 1}}, "no_such_field"),
        ({"agent": "terminus-2"}, "env.agent is for HarborAgentLoop"),
    ],
)
async def test_settings_that_can_not_be_used(
    settings: dict[str, Any], message: str, task: Path, tmp_path: Path
) -> None:
    from hydra.errors import InstantiationException

    from tests.helpers.verl.workers import SamplerServers, make_batch, play, terminal_loop, verl_config

    config = verl_config(tmp_path, [terminal_loop(**settings)])
    with pytest.raises((UsageError, InstantiationException), match=message):
        await play(config, SamplerServers(SOLVED), make_batch(task, "terminal"))


@pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a server since 0.26")
async def test_an_agents_episodes_run_on_harbors_server(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers.verl.workers import FAKE, SamplerServers, make_batch, play, row_of, verl_config

    monkeypatch.setenv("HARBOR_API_KEY", KEY)
    agent = "tests.helpers.gateway.relayed_agent:RelayedAgent"
    own = {"sandbox": FAKE, "sandbox_options": OPTIONS, "agent": agent}
    loop = {"name": "agent", "_target_": "harbor_gym.adapters.verl.HarborAgentLoop", "max_answer_tokens": 500}
    servers = SamplerServers(SOLVED)
    with started(tmp_path / "server") as server:
        config = verl_config(tmp_path, [{**loop, "env": {**own, "harbor_server": server.url}}])
        output = await play(config, servers, make_batch(task, "agent", size=2))
    assert output.batch["rm_scores"].sum(dim=-1).tolist() == [1.0, 1.0]
    for number, harbor in enumerate(output.non_tensor_batch["harbor"]):
        assert harbor["end_reason"] == "completed"
        assert harbor["metrics"]["gateway/reconnects"] == 0
        assert sum(row_of(output, number)[2]) > 0
    assert sorted(servers.requests.values()) == [3, 3]


def test_a_dataset_that_verl_reads(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from harbor_gym.adapters.verl import write_dataset
    from tests.helpers.chats.tokenizers import byte_level_tokenizer
    from tests.helpers.verl.workers import terminal_loop, verl_config

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = write_dataset([task, write_task(tmp_path / "other")], tmp_path / "train.parquet", agent_name="mine")
    config = verl_config(tmp_path, [terminal_loop()]).data
    config.filter_overlong_prompts = False
    dataset = RLHFDataset(str(path), byte_level_tokenizer(), config)
    rows = [dataset[number] for number in range(len(dataset))]
    assert [(row["index"], row["agent_name"], row["data_source"]) for row in rows] == [
        (0, "mine", "harbor"),
        (1, "mine", "harbor"),
    ]
    assert [row["extra_info"]["task_dir"] for row in rows] == [str(task), str(tmp_path / "other")]
    assert rows[0]["raw_prompt"][0]["role"] == "user"


def test_a_dataset_needs_its_suffix(task: Path, tmp_path: Path) -> None:
    from harbor_gym.adapters.verl import write_dataset

    with pytest.raises(UsageError, match=r"train.jsonl must end with .parquet"):
        write_dataset(task, tmp_path / "train.jsonl")
