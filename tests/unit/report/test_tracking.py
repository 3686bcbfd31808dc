"""A run in a tracker: in the local stores of the trackers themselves, and with libraries that fail."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harbor_gym import TerminalEnvConfig, report
from harbor_gym.adapters.tinker.training import Backend, TrainConfig
from harbor_gym.adapters.tinker.training.folder import as_written, require_same
from harbor_gym.config.tracking import Tracking
from harbor_gym.errors import MissingDependencyError
from harbor_gym.report import live, tracking
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn
from tests.helpers.engine_double import EngineDouble, in_turn, serve
from tests.helpers.paths import ROOT
from tests.helpers.recipe_runs import expect_refused, run_recipe
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, message
from tests.helpers.tasks import DONE, write_task

KEY, HIDDEN = "TRACKED_API_KEY", "this-is-a-key-of-somebody"
SETTINGS = {"learning_rate": 0.25, "env": {"task_dir": "/home/somebody/tasks/tiny", "agent_options": {"note": HIDDEN}}}

_SEND = f"""
import json, sys, time
from pathlib import Path
from harbor_gym.config.tracking import Tracking
from harbor_gym.report.tracking import tracked
for steps in ((1, 2), (3,)):  # the second is the run that resumes
    with tracked(Tracking(tracker=sys.argv[1], project="p"), Path("run"), {SETTINGS!r}) as log:
        for step in steps:
            log({{"env/all/reward/total": step / 4, "env/a task@2/turns": 7, "note": "text"}}, step)
    time.sleep(1.1)  # W&B names its folders by the second
ours = json.loads(Path("run/tracker.json").read_text())
"""

_READ = {
    "trackio": """
import trackio
from trackio.sqlite_storage import SQLiteStorage
(run,) = trackio.Api().runs("p")
logs = [item for item in SQLiteStorage.get_logs("p", run.name) if "env/all/reward/total" in item]
curve = [(item["step"], item["env/all/reward/total"]) for item in logs]
again = trackio.init(project="p", name=run.name, resume="must", embed=False)
folder = again.use_artifact(f"{run.name}-transcripts").download()
again.finish()
config, rows = run.config, next(Path(folder).rglob("*.jsonl")).read_text()
""",
    "mlflow": """
import mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
curve = [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, "env/all/reward/total")]
assert run.data.metrics["env/a task_2/turns"] == 7 and run.info.status == "FINISHED"
assert run.data.params["env.task_dir"] == "tiny" and run.info.run_name == "run"
config = mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/config.json")
rows = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/transcripts.jsonl")
""",
}


def _keep(folder: Path, *, reward: float = 1.0) -> None:
    turn = Turn("see", f"echo {HIDDEN}", EpisodeInfo(turn=1, metrics={}), reward)
    transcript = Transcript([turn], settings={"task_dir": "/home/somebody/tasks/tiny"})
    write_transcript(folder / "transcripts/train/batch_0001/group_1/e.json", transcript, labels={"task": "tiny"})
    record = {"step": 0, "env/all/reward/total": 0.0, "progress/done_frac": 0.1}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")


def _send(tracker: str, folder: Path, *more: str) -> None:
    pytest.importorskip(tracker, reason=f"pip install {tracker}")
    _keep(folder / "run")
    where = {"TRACKIO_DIR": "store", "MLFLOW_TRACKING_URI": "sqlite:///store.db", "WANDB_MODE": "offline"}
    environment = {**os.environ, **where, "PYTHONPATH": str(ROOT), KEY: HIDDEN}
    command = [sys.executable, "-c", "".join((_SEND, *more)), tracker]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the run goes on without" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tracker", _READ)
def test_a_run_arrives_in_a_trackers_store_and_goes_on_there(tracker: str, tmp_path: Path) -> None:
    _send(tracker, tmp_path, _READ[tracker], "Path('read.json').write_text(json.dumps([curve, config, rows]))")
    curve, config, rows = json.loads((tmp_path / "read.json").read_text())
    assert curve == [[0, 0.0], [1, 0.25], [2, 0.5], [3, 0.75]], "the first is of before the tracker"
    assert config["learning_rate"] == 0.25
    assert config["env"] == {"task_dir": "tiny", "agent_options": {"note": f"[{KEY}]"}}
    (row,) = {*rows.splitlines()}
    assert json.loads(row)["messages"][-1]["content"] == f"echo [{KEY}]"
    assert "somebody" not in json.dumps([config, rows])


@pytest.mark.slow
def test_wandb_without_a_server_keeps_the_run_for_later(tmp_path: Path) -> None:
    _send("wandb", tmp_path)
    first, second = sorted((tmp_path / "run/wandb").glob("offline-run-*"))
    assert first.name.rpartition("-")[2] == second.name.rpartition("-")[2], "they are one run"
    sent = b"".join(path.read_bytes() for folder in (first, second) for path in folder.glob("*.wandb"))
    for wanted in (b"env/all/reward/total", b"learning_rate", b"transcripts.jsonl", KEY.encode()):
        assert wanted in sent
    for unwanted in (HIDDEN, "somebody", str(ROOT)):
        assert unwanted.encode() not in sent


class _Library(ModuleType):
    """A stand-in for trackio that keeps what arrives, and can fail."""

    def __init__(self, *failing: str) -> None:
        super().__init__("trackio")
        self.__spec__ = ModuleSpec("trackio", None, origin="here")
        self.arrived: dict[str, Any] = {"log": []}
        self.hangs = threading.Event()

        def meet(call: str) -> None:
            if call in failing:
                raise ConnectionError(f"{call} failed")

        def init(**settings: Any) -> SimpleNamespace:
            meet("init")
            self.arrived["init"] = settings
            return SimpleNamespace(name=settings["name"], log=log, log_artifact=log_artifact, finish=finish)

        def log(figures: dict[str, float], step: int) -> None:
            meet("log")
            self.arrived["log"].append((step, figures))

        def log_artifact(file: Path, **names: str) -> None:
            meet("log_artifact")
            self.arrived["artifact"] = file.read_text(encoding="utf-8")

        def finish() -> None:
            if "hang" in failing:
                self.hangs.wait()
            self.arrived["finish"] = True

        self.init = init


def _installed(monkeypatch: pytest.MonkeyPatch, *failing: str) -> _Library:
    library = _Library(*failing)
    monkeypatch.setitem(sys.modules, "trackio", library)
    return library


@pytest.mark.parametrize("failing", ["init", "log", "log_artifact", "hang"])
def test_a_tracker_that_fails_costs_a_warning(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = _installed(monkeypatch, failing)
    monkeypatch.setattr(tracking, "CLOSE_SEC", 0.2 if failing == "hang" else 60.0)
    _keep(tmp_path)
    with tracking.tracked(Tracking(tracker="trackio"), tmp_path, {}) as log:
        log({"a": 1}, 1)
        log({"a": 2}, 2)
    assert len(caplog.records) == 1
    assert ("trackio did not take" if failing == "hang" else f"ConnectionError: {failing} failed") in caplog.text
    assert ("artifact" in library.arrived) == (failing in ("log", "hang")), "what comes after a failure is tried"
    library.hangs.set()


def test_a_run_that_fails_is_tracked_and_its_error_is_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _installed(monkeypatch)
    with pytest.raises(KeyError), tracking.tracked(Tracking(tracker="trackio", name="n"), tmp_path, {}):
        raise KeyError
    assert (library.arrived["init"]["name"], library.arrived["init"]["project"]) == ("n", "harbor-gym")
    assert library.arrived["finish"]
    assert "artifact" not in library.arrived, "there is no episode"


async def test_each_batch_of_a_training_run_arrives_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _installed(monkeypatch)
    monkeypatch.setattr(live, "POLL_SEC", 0.01)
    _keep(tmp_path)
    following = report.live_progress
    with tracking.tracked(Tracking(tracker="trackio"), tmp_path, {}) as log:
        async with following(tmp_path, total=2, show=lambda _: None, title="t", on_batch=log):
            with (tmp_path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": 1, "env/all/reward/total": 0.5, "optim/lr": 0.1}) + "\n")
    assert [step for step, _ in library.arrived["log"]] == [0, 1]
    assert library.arrived["log"][1][1] == {"env/all/reward/total": 0.5, "optim/lr": 0.1}


async def test_an_evaluation_arrives_with_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _installed(monkeypatch)
    monkeypatch.chdir(tmp_path)
    task, solved = str(write_task(tmp_path / "task")), json.dumps({"/srv/answer": "done"})
    async with serve(EngineDouble(write=in_turn(message(DONE), COMPLETE))) as double:
        arguments = [task, "--env", FAKE, "--sandbox-option", f"solved_when={solved}", "--model", "m"]
        where = ["--base-url", double.url, "--episodes", "2", "--output", "out", "--track", "trackio"]
        done = await asyncio.to_thread(run_recipe, "eval", *arguments, *where)
    assert done.exit_code == 0, done.output
    ((step, figures),) = library.arrived["log"]
    assert (step, figures["reward"], figures["pass@1"], figures["solved"], figures["episodes"]) == (0, 1, 1, 2, 2)
    assert figures["ended/completed"] == 2
    assert library.arrived["init"]["config"]["model"] == "m"
    assert library.arrived["init"]["name"] == "out"
    assert str(tmp_path) not in json.dumps(library.arrived["init"])
    assert json.loads(library.arrived["artifact"].splitlines()[0])["reward"] == 1.0


def test_settings_lose_secrets_passwords_and_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, HIDDEN)
    before = {
        "tasks": ["git+https://me:pass@host/org/repo@0f3c#tasks/one", "/home/me/tasks/one/", "~/two"],
        "base_url": "http://127.0.0.1:8000/v1",
        "load_checkpoint_path": "tinker://run/weights/000001",
        "env": {
            "verify_paths": ["/app"],
            "reward_key": "reward",
            "sandbox_options": {"mount": "ro=/home/me/data:/data", "cpus": 2, "env": {"HF_TOKEN": "hf"}},
            "verifier": {"env": [f"A={HIDDEN}"]},
        },
    }
    assert tracking.shared(before) == {
        "tasks": ["git+https://host/org/repo@0f3c#tasks/one", "one", "two"],
        "base_url": "http://127.0.0.1:8000/v1",
        "load_checkpoint_path": "tinker://run/weights/000001",
        "env": {
            "verify_paths": ["/app"],
            "reward_key": "reward",
            "sandbox_options": {"mount": "ro=data:/data", "cpus": 2, "env": {"HF_TOKEN": "hidden"}},
            "verifier": {"env": [f"A=[{KEY}]"]},
        },
    }


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"^--track wandb needs wandb: pip install wandb$"):
        Tracking(tracker="wandb").require()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--track", "neptune"], "neptune"),
        (["--track-name", "n"], "--track-project and --track-name need --track"),
        (["--wandb-project", "p", "--track", "mlflow"], "give one of them"),
    ],
)
def test_a_tracker_that_can_not_be_is_refused(arguments: list[str], expected: str) -> None:
    task = str(ROOT / "tasks" / "devops_task")
    expect_refused(run_recipe("train", task, "--backend", "local", *arguments), expected)


def test_a_run_may_be_resumed_with_another_tracker() -> None:
    task = ROOT / "tasks" / "devops_task"
    config = TrainConfig(env=TerminalEnvConfig(task_dir=task), task_dirs=(task,), backend=Backend.LOCAL)
    tracked = config.model_copy(update={"track": Tracking(tracker="mlflow", project="p")})
    before = as_written(config)
    del before["track"]  # a run of an earlier version
    require_same(before, tracked)
    assert as_written(tracked)["track"] == {"tracker": "mlflow", "project": "p", "name": None}
    assert config.model_copy(update={"wandb_project": "w"}).tracking == Tracking(tracker="wandb", project="w")
