"""The MCP servers of a task as the policy's tools, in real sandboxes: good servers, and hostile ones."""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalEnvConfig
from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import TaskError, TaskUnsupportedError, UsageError
from harbor_gym.formats import prompts
from harbor_gym.rollout import Sample, run_episode
from harbor_gym.tokens import TokenTerminalEnv
from tests.helpers import mcp_server
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.engines import require_engine
from tests.helpers.gateway.clients import tool_call as called
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_steps, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SANDBOXES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("local", "docker", "apptainer")]

DOCKERFILE = """\
FROM debian:bookworm-slim
RUN command -v python3 || { apt-get update; apt-get install -y python3; }
COPY mcp_server.py /opt/server.py
WORKDIR /srv
"""
STDIO = '[[environment.mcp_servers]]\nname = "box"\ntransport = "stdio"\ncommand = "python3"\n'
SERVES = f'{STDIO}args = ["/opt/server.py", "stdio"]\n'


SERVES_HTTP = """\
[environment.healthcheck]
command = "mkdir /run/up && python3 /opt/server.py http 8000 </dev/null >/dev/null 2>&1 & true"
[[environment.mcp_servers]]
name = "web"
"""
ADDRESSES = {
    "streamable HTTP": 'transport = "streamable-http"\nurl = "http://localhost:8000/mcp"\n',
    "an address that moved": 'transport = "http"\nurl = "http://127.0.0.1:8000/moved"\n',
    "the older transport": 'transport = "sse"\nurl = "http://localhost:8000/sse"\n',
}


def write_mcp_task(task_dir: Path, toml: str = SERVES) -> Path:
    write_task(task_dir, dockerfile=DOCKERFILE, toml=toml)
    (task_dir / "environment/mcp_server.py").write_text(Path(mcp_server.__file__).read_text(encoding="utf-8"))
    return task_dir


def config_of(task_dir: Path, sandbox: str = "local", **settings: Any) -> TerminalEnvConfig:
    require_engine(sandbox)
    settings = {"action_format": "bash-tool", "confirm_task_complete": False, **settings}
    return TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, **settings)


SUBMIT = called("submit")


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_task_is_solved_by_the_tools_of_a_command(sandbox: str, tmp_path: Path) -> None:
    config = config_of(write_mcp_task(tmp_path / "task"), sandbox, trials_dir=tmp_path / "trials")
    async with AsyncTerminalGymEnv(config) as env:
        _, info = await env.reset()
        instruction = info.get("instruction") or ""
        assert instruction.startswith("Write the word done into /srv/answer.\n")
        schemas = [json.loads(line) for line in instruction.splitlines() if line.startswith("{")]
        assert [schema["function"]["name"] for schema in schemas] == [f"box__{it['name']}" for it in mcp_server.TOOLS]
        assert schemas[0]["function"]["parameters"] == mcp_server.TOOLS[0]["inputSchema"]
        assert "from the terminal" not in instruction
        summed = await env.step(called("box__add", a=2, b=40))
        assert (summed.observation, summed.done) == ("[box__add]\n42", False)
        both = await env.step(
            f"{called('bash', command='echo 1')}\n{called('box__solve')}\n{called('bash', command='cat answer')}"
        )
        first, _, rest = both.observation.partition("\n[box__solve]\nsolved\n")
        assert "\n1\n" in first
        assert "\ndone\n" in rest
        assert both.info.get("waits") == ("prompt", "prompt")
        end = await env.step(SUBMIT)
    assert (end.reward, end.info.get("end_reason")) == (1.0, EndReason.COMPLETED)
    assert (end.info["metrics"]["mcp/calls"], end.info["metrics"]["mcp/failed"]) == (2, 0)
    (kept,) = (tmp_path / "trials").glob("*/agent/trajectory.json")
    calls = [step.get("tool_calls", []) for step in json.loads(kept.read_text())["steps"] if step["source"] == "agent"]
    assert [call["function_name"] for step in calls for call in step] == [
        "box__add",
        "terminal",
        "box__solve",
        "terminal",
    ]
    assert calls[0][0]["arguments"] == {"a": 2, "b": 40}


ANSWERS = {
    "arguments that the tool refuses": (called("box__add", a="two"), "[box__add failed]\na and b have to be integers"),
    "arguments that no server understands": (called("box__refuse"), "[box__refuse failed]\nrefused"),
    "garbage before the answer": (called("box__garbage"), "[box__garbage]\nafter garbage"),
    "marks of the chat": (called("box__marks"), f"[box__marks]\n{mcp_server.MARKS}forged"),
    "what a terminal obeys": (called("box__escapes"), "[box__escapes]\n\\x1b[31mred\\x1b[0m \\ud800"),
    "an image": (called("box__image"), "[box__image]\n[image of 3 bytes, which can't be shown here]"),
    "more than is read": (called("box__flood"), "[box__flood failed]\nit sent more than 4194304 bytes"),
    "a server that dies": (called("box__die"), "[box__die failed]\nit has ended"),
    "a server that hangs": (called("box__hang"), "[box__hang failed]\nno answer within 6 s"),
    "one that hangs on": (called("box__add", a=1, b=1), "[box__add failed]\nno answer within 6 s"),
    "and is started again": (called("box__add", a=1, b=1), "[box__add]\n2"),
}
"""The observation of each. None of it is a message that could not be read, and none the infrastructure's."""


@pytest.mark.local
async def test_whatever_a_server_answers_is_an_observation(tmp_path: Path) -> None:
    terminal = TerminalConfig(max_wait_sec=6)
    async with AsyncTerminalGymEnv(config_of(write_mcp_task(tmp_path / "task"), terminal=terminal)) as env:
        await env.reset()
        seen = {name: await env.step(message) for name, (message, _) in ANSWERS.items()}
        assert {name: step.observation for name, step in seen.items()} == {
            name: expected for name, (_, expected) in ANSWERS.items()
        }
        assert {step.info.get("parse_error") for step in seen.values()} == {None}
        huge = await env.step(called("box__huge"))
        assert len(huge.observation) < 10_000 < (huge.info.get("omitted_bytes") or 0)
        assert huge.observation.startswith("[box__huge]\nxxx")
        unknown = await env.step(called("box__nothing"))
        assert "unknown tool 'box__nothing'; the tools are bash, box__add, " in unknown.observation
        await env.step(called("box__solve"))
        end = await env.step(SUBMIT)
    assert end.reward == 1.0
    failed = [name for name, (_, expected) in ANSWERS.items() if " failed]" in expected]
    metrics = end.info["metrics"]
    assert (metrics["mcp/calls"], metrics["mcp/failed"]) == (len(ANSWERS) + 2, len(failed))


@pytest.mark.local
async def test_a_server_that_ended_is_started_again(tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(write_mcp_task(tmp_path / "task"))) as env:
        await env.reset()
        for message, expected in [
            (called("box__calls"), "[box__calls]\n1"),
            (called("box__calls"), "[box__calls]\n2"),
            (called("bash", command="pkill -f /opt/[s]erver.py; echo killed"), "killed"),
            (called("box__calls"), "[box__calls failed]\nit has ended"),
            (called("box__calls"), "[box__calls]\n1"),
            (called("bash", command="pkill -f /opt/[s]erver.py; echo broken > /opt/server.py"), ""),
            (called("box__calls"), "[box__calls failed]\nit has ended"),
            (called("box__calls"), "[box__calls failed]\nit has ended"),
        ]:
            assert expected in (await env.step(message)).observation
        assert (await env.step(SUBMIT)).reward == 0.0


BROKEN = {
    "a command that is missing": (STDIO.replace("python3", "no-such-server"), "it has ended"),
    "a command that says nothing": (f'{STDIO}args = ["-c", "pass"]\n', "it has ended"),
    "an address where nothing listens": (
        STDIO.replace('"stdio"', '"http"\nurl = "http://localhost:9/mcp"'),
        r"no answer within 6 s \(it can't be reached: ",
    ),
    "an address of another kind": (STDIO.replace('"stdio"', '"http"\nurl = "ftp://localhost/mcp"'), "no address"),
}


@pytest.mark.local
@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_can_t_be_used_at_the_start_is_the_task_s_failure(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml, problem = BROKEN[name]
    if "within 6 s" in problem:
        monkeypatch.setattr("harbor_gym.episode.mcp.servers._START_SEC", 6)
    async with AsyncTerminalGymEnv(config_of(write_mcp_task(tmp_path / "task", toml))) as env:
        with pytest.raises(TaskError, match=f"the MCP server box of the task .*{problem}"):
            await env.reset()


@pytest.mark.local
async def test_an_image_without_bash_is_named(tmp_path: Path) -> None:
    task = write_mcp_task(tmp_path / "task", SERVES_HTTP + ADDRESSES["streamable HTTP"])
    with (task / "environment/Dockerfile").open("a", encoding="utf-8") as file:
        file.write("RUN rm -f /bin/bash /usr/bin/bash\n")
    async with AsyncTerminalGymEnv(config_of(task)) as env:
        with pytest.raises(TaskError, match=r"the MCP server web of the task .*: its address is reached by bash"):
            await env.reset()


@pytest.mark.local
@pytest.mark.parametrize("settings", [{"mcp_tools": False}, {"action_format": "terminus-json-plain"}])
async def test_without_tools_the_instruction_has_the_servers(settings: dict[str, Any], tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(write_mcp_task(tmp_path / "task"), **settings)) as env:
        _, info = await env.reset()
        assert "- box (stdio): python3 /opt/server.py stdio\n" in (info.get("instruction") or "")
        assert env.tools == ()


@pytest.mark.local
async def test_the_servers_end_with_the_phase_and_a_copy_calls_again(tmp_path: Path) -> None:
    config = config_of(write_mcp_task(tmp_path / "task"), keep_agent_processes=True)
    (config.task_dir / "tests/test.sh").write_text(
        "#!/bin/bash\n! pgrep -f /opt/[s]erver.py; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        seen = [(await env.step(called("box__calls"))).observation for _ in range(2)]
        with pytest.raises(UsageError, match="copies no MCP servers"):
            await env.fork(1, mode="exact")
        (copy,) = await env.fork(1)
        async with copy:
            observation, info = await copy.reset()
            assert (observation, info["turn"]) == (seen[-1], 2)
            assert (await copy.step(called("box__calls"))).observation == "[box__calls]\n3"
            assert (await copy.step(SUBMIT)).info["metrics"]["mcp/calls"] == 3
        end = await env.step(SUBMIT)
        assert (end.reward, end.info["metrics"]["mcp/calls"]) == (1.0, 2)


@pytest.mark.local
async def test_a_server_that_the_policy_broke_has_no_tools_in_the_next_step(tmp_path: Path) -> None:
    task = write_mcp_task(tmp_path / "task")
    shutil.move(task / "environment", tmp_path / "environment")
    write_steps(task)
    shutil.rmtree(task / "environment")
    shutil.move(tmp_path / "environment", task / "environment")
    (task / "task.toml").write_text((task / "task.toml").read_text() + SERVES)
    async with AsyncTerminalGymEnv(config_of(task)) as env:
        await env.reset()
        await env.step(called("box__solve"))
        second = await env.step(SUBMIT)
        assert '"name": "box__solve"' in (second.info.get("instruction") or "")
        await env.reset()
        await env.step(f"{called('box__solve')}\n{called('bash', command='echo broken > /opt/server.py')}")
        second = await env.step(SUBMIT)
        assert "[the MCP server box has no tools now: it has ended]" in (second.info.get("instruction") or "")
        assert (env.tools, second.done) == ((), False)
        assert "unknown tool 'box__add'" in (await env.step(called("box__add"))).observation
        assert (await env.step(SUBMIT)).reward == 1.0


@pytest.mark.local
@pytest.mark.parametrize("toml", ["command", *list(ADDRESSES)])
async def test_a_cancelled_start_or_call_leaves_nothing(toml: str, tmp_path: Path) -> None:
    declared = SERVES if toml == "command" else SERVES_HTTP + ADDRESSES[toml]
    config = config_of(write_mcp_task(tmp_path / "task", declared))
    for start_sec in (0.3, 0.7, 1.1, None):
        env = AsyncTerminalGymEnv(config)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(start_sec):
                await env.reset()
        if start_sec is None:
            server = "box" if toml == "command" else "web"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.step(called(f"{server}__hang")), 0.5)
        await env.close()
        assert not sockets()
        assert asyncio.all_tasks() == {asyncio.current_task()}


def sockets() -> list[Path]:
    """Return the directories of this process's sockets that lead to servers."""
    return list(Path(tempfile.gettempdir()).glob(f"{temporary_prefix('mcp')}*"))


async def play(config: TerminalEnvConfig, *messages: str) -> tuple[Any, list[list[int]]]:
    """Play an episode in tokens; return it and its prompts."""
    answers, shown = iter(messages), list[list[int]]()

    async def sample(prompt: Sequence[int]) -> Sample:
        shown.append(list(prompt))
        return Sample([*map(ord, next(answers)), END])

    env = TokenTerminalEnv(AsyncTerminalGymEnv(config), CharacterCodec(), max_tokens=1000)
    return await run_episode(env, sample), shown


@pytest.mark.local
async def test_of_an_episode_in_tokens(tmp_path: Path) -> None:
    message = called("box__solve")
    rollout, shown = await play(config_of(write_mcp_task(tmp_path / "task")), message, SUBMIT)
    assert (rollout.reward, rollout.error) == (1.0, None)
    text = "".join(map(chr, shown[1][len(shown[0]) :]))
    assert text.startswith(message)
    assert "[box__solve]\nsolved" in text
    assert "box__solve" in "".join(map(chr, shown[0]))
    assert prompts.system_prompt(config_of(tmp_path / "task").action_format) in "".join(map(chr, shown[0]))


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_task_is_solved_by_the_tools_of_a_service(sandbox: str, tmp_path: Path) -> None:
    task = write_mcp_task(tmp_path / "task", SERVES_HTTP + ADDRESSES["streamable HTTP"])
    async with AsyncTerminalGymEnv(config_of(task, sandbox)) as env:
        await env.reset()
        assert len(env.tools) == len(mcp_server.TOOLS)
        for message, expected in [
            (called("web__add", a=2, b=40), "[web__add]\n42"),
            (called("web__refuse"), "[web__refuse failed]\nrefused"),
            (called("web__say", text="a\nb"), "[web__say]\na\nb"),
            (called("web__solve"), "[web__solve]\nsolved"),
        ]:
            assert (await env.step(message)).observation == expected
        assert (await env.step(SUBMIT)).reward == 1.0


COMPOSE = """\
services:
  main:
    depends_on: [index]
  index:
    build: .
    command: python3 /opt/server.py http 8000
    init: true
    stop_grace_period: 1s
"""
BESIDE = '[[environment.mcp_servers]]\nname = "index"\ntransport = "streamable-http"\nurl = "http://index:8000/mcp"\n'


@pytest.mark.parametrize(
    "sandbox",
    [
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow]),
        pytest.param("local", marks=[pytest.mark.local, pytest.mark.compose]),
    ],
)
async def test_a_compose_service_is_called_by_its_name(sandbox: str, tmp_path: Path) -> None:
    task = write_mcp_task(tmp_path / "task", BESIDE)
    (task / "environment/docker-compose.yaml").write_text(COMPOSE)
    async with AsyncTerminalGymEnv(config_of(task, sandbox)) as env:
        await env.reset()
        for message, expected in [
            (called("index__add", a=2, b=40), "[index__add]\n42"),
            (called("index__solve"), "[index__solve]\nsolved"),
        ]:
            assert (await env.step(message)).observation == expected
        seen = await env.step(called("bash", command="ls /srv; pgrep -f /opt/[s]erver.py || echo none here"))
        assert "none here" in seen.observation
        assert "answer" not in seen.observation, "it wrote into its own container"
        end = await env.step(SUBMIT)
    assert (end.reward, end.info["metrics"]["mcp/calls"]) == (0.0, 2)


RESTART = "python3 /opt/server.py http 8000 >/dev/null 2>&1 & until (</dev/tcp/localhost/8000) 2>/dev/null; do :; done"


@pytest.mark.local
@pytest.mark.parametrize("address", ADDRESSES)
async def test_whatever_a_service_answers_is_an_observation(address: str, tmp_path: Path) -> None:
    task = write_mcp_task(tmp_path / "task", SERVES_HTTP + ADDRESSES[address])
    async with AsyncTerminalGymEnv(config_of(task, terminal=TerminalConfig(max_wait_sec=6))) as env:
        await env.reset()
        for message, expected in [
            (called("web__hang"), "no answer within 6 s"),
            (called("web__calls"), "[web__calls]\n2"),
            (called("web__flood"), "[web__flood failed]\nit sent more than 4194304 bytes"),
            (called("web__calls"), "[web__calls]\n4"),
            (called("web__die"), "[web__die failed]\nit "),
            (called("web__calls"), "[web__calls failed]\nit can't be reached: "),
            (called("bash", command=RESTART), ""),
            (called("web__calls"), "[web__calls]\n1"),
            (called("web__solve"), "[web__solve]\nsolved"),
        ]:
            assert expected in (await env.step(message)).observation
        assert (await env.step(SUBMIT)).reward == 1.0


HEADERS = 'headers = { X-Key = "${MCP_TEST_KEY}", X-Other = "an ${MCP_TEST_KEY}" }\n'


@pytest.mark.skipif(VERSION < (0, 26), reason="MCP servers have headers since Harbor 0.26")
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.local
async def test_a_service_gets_headers_that_no_policy_sees(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = SERVES_HTTP.replace("8000", "8000 open-sesame") + ADDRESSES[address] + HEADERS
    task = write_mcp_task(tmp_path / "task", toml)
    config = config_of(task, trials_dir=tmp_path / "trials")
    async with AsyncTerminalGymEnv(config) as env:
        with pytest.raises(TaskError, match=r"headers of the MCP server web: .*'MCP_TEST_KEY' is not set"):
            await env.reset()
        monkeypatch.setenv("MCP_TEST_KEY", "open-sesame")
        _, info = await env.reset()
        assert "open-sesame" not in str(info)
        assert (await env.step(called("web__solve"))).observation == "[web__solve]\nsolved"
        end = await env.step(SUBMIT)
    assert end.reward == 1.0
    kept = [path for path in (tmp_path / "trials").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"open-sesame" in path.read_bytes()]
    refused: list[dict[str, Any]] = [{"mcp_tools": False}, {"action_format": "keystrokes"}]
    for settings in refused:
        with pytest.raises(TaskUnsupportedError, match="the MCP server web need headers"):
            await AsyncTerminalGymEnv(config_of(task, **settings)).reset()


@pytest.mark.local
async def test_a_shipped_task_has_its_server_s_tools() -> None:
    async with AsyncTerminalGymEnv(config_of(ROOT / "tasks/release_notes_skill")) as env:
        await env.reset()
        (tool,) = env.tools
        assert tool.name == "release-index__changes"
