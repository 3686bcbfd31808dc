"""The server's configuration: its command line, its token, and the refusals before anything starts."""

import logging
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner, Result

if find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[openenv]"', allow_module_level=True)

from harbor_gym.adapters.openenv.config import TOKEN_VARIABLE, ServerConfig, find_token
from harbor_gym.cli.recipes.openenv import serve_app
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.testing import write_tiny_task
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.recipe_runs import expect_refused
from tests.helpers.sandboxes.fake_episodes import FAKE

TOKEN = "a-token-of-many-characters"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return write_tiny_task(tmp_path / "task")


def config(task: Path, **settings: Any) -> ServerConfig:
    return ServerConfig(env=TerminalEnvConfig(task_dir=task, sandbox=FAKE), tasks=(str(task),), **settings)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(serve_app(program="openenv_server.py"), list(map(str, arguments)))


def test_the_command_line_is_the_configuration(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harbor_gym.adapters.openenv import server

    seen: list[ServerConfig] = []

    def keep(config: ServerConfig, show: object) -> None:
        seen.append(config)

    monkeypatch.setattr(server, "serve", keep)
    done = run(
        *(task, "--task", "org/suite@1", "--env", "local", "--max-turns", "7", "--where", "difficulty=easy"),
        *("--test-task", "beta", "--token", TOKEN, "--host", "::1", "--max-sessions", "3", "--pool-size", "2"),
    )
    assert done.exit_code == 0, done.output
    (found,) = seen
    assert (found.tasks, found.test_tasks, found.where) == ((str(task), "org/suite@1"), ("beta",), ("difficulty=easy",))
    assert (found.env.sandbox, found.env.max_turns, found.env.task_dir) == ("local", 7, task)
    assert found.token is not None
    assert found.token.get_secret_value() == TOKEN
    assert (found.host, found.max_sessions, found.pool_size) == ("::1", 3, 2)
    assert TOKEN not in repr(found) + str(found.model_dump()) + found.model_dump_json()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "nothing to serve"),
        (["--max-sessions", "0"], "--max-sessions"),
        (["--port", "65536"], "--port"),
        (["--idle-timeout-sec", "nan"], "--idle-timeout-sec"),
        (["--call-timeout-sec", "0"], "--call-timeout-sec"),
        (["--token", "short"], "--token: is shorter than 16 characters: it could be guessed"),
        (["--ssl-keyfile", "key.pem"], "without ssl_certfile"),
        (["--ssl-certfile", "none.pem"], "certificate in none.pem can't be used: it is not there: name PEM files"),
        (["--ssl-certfile", __file__], "can't be used: it holds no certificate or no key"),
        (["--max-turns", "0"], "--max-turns"),
        (["--env", "lokal"], "did you mean local"),
        (["--test-task", "delta"], "no task to test on is called delta"),
    ],
)
def test_mistakes_are_one_line(task: Path, arguments: list[str], expected: str) -> None:
    given = ["--task", str(task), *arguments] if arguments else []
    done = run(*given)
    expect_refused(done, expected)
    assert "'short'" not in done.stderr


def test_a_token_comes_from_the_argument_the_variable_or_nowhere(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, is_generated = find_token(config(task))
    assert is_generated
    assert first != find_token(config(task))[0]
    assert len(first) >= 32
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert find_token(config(task)) == (TOKEN, False)
    assert find_token(config(task, token=TOKEN * 2)) == (TOKEN * 2, False)
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(UsageError, match="could be guessed"):
        find_token(config(task))


def test_an_agents_episodes_are_refused(task: Path) -> None:
    for field in ({"agent": "terminus-2"}, {"harbor_server": "http://127.0.0.1:1"}):
        with pytest.raises(ValidationError, match="for the episodes of one of Harbor's agents"):
            ServerConfig.model_validate({"env": {"task_dir": task, **field}, "tasks": [str(task)]})


def test_an_address_in_use_is_refused(task: Path) -> None:
    from harbor_gym.adapters.openenv import server

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="can't listen on 127"):
        server.TerminalServer(config(task, port=taken.getsockname()[1]))


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True)])
def test_a_generated_token_is_shown_once_and_an_open_address_warned_of(
    task: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    from harbor_gym.adapters.openenv import server

    if host == "::1" and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    shown: list[str] = []

    def close(self: Any) -> None:
        self._socket.close()

    monkeypatch.setattr(server.TerminalServer, "serve", close)
    with caplog.at_level(logging.WARNING, logger="harbor_gym"):
        server.serve(config(task, host=host, port=0), shown.append)
        server.serve(config(task, host=host, port=0, token=TOKEN), shown.append)
    assert [line.split("=")[0].split(" ")[0] for line in shown] == [TOKEN_VARIABLE, "serving", "serving"]
    assert ("without TLS" in caplog.text) is warns
    assert TOKEN not in caplog.text + "".join(shown)


HIDE = (
    "import importlib.util as util, sys\n"
    "find = util.find_spec\n"
    "util.find_spec = lambda name, *rest: None if name == 'openenv' else find(name, *rest)\n"
)
"""A program's first lines, after which OpenEnv is not installed."""

NEEDS = 'harbor_gym.adapters.openenv needs openenv: pip install "harbor-gym[openenv]"'


def test_the_extra_is_named_when_it_is_missing() -> None:
    code = HIDE + (
        "import harbor_gym.adapters.openenv as room\n"
        "assert 'openenv.core' not in sys.modules\n"
        "try: room.ServerConfig\n"
        "except ImportError as exc: print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    kind, _, message = done.stdout.strip().partition(" ")
    assert (kind, message) == (MissingDependencyError.__name__, NEEDS)


@pytest.mark.parametrize(("flags", "code"), [(["--task"], 2), (["--help"], 0)])
def test_the_command_names_the_missing_extra_and_has_its_help_without(task: Path, flags: list[str], code: int) -> None:
    program = HIDE + "from harbor_gym.cli.main import main; main(sys.argv[1:])"
    given = [*flags, str(task)] if flags == ["--task"] else flags
    command = [sys.executable, "-c", program, "openenv", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE_SEC)
    assert done.returncode == code, done.stderr
    assert done.stderr == (f"error: {NEEDS}\n" if code else "")
    assert ("--max-sessions" in done.stdout) is (code == 0)


def test_every_public_name_is_there() -> None:
    import harbor_gym.adapters.openenv as room

    assert [name for name in dir(room) if getattr(room, name).__doc__ is None] == []
