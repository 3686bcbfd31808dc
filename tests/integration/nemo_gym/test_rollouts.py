"""Real ``gym env start`` and ``gym eval run``: one run of both kinds of sandbox, every way to fail among its rows.

Each row is played on one kind. What a sandbox's kind changes is a subject of the sandboxes' own tests.
"""

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from harbor_gym.adapters.nemo_gym.failures import failed_rows
from harbor_gym.adapters.nemo_gym.server import SERVER, write_server_folder
from tests.helpers.chats.character_codec import END
from tests.helpers.engine_double import EngineDouble, in_turn, serve
from tests.helpers.engines import require_engine
from tests.helpers.nemo_gym.servers import gym_env_start, gym_eval_run, use_this_environment
from tests.helpers.nemo_gym.trainer import read_as_trainer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import BASE, DONE, PASS_IF_DONE, write_task

pytestmark = [
    pytest.mark.nemo_gym,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]

REPEATS = 2
MAX_CONTEXT_TOKENS = 30_000
LATE = message("sleep 2\n", duration=5.0)
SECOND = PASS_IF_DONE.replace("answer", "second")
WORKDIR = "/srv/app"
PLACED = PASS_IF_DONE.replace("/srv", WORKDIR)

SOLVED = (message(DONE), COMPLETE, COMPLETE)
STEPS = (message(DONE, complete=True), message("echo done > /srv/second\n", complete=True))
SCRIPTS = {
    "Solve it.": SOLVED,
    "Do the first step.": STEPS,
    "verifier is broken": SOLVED,
    "In your directory.": (message("echo done > answer\n"), COMPLETE),
    "takes too long": (message(DONE), LATE),
    "never starts": SOLVED,
    "xxxxxxxxxx": SOLVED,
}
THINKING = "<think>hm</think>"
"""How each answer begins; vLLM's reasoning parser takes it out of the content."""


def by_instruction(messages: Sequence[Mapping[str, Any]]) -> str:
    text = json.dumps([item["content"] for item in messages if item["role"] != "assistant"])
    script = next(answers for words, answers in SCRIPTS.items() if words in text)
    return f"{THINKING}{in_turn(*script)(messages)}"


OWN, AGENT = "harbor_gym_agent", "harbor_gym_terminus"
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("good::solved", OWN, {}),
    ("good::steps", OWN, {}),
    ("odd::broken", OWN, {}),
    ("lost::unbuildable", OWN, {}),
    ("odd::long", OWN, {}),
    ("placed::relative", OWN, {}),
    ("good::late", OWN, {"harbor_gym": {"harbor_agent_timeout": 1.0}}),
    ("good::solved", AGENT, {}),
    ("odd::broken", AGENT, {"harbor_gym": {"max_retries": 0}}),
)

KINDS = ("local", "apptainer")


def is_elsewhere(instance_id: str, agent: str) -> bool:
    """Return whether a row is played on the last kind of sandbox, and not on the first."""
    return agent == AGENT or instance_id.startswith(("placed::", "lost::"))


def available() -> list[str]:
    found: list[str] = []
    for kind in KINDS:
        with contextlib.suppress(pytest.skip.Exception):
            require_engine(kind)
            found.append(kind)
    return found


@dataclass(frozen=True)
class Run:
    """The results of the rollouts."""

    kinds: list[str]
    folder: Path
    rows: list[dict[str, Any]]
    engine: EngineDouble
    left: list[str]
    """Processes of the servers that outlived them."""

    def of(self, instance_id: str, agent: str = OWN) -> list[dict[str, Any]]:
        wanted = instance_id, agent
        found = [row for row in self.rows if (row["instance_id"], row["agent_ref"]["name"]) == wanted]
        assert len(found) == REPEATS
        return found


def write_tasks(folder: Path) -> None:
    write_task(folder / "good/solved", instruction="Solve it.\n")
    write_task(folder / "good/late", instruction="This takes too long.\n")
    write_task(folder / "placed/relative", instruction="In your directory.\n", test_sh=PLACED)
    write_task(
        folder / "odd/broken", instruction="Its verifier is broken.\n", test_sh="#!/bin/bash\necho boom\nexit 3\n"
    )
    write_task(folder / "odd/long", instruction="x" * 2 * MAX_CONTEXT_TOKENS)
    unbuildable = f"FROM {BASE}\nRUN exit 3\n"
    write_task(folder / "lost/unbuildable", instruction="It never starts.\n", dockerfile=unbuildable)
    steps = write_task(folder / "good/steps", toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    (steps / "instruction.md").unlink()
    for name, instruction, test in (("one", "Do the first step.", PASS_IF_DONE), ("two", "Do the other.", SECOND)):
        step = steps / "steps" / name
        (step / "tests").mkdir(parents=True)
        (step / "instruction.md").write_text(instruction)
        (step / "tests/test.sh").write_text(test)


def write_project(project: Path, kinds: list[str]) -> list[str]:
    """Initialise the project with our command's own files, further agents beside it; return the configurations."""
    write_tasks(project / "tasks")
    write_server_folder(
        project, Path("tasks/good"), alias="good", sandbox=kinds[0], requirement="harbor-gym", overwrite=False
    )
    training = SERVER / "configs/harbor_gym_agent_training.yaml"
    config = yaml.safe_load((project / training).read_text())
    block = config[OWN]["responses_api_agents"][SERVER.name]
    datasets = block["harbor_datasets"]
    assert (block["env"]["sandbox"], datasets.keys()) == (kinds[0], {"good"})
    datasets["odd"] = {"local_dataset_path": "tasks/odd"}
    block["n_concurrent"] = 8
    of_agents = {
        "sandbox": kinds[-1],
        "agent": "terminus-2",
        "time_limit_sec": 300,
        "agent_options": {"max_turns": 20, "interleaved_thinking": True, "enable_summarize": False},
    }
    agent = {**block, "harbor_datasets": {**datasets}, "env": {**block["env"], **of_agents}}
    config[AGENT] = {"responses_api_agents": {SERVER.name: agent}}
    relay = config["harbor_gym_environment"]["environment_servers"]["legacy_agent"]
    of_agent = {**relay, "agent_server": {**relay["agent_server"], "name": AGENT}}
    config[f"{AGENT}_environment"] = {"environment_servers": {"legacy_agent": of_agent}}
    elsewhere = {"env": {"sandbox": kinds[-1]}}
    datasets["placed"] = {"local_dataset_path": "tasks/placed/relative", "workdir": WORKDIR, **elsewhere}
    datasets["lost"] = {"local_dataset_path": "tasks/lost", **elsewhere}
    block["env"]["confirm_task_complete"] = False
    (project / training).write_text(yaml.safe_dump(config))
    rows = [
        {
            "instance_id": instance_id,
            "responses_create_params": {"input": [], "temperature": 1.0},
            "agent_ref": {"type": "responses_api_agents", "name": agent},
            **more,
        }
        for instance_id, agent, more in ROWS
    ]
    (project / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [str(training)]


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A short path: Ray's sockets lie below it."""
    path = Path(tempfile.mkdtemp(prefix="ng-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(project: Path) -> Run:
    """The results of the rollouts on the kinds of sandbox that this machine has."""
    if not (kinds := available()):
        pytest.skip("neither kind of sandbox is available here")
    async with serve(EngineDouble(write=by_instruction, max_context_tokens=MAX_CONTEXT_TOKENS)) as engine:
        configs = write_project(project, kinds)
        output = project / "results/rollouts.jsonl"
        output.parent.mkdir()
        policy = ("--model", "policy", "--model-url", engine.base_url, "--model-api-key", "none")
        async with gym_env_start(project, configs, *policy, use_this_environment(project)) as left:
            repeats = ("--num-repeats", str(REPEATS), "--concurrency", "32")
            rows = await gym_eval_run(project, project / "rows.jsonl", output, *repeats)
        return Run(kinds, output.parent, rows, engine, left)


def verdict(row: dict[str, Any]) -> tuple[float, bool, str | None, str, int]:
    assert row["instance_config"]["mask_sample"] == row["mask_sample"]
    return row["reward"], row["mask_sample"], row["failure_kind"], row["end_reason"], row["turns"]


def sampled(row: dict[str, Any]) -> str:
    sequence = read_as_trainer(row["response"]["output"])
    return "".join(chr(token) for token, own in zip(sequence.completion, sequence.mask, strict=True) if own)


def rollout_text(*answers: str) -> str:
    return "".join(f"{THINKING}{answer}{chr(END)}" for answer in answers)


async def test_every_row_came_back(run: Run) -> None:
    assert len(run.rows) == REPEATS * len(ROWS)
    assert (run.folder / "rollouts_failures.jsonl").read_text() == ""
    assert all(row["response"]["output"] and row["tokens_contiguous"] == 1 for row in run.rows)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in KINDS])
async def test_each_kind_of_sandbox_has_its_rows(run: Run, kind: str) -> None:
    played: set[tuple[str, str]] = set()
    for row in run.rows:
        trial = json.loads((Path(row["trial_dir"]) / "config.json").read_text())
        if trial["environment"]["import_path"].startswith(f"harbor_gym.sandboxes.{kind}."):
            played.add((row["instance_id"], row["agent_ref"]["name"]))
    assert played == {
        (name, agent) for name, agent, _ in ROWS if kind == run.kinds[-1 if is_elsewhere(name, agent) else 0]
    }


async def test_solved_rows(run: Run) -> None:
    for row in run.of("good::solved"):
        assert verdict(row) == (1.0, False, None, "completed", 2)
        assert sampled(row) == rollout_text(*SOLVED[:2])
        assert [item["role"] for item in row["responses_create_params"]["input"]] == ["system", "user"]
    for row in run.of("placed::relative"):
        assert verdict(row) == (1.0, False, None, "completed", 2)
    for row in run.of("good::steps"):
        assert verdict(row) == (1.0, False, None, "completed", 2)
        assert sampled(row) == rollout_text(*STEPS)


async def test_terminus_2_by_the_gateway(run: Run) -> None:
    for row in run.of("good::solved", AGENT):
        assert verdict(row) == (1.0, False, None, "completed", 3)
        assert sampled(row) == rollout_text(*SOLVED)
    for row in run.of("odd::broken", AGENT):
        assert verdict(row) == (0.0, True, "verifier_error", "infrastructure_error", 3)
        assert (sampled(row), row["attempts"]) == (rollout_text(*SOLVED), 1)


async def test_lost_rows(run: Run) -> None:
    for row in run.of("odd::broken"):
        assert verdict(row) == (0.0, True, "verifier_error", "infrastructure_error", 2)
        assert (sampled(row), row["attempts"]) == (rollout_text(*SOLVED[:2]), 2)
        assert "boom" in row["verifier_output"]
    for row in run.of("lost::unbuildable"):
        assert verdict(row) == (0.0, True, "provider_unavailable", "infrastructure_error", 0)
        assert row["attempts"] == 2
        assert len(sampled(row)) == 1


async def test_spent_budgets(run: Run) -> None:
    for row in run.of("odd::long"):
        assert verdict(row) == (0.0, True, "harbor_gym:context_overflow", "context_overflow", 0)
        assert len(sampled(row)) == 1
    for row in run.of("good::late"):
        assert verdict(row) == (1.0, False, "agent_timeout", "time_limit", 2)
        assert sampled(row) == rollout_text(message(DONE), LATE)


async def test_prompts_are_those_of_the_engine(run: Run) -> None:
    """Token by token: a row trains on the engine's own prompts, and nothing was rendered anew."""
    prompted = {tuple(exchange.prompt) for exchange in run.engine.exchanges}
    items = [item for row in run.rows for item in row["response"]["output"] if item.get("prompt_token_ids", [0]) != [0]]
    assert len(items) > 25
    assert all(tuple(item["prompt_token_ids"]) in prompted for item in items)


async def test_aggregates_leave_masked_rows_out_and_count_them(run: Run) -> None:
    (file,) = run.folder.glob("*aggregate_metrics.json")
    metrics = {entry["agent_ref"]["name"]: entry["agent_metrics"] for entry in json.loads(file.read_text())}
    masked = Counter(row["agent_ref"]["name"] for row in run.rows if row["mask_sample"])
    assert masked == {OWN: 3 * REPEATS, AGENT: REPEATS}
    for agent, count in masked.items():
        assert metrics[agent]["coverage/masked_rollouts"] == count
        assert metrics[agent]["mean/reward"] == 1.0


async def test_failures_are_found_by_instance_id(run: Run) -> None:
    found = failed_rows(run.folder)
    assert found == failed_rows(run.folder / "rollouts.jsonl")
    assert Counter(row.instance_id for row in found) == {
        "good::late": REPEATS,
        "odd::broken": 2 * REPEATS,
        "odd::long": REPEATS,
        "lost::unbuildable": REPEATS,
    }
    for row in found:
        assert row.trial_dir is not None
        assert row.trial_dir.is_dir(), row
        assert row.is_masked is (row.instance_id != "good::late")
        if row.instance_id == "odd::broken":
            assert "boom" in row.verifier_output


async def test_nothing_is_left(run: Run) -> None:
    """The servers were ended with SIGTERM: their sandboxes' and trials' processes are gone."""
    assert run.left == []
