"""A run in an experiment tracker: its figures, its settings and its transcripts, by the tracker's own library.

A thread of its own makes all calls of the library: a tracker that fails, or whose server is away, costs the run a
warning and at its end at most :data:`CLOSE_SEC`.
"""

import contextlib
import json
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, cast

from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym.config.tracking import Tracking
from harbor_gym.errors import UsageError
from harbor_gym.report.export import SECRET_NAME, export, secret_values
from harbor_gym.report.metrics import METRICS_NAME, read_metrics

CLOSE_SEC = 120.0
"""Longest wait for a tracker at the end of a run, in seconds."""

DEFAULT_PROJECT = "harbor-gym"
TRACKER_NAME = "tracker.json"
"""The file in a run's folder with the run in the tracker, which a resumed run goes on with."""

_OPTIONS = ("sandbox_options", "agent_options", "verifier")
"""Settings with names and values of the user's own."""

_OF_SANDBOX = ("verify_paths", "setup_command")
"""Settings whose paths are the sandbox's."""

_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_PATH = re.compile(r"(?<![\w.:/~-])(?:file://)?~?/(?:[^/\s:,]+/)*?([^/\s:,]*)/?(?![^\s:,])")

_LONGEST_PARAM = 6000
_PARAMS_AT_ONCE = 100
"""MLflow's limits of a parameter and of a request."""

type Log = Callable[[Mapping[str, Any], int], None]
"""Takes figures and their step; what is no number is left out. It does not wait."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def tracked(tracking: Tracking, folder: Path, settings: Mapping[str, Any]) -> Generator[Log]:
    """Send the run of the block to its tracker, if it has one; at the end the transcripts of its folder, too.

    A run that goes on in its folder goes on in the tracker.

    Args:
        tracking: The tracker; its library is installed (``Tracking.require``).
        folder: The run's folder, which exists.
        settings: The run's settings as JSON has them. Secrets and this machine's folders are left out.
    """
    if tracking.tracker is None:
        yield lambda record, step: None
        return
    ours = {
        "tracker": tracking.tracker,
        "project": tracking.project or DEFAULT_PROJECT,
        "name": tracking.name or folder.resolve().name,
    }
    known = object_or_empty(folder / TRACKER_NAME)
    known_id = known.get("id") if known.items() >= ours.items() else None
    calls = SimpleQueue[Callable[[_Run], None] | None]()

    def log(record: Mapping[str, Any], step: int) -> None:
        items = record.items()
        figures = {name: float(value) for name, value in items if isinstance(value, int | float) and name != "step"}
        calls.put(lambda run: run.log(figures, step))

    def serve() -> None:
        def failed(error: Exception) -> None:
            logger.warning("the run goes on without %s: %s: %s", tracking.tracker, type(error).__name__, error)

        run: _Run | None = None
        try:
            run = _RUNS[ours["tracker"]](ours["project"], ours["name"], known_id, shared(settings), folder)
            (folder / TRACKER_NAME).write_text(json.dumps({**ours, "id": run.id}), encoding="utf-8")
        except Exception as exc:  # the boundary to foreign code
            failed(exc)
        has_failed = False
        while (call := calls.get()) is not None:
            try:
                if run is not None:
                    call(run)
            except Exception as exc:  # the boundary to foreign code
                if not has_failed:
                    failed(exc)
                has_failed = True

    if known_id is None:
        for record in read_metrics(folder / METRICS_NAME):
            log(record, record["step"])
    thread = threading.Thread(target=serve, name="harbor-gym-tracker", daemon=True)
    thread.start()
    is_complete = False
    try:
        yield log
        is_complete = True
    finally:
        calls.put(lambda run: _add_transcripts(run, folder))
        calls.put(lambda run: run.close(is_complete=is_complete))
        calls.put(None)
        thread.join(CLOSE_SEC)
        if thread.is_alive():
            logger.warning("%s did not take the whole run in %g seconds", tracking.tracker, CLOSE_SEC)


def shared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without secrets, and with the name alone of each file or folder of this machine."""
    text = json.dumps(settings)
    for secret, name in secret_values().items():
        text = text.replace(secret, f"[{name}]")
    return {name: _shared(name, value) for name, value in json.loads(text).items()}


def _shared(name: str, value: Any, *, is_option: bool = False) -> Any:
    is_option = is_option or name in _OPTIONS
    if isinstance(value, dict):
        return {key: _shared(key, inner, is_option=is_option) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_shared(name, inner, is_option=is_option) for inner in cast("list[Any]", value)]
    if not isinstance(value, str) or name in _OF_SANDBOX:
        return value
    if is_option and SECRET_NAME.search(name):
        return "hidden"
    return _PATH.sub(r"\1", _PASSWORD.sub("", value))


def _add_transcripts(run: "_Run", folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="harbor-gym-tracker-") as temporary:
        file = Path(temporary) / "transcripts.jsonl"
        with contextlib.suppress(UsageError):  # no episode has a verdict
            export([folder], file)
            run.add(file)


class _Run(Protocol):
    """A run in a tracker: a new one, or the known one of this id."""

    id: str

    def __init__(self, project: str, name: str, known_id: str | None, settings: dict[str, Any], folder: Path) -> None:
        pass

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log figures."""

    def add(self, file: Path) -> None:
        """Add transcripts, which may be removed afterwards."""

    def close(self, *, is_complete: bool) -> None:
        """Send what waits, and end the run."""


class _TrackioRun:
    def __init__(self, project: str, name: str, known_id: str | None, settings: dict[str, Any], folder: Path) -> None:
        resume = "never" if known_id is None else "allow"
        init = import_module("trackio").init
        self._run: Any = init(project=project, name=known_id or name, config=settings, resume=resume, embed=False)
        self.id: str = self._run.name

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def add(self, file: Path) -> None:
        self._run.log_artifact(file, name=_artifact_name(self.id), type="transcripts")

    def close(self, *, is_complete: bool) -> None:
        self._run.finish()


class _WandbRun:
    def __init__(self, project: str, name: str, known_id: str | None, settings: dict[str, Any], folder: Path) -> None:
        self._wandb: Any = import_module("wandb")
        # It would send the command line, the folders and the repository of the program, and what it prints.
        own = {"console": "off", "disable_git": True, "x_disable_meta": True, "finish_timeout": CLOSE_SEC / 2}
        self._run: Any = self._wandb.init(
            project=project, name=name, id=known_id, resume="allow", config=settings, dir=str(folder), settings=own
        )
        self.id: str = self._run.id

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def add(self, file: Path) -> None:
        artifact = self._wandb.Artifact(_artifact_name(self.id), type="transcripts")
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def close(self, *, is_complete: bool) -> None:
        self._run.finish(exit_code=int(not is_complete))


class _MlflowRun:
    def __init__(self, project: str, name: str, known_id: str | None, settings: dict[str, Any], folder: Path) -> None:
        mlflow: Any = import_module("mlflow")
        self._entities: Any = mlflow.entities
        self._client: Any = mlflow.MlflowClient()
        if known_id is not None:
            self.id = known_id
            self._client.update_run(known_id, status="RUNNING")
            return
        experiment = mlflow.set_experiment(project).experiment_id
        self.id: str = self._client.create_run(experiment, run_name=name).info.run_id
        self._client.log_dict(self.id, settings, "config.json")
        params = [self._entities.Param(_name(key), text[:_LONGEST_PARAM]) for key, text in _flat(settings)]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self.id, params=params[first : first + _PARAMS_AT_ONCE])

    def log(self, figures: Mapping[str, float], step: int) -> None:
        now = round(time.time() * 1000)
        metrics = [self._entities.Metric(_name(key), value, now, step) for key, value in figures.items()]
        self._client.log_batch(self.id, metrics)

    def add(self, file: Path) -> None:
        self._client.log_artifact(self.id, str(file))

    def close(self, *, is_complete: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if is_complete else "FAILED")


_RUNS: Mapping[str, type[_Run]] = {"trackio": _TrackioRun, "mlflow": _MlflowRun, "wandb": _WandbRun}


def _artifact_name(run: str) -> str:
    return re.sub(r"[^\w.-]", "_", f"{run}-transcripts", flags=re.ASCII)


def _name(text: str) -> str:
    """Return a name that MLflow takes for a metric or a parameter."""
    return re.sub(r"[^\w\-./: ]", "_", text, flags=re.ASCII)


def _flat(settings: Mapping[str, Any], before: str = "") -> Generator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(cast("dict[str, Any]", value), f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value)
