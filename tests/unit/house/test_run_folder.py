"""A run's folder: the files that may be deleted, every flag in it, and the line that names a changed one."""

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.adapters.tinker.training.config import LogDirExists, TrainConfig
from harbor_gym.adapters.tinker.training.folder import as_written, prepare_folder, write_run_config
from harbor_gym.adapters.tinker.training.preparation import default_log_path, prepare
from harbor_gym.cli.recipes import train
from harbor_gym.errors import UsageError
from harbor_gym.samplers import endpoints
from tests.helpers.sandboxes.fake_episodes import fake_config
from tests.helpers.tasks import write_task


def config_of(task: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.model_validate({"env": {"task_dir": task}, "task_dirs": [task], **settings})


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task")


@pytest.fixture
def run_dir(tmp_path: Path, task: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    env = {"task_dir": task, "max_turns": 7, "sandbox_options": {"pids": 9}, "verify_paths": ["/app"]}
    write_run_config(folder, config_of(task, env=env, backend="local", group_size=3, where=["difficulty=easy"]))
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Result, list[TrainConfig]]:
    seen: list[TrainConfig] = []
    monkeypatch.setattr(train, "train", lambda config: seen.append(config) or Path("kept"))  # pyright: ignore[reportUnknownLambdaType]
    return CliRunner().invoke(train.train_app(program="train"), arguments), seen


def test_resume_restores_every_flag(monkeypatch: pytest.MonkeyPatch, run_dir: Path, task: Path) -> None:
    monkeypatch.chdir(run_dir)
    done, (config,) = invoke(monkeypatch, "--resume", str(run_dir))
    assert done.exit_code == 0, done.stderr
    assert (config.log_path, config.log_dir_exists) == (run_dir, LogDirExists.RESUME)
    assert as_written(config) == json.loads((run_dir / "run.json").read_text())["config"]
    assert (config.group_size, config.env.max_turns, config.env.sandbox_options) == (3, 7, {"pids": 9})
    assert (config.num_batches, config.learning_rate) == (5, 1e-3), "the backend's defaults of then"


@pytest.mark.parametrize(
    "same",
    [("--group-size", "3"), ("--max-turns", "7"), ("--sandbox-option", "pids=9"), ("--where", "difficulty=easy")],
)
def test_a_flag_that_is_the_runs_own_is_no_change(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, same: tuple[str, ...]
) -> None:
    done, seen = invoke(monkeypatch, "--resume", str(run_dir), *same)
    assert (done.exit_code, len(seen)) == (0, 1), done.stderr


def test_a_run_on_a_shipped_task_is_resumed_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = Path("task:devops_task")
    write_run_config(tmp_path, config_of(shipped, backend="local"))
    monkeypatch.chdir(tmp_path)
    done, (config,) = invoke(monkeypatch, "--resume", str(tmp_path), "--task-dir", str(shipped))
    assert done.exit_code == 0, done.stderr
    assert config.task_dirs == (shipped,)


def test_a_time_limit_may_be_another_one(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    done, (config,) = invoke(monkeypatch, "--resume", str(run_dir), "--server-timeout-sec", "900")
    assert done.exit_code == 0, done.stderr
    assert (config.server_timeout_sec, config.log_dir_exists) == (900, LogDirExists.RESUME)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--group-size", "4"), "--group-size 3, not 4"),
        (("--max-turns", "8"), "--max-turns 7, not 8"),
        (("--env", "docker"), "--env local, not docker"),
        (("--sandbox-option", "pids=8"), "--sandbox-option 9, not 8"),
        (("--zero-reward-on-limit",), "--zero-reward-on-limit False, not True"),
        (("--terminal-columns", "80"), "--terminal-columns 160, not 80"),
        (("--seed", "1", "--lora-rank", "8"), "--lora-rank 32, not 8; --seed 0, not 1"),
        (("--log-path", "x"), "leave out --log-path"),
    ],
)
def test_a_changed_flag_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, changed: tuple[str, ...], words: str
) -> None:
    done, seen = invoke(monkeypatch, "--resume", str(run_dir), *changed)
    assert (done.exit_code, seen) == (2, [])
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_no_run_can_not_be_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done, seen = invoke(monkeypatch, "--resume", str(tmp_path))
    assert (done.exit_code, seen) == (2, [])
    assert f"{tmp_path} is no run that can be resumed" in done.stderr


def test_log_dir_exists_resume_refuses_other_settings_too(run_dir: Path, task: Path) -> None:
    same = json.loads((run_dir / "run.json").read_text())["config"]
    prepare_folder(run_dir, TrainConfig.model_validate({**same, "log_dir_exists": "resume"}))
    with pytest.raises(UsageError, match="began with other settings: group_size 3, not 5"):
        prepare_folder(run_dir, TrainConfig.model_validate({**same, "log_dir_exists": "resume", "group_size": 5}))


def test_delete_removes_a_run(run_dir: Path, task: Path) -> None:
    prepare_folder(run_dir, config_of(task, log_dir_exists="delete"))
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("what", ["other files", "a file", "a link", "the task inside", "where we are"])
def test_delete_removes_nothing_but_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_dir: Path, task: Path, what: str
) -> None:
    path = run_dir
    if what == "other files":
        (path := tmp_path / "home").mkdir()
        (path / "thesis.tex").touch()
    elif what == "a file":
        (path := tmp_path / "notes").touch()
    elif what == "a link":
        (path := tmp_path / "link").symlink_to(run_dir)
    elif what == "the task inside":
        task = task.rename(run_dir / "task")
    else:
        (run_dir / "sub").mkdir()
        monkeypatch.chdir(run_dir / "sub")
    before = sorted(run_dir.rglob("*"))
    with pytest.raises(UsageError, match="delete"):
        prepare_folder(path, config_of(task, log_dir_exists="delete"))
    assert sorted(run_dir.rglob("*")) == before
    assert path.exists()


async def test_a_dead_endpoint_is_noticed_before_a_run_and_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = asyncio.Semaphore(0)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.release()
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    monkeypatch.setattr(endpoints, "POLL_SEC", 0.01)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await endpoints.require_endpoint(url)
    watch = asyncio.create_task(endpoints.watch_endpoint(url))
    for _ in range(3):
        await answered.acquire()
    assert not watch.done()
    server.close()
    with pytest.raises(endpoints.ServiceLostError, match="is gone"):
        await watch
    with pytest.raises(UsageError, match=f"--base-url {url}: Connection refused$"):
        await endpoints.require_endpoint(url)


async def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", f"http://{address}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(UsageError, match=f"Connection refused by the proxy {address}, which"):
            await endpoints.require_endpoint("http://model.invalid/v1")


async def test_an_endpoint_that_never_answers_is_dead_too() -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await over.wait()
        finally:
            writer.close()

    over = asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert await endpoints.find_silence(url, timeout_sec=0.05) == "no answer in 0.05 s"
    for address in ("nonsense", "ftp://127.0.0.1/v1", "localhost:8000/v1", "http://", "http://localhost:99999/v1"):
        assert "no address, such as http://" in str(await endpoints.find_silence(address))
    over.set()
    server.close()
    await server.wait_closed()


def test_a_run_on_a_shipped_task_has_a_plain_folder_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path))
    folder = default_log_path(config_of(Path("task:devops_task")))
    assert re.fullmatch(r"devops_task-\d{8}-\d{6}", folder.name)


async def test_a_start_that_no_episode_can_have_is_refused_before_the_run(tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
        await env.reset()
        for _ in range(2):
            await env.step([("true\n", 1.0)])
        snapshot = await env.snapshot()
    short = fake_config(tmp_path / "task", max_turns=2, start_from=snapshot)
    with pytest.raises(UsageError, match="max_turns is 2, and the snapshot has 2 turns"):
        await prepare(TrainConfig(env=short, num_batches=1))
    other = fake_config(tmp_path / "other", steps=1, start_from=snapshot)
    with pytest.raises(UsageError, match="the snapshot is of another task"):
        await prepare(TrainConfig(env=other, num_batches=1))
