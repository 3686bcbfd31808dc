"""The embedded training server: it really runs here, serves the real Tinker SDK, and leaves nothing behind.

The server that serves the SDK serves a run of recipes/train.py, too, at its address: two batches through Terminus-2.
"""

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
import venv
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import report
from harbor_gym._runtime.console.progress import shown_by
from harbor_gym._runtime.procfs import all_stats
from harbor_gym.embedded.server import TrainingServer, TrainingServerError, export_adapter, last_start
from harbor_gym.errors import UsageError
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC

pytestmark = [
    pytest.mark.server,
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("engines", "nothing_left"),
]

ADAPTER = "adapter_model.safetensors"
TASK = ROOT / "tasks" / "devops_task"

_SHORTER_THAN_A_START_SEC = 4.0
_START_AND_REPORT = """
import asyncio, pathlib, sys
from harbor_gym.embedded.server import TrainingServer

async def main():
    server = TrainingServer(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    starting = asyncio.ensure_future(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    print(server.pid, flush=True)
    await starting

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def model_dir(engines: None, policies: Path) -> Path:
    return policies / "endless"


def _group(leader: int) -> list[int]:
    """Ids of the living processes in a process group."""
    return [stat.pid for stat in all_stats() if stat.group == leader and not stat.has_exited]


def _engines(leader: int) -> list[int]:
    """The engine's processes: by name, since the server has helpers of a moment, too."""
    named: list[int] = []
    for pid in _group(leader):
        with contextlib.suppress(OSError):
            if b"--engine" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                named.append(pid)
    return named


async def _until_engine_runs(leader: int) -> None:
    async with asyncio.timeout(PATIENCE_SEC):
        while not _engines(leader):  # noqa: ASYNC110 - processes of others send no event
            await asyncio.sleep(0.05)


async def _until_gone(leader: int) -> None:
    async with asyncio.timeout(PATIENCE_SEC):
        while _group(leader):  # noqa: ASYNC110 - processes of others send no event
            await asyncio.sleep(0.05)


@dataclass
class Served:
    """What two clients of one server got, and how it ended."""

    server: TrainingServer
    seen: dict[str, Any]
    """The SDK's answers."""

    run: Path
    run_output: list[str]
    children: list[int]
    left: list[int]
    """Processes of the server while it ran, and once its engine was killed."""

    reported: str
    told: set[str] = field(default_factory=set[str])
    """What the progress said beside the server's start."""


async def _client(server: TrainingServer, *command: str | Path) -> str:
    """Run a program as a client of a server and return what it printed."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, *command),
        env={**os.environ, **server.client_environment(), "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await client.communicate()
    assert client.returncode == 0, errors.decode()[-3000:] + server.log_path.read_text()[-4000:]
    return output.decode()


async def _serve(model_dir: Path, folder: Path) -> Served:
    async with TrainingServer(
        model_dir, folder / "state", max_lora_rank=8, stall_timeout_sec=_SHORTER_THAN_A_START_SEC
    ) as server:
        pid = server.pid
        assert pid is not None
        seen = json.loads(await _client(server, "-m", "tests.helpers.embedded_client", server.base_url, model_dir))
        flags = ["--task-dir", str(TASK), "--env", "local", "--agent", "terminus-2", "--base-url", server.base_url]
        flags += ["--model-name", str(model_dir), "--renderer-name", "qwen3_instruct", "--log-path", f"{folder}/run"]
        flags += ["--lora-rank", "8", "--max-tokens", "32", "--save-every", "0"]
        flags += ["--group-size", "2", "--num-batches", "2", "--max-turns", "2"]
        flags += ["--kl-penalty-coef", "0.1", "--kl-reference-checkpoint", seen["sampler_path"]]
        printed = await _client(server, ROOT / "recipes/train.py", *flags)
        children = _group(pid)
        watching = asyncio.ensure_future(server.monitor())
        os.kill(_engines(pid)[0], signal.SIGKILL)
        with pytest.raises(TrainingServerError) as caught:
            await watching
    left = _group(pid)
    await server.stop()
    return Served(server, seen, folder / "run", printed.splitlines(), children, left, str(caught.value))


@pytest.fixture(scope="module")
def served(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    told: set[str] = set()
    with shown_by(lambda _phase, _done, _total, detail: told.add(detail)):
        served = asyncio.run(_serve(model_dir, tmp_path_factory.mktemp("served")))
    return replace(served, told=told)


def test_the_sdk_samples_trains_saves_and_resumes(served: Served, tmp_path: Path) -> None:
    seen, state = served.seen, served.server.state_dir
    assert seen["lengths"] == [16, 16]
    assert seen["logprob_gap"] < 1e-4
    assert seen["scored"] == [0, None], "a log probability for each token, the first of which has none"
    assert seen["scored_gap"] < 1e-4, "an adapter that has learnt nothing is the base model"
    assert seen["more_likely_after_the_step"]
    before, after = seen["observation_losses"]
    assert after < before, "what was shown is learnt without any advantage"
    assert seen["resumed_gap"] < 1e-5
    assert (sorted(seen["listed"]), seen["left"]) == (["second", "third"], ["third"])
    export_adapter(state, seen["sampler_path"], tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {"adapter_config.json", ADAPTER}
    assert (tmp_path / "adapter" / ADAPTER).stat().st_size > 1000
    with pytest.raises(UsageError, match="no checkpoint that the server in"):
        export_adapter(state, "tinker://other/best", tmp_path / "none")


def test_a_start_that_makes_progress_may_take_any_time_and_says_what_it_does(served: Served) -> None:
    begun = last_start()
    assert begun is not None
    assert begun.seconds > _SHORTER_THAN_A_START_SEC
    assert begun.model_dir == str(served.server.model_dir)
    words = "importing the server's packages", "importing the engine's packages"
    assert all(any(detail.startswith(word) for detail in served.told) for word in words), served.told


def test_two_batches_of_terminus_2(served: Served) -> None:
    """By a policy of random weights; real to the last file."""
    run = served.run
    assert served.run_output[-1] == f"run folder: {run}"
    assert [line.split()[1] for line in served.run_output if line.startswith("batch ")] == ["1/2", "2/2"]
    batches = report.read_metrics(run / "metrics.jsonl")
    assert [batch["step"] for batch in batches] == [0, 1]
    for batch in batches:
        assert batch["env/all/total_episodes"] == 2
        assert batch["env/all/infra/lost"] == 0
        assert 1 <= batch["env/all/turns_per_episode"] <= 2
        assert batch["env/all/gateway/calls"] >= 1
        assert abs(batch["kl_policy_base"]) > 1e-6, "the reference is the client's checkpoint, not the base model"
    assert [task["name"] for task in json.loads((run / "tasks.json").read_text())["tasks"]] == [TASK.name]
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    transcripts = [json.loads(path.read_text()) for path in sorted(run.rglob("episode_*.json"))]
    assert len(transcripts) == 4
    for transcript in transcripts:
        assert transcript["turns"][0]["observation"].startswith("You are an AI assistant")
        assert transcript["reward"] in (0, 1)
        assert transcript["end_reason"]
    (checkpoint,) = (run / "checkpoints.jsonl").read_text().splitlines()
    assert json.loads(checkpoint)["state_path"].startswith("tinker://")


def test_a_crash_of_the_engine_is_reported(served: Served) -> None:
    server = served.server
    assert len(served.children) >= 2, "server and engine share the process group"
    assert served.left == []
    assert "ended by itself" in served.reported
    assert server.pid is None
    assert not (server.state_dir / "tmp").exists()
    assert (server.state_dir / "tinker.db").is_file()


async def test_nothing_survives_a_killed_parent(model_dir: Path, tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _START_AND_REPORT, str(model_dir), str(tmp_path / "state")),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    try:
        leader = int(await parent.stdout.readline())
        await _until_engine_runs(leader)
    finally:
        parent.kill()
        await parent.wait()
    await _until_gone(leader)


async def test_a_cancelled_start_leaves_nothing_and_a_state_dir_has_one_server(model_dir: Path, tmp_path: Path) -> None:
    server = TrainingServer(model_dir, tmp_path / "state")
    starting = asyncio.ensure_future(server.start())
    async with asyncio.timeout(PATIENCE_SEC):
        while server.pid is None:  # noqa: ASYNC110 - the server does not report that it was spawned
            await asyncio.sleep(0.01)
    leader = server.pid
    with pytest.raises(UsageError, match="a training server is running in"):
        await TrainingServer(model_dir, tmp_path / "state").start()
    assert _group(leader), "the refused server must not end the other one"
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert _group(leader) == []
    with pytest.raises(UsageError, match="started before"):
        await server.start()


async def test_an_interpreter_without_skyrl_is_named(model_dir: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(TrainingServerError, match=r"skyrl is not installed for .*/bare/bin/python") as caught:
        await TrainingServer(model_dir, tmp_path / "state", python=python).start()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_a_start_without_progress_is_given_up_with_what_to_do(model_dir: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    server = TrainingServer(model_dir, tmp_path / "state", python=str(python), stall_timeout_sec=0.5)
    with pytest.raises(TrainingServerError, match=r"no progress for 0\.5 s, at its start: .*--server-timeout-sec"):
        await server.start()


async def test_wrong_use_is_refused(tmp_path: Path) -> None:
    server = TrainingServer(tmp_path, tmp_path / "state")
    with pytest.raises(UsageError, match="no address yet"):
        _ = server.base_url
    with pytest.raises(UsageError, match="start\\(\\) it first"):
        await server.monitor()
    with pytest.raises(UsageError, match=r"no config\.json"):
        await server.start()
    await server.stop()
