"""Coding agents as their makers ship them, on this machine, against a scripted policy that thinks.

Each runs where its program is on the PATH, in a directory and a home of its own. Versions that passed: mini-swe-agent
2.4.6 (with ``mcp`` beside it), claude-code 2.1.197, codex 0.169.0, qwen-code 0.15.10, pi 0.73.1.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.gateway.agents import AGENTS, agent_config
from harbor_gym.types import Sample
from tests.helpers.chats.character_codec import END
from tests.helpers.engines import agents_path, find_agent
from tests.helpers.gateway.clients import ThinkingCodec, text_of, tool_call

COMMANDS = ("echo hello > hello.txt && ls", "cat hello.txt")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""How mini-swe-agent's model ends."""

SHELL_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "Bash": {"description": "run"},
    "bash": {},
    "run_shell_command": {"is_background": False},
    "exec_command": {},
}
"""Names of the agents' shells, and the other arguments that a call of them needs."""

_TOOL = re.compile(r'"function": \{"name": "([^"]+)"')


class Policy:
    """Think, call the shell that the prompt declares, and at last report that it is done."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = iter(commands)

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        answer = f"<think>\nwhat next\n</think>\n\n{self._answer(set(_TOOL.findall(text_of(prompt))))}"
        tokens = [*map(ord, answer), END]
        return Sample(tokens, [-1.0] * len(tokens))

    def _answer(self, tools: set[str]) -> str:
        shell = next((name for name in SHELL_ARGUMENTS if name in tools), None)
        if shell is None or (command := next(self._commands, None)) is None:
            return "Done: hello."
        parameter = "cmd" if shell == "exec_command" else "command"
        return f"I run it.\n{tool_call(shell, **{parameter: command}, **SHELL_ARGUMENTS[shell])}"


def prepare(name: str, session: Session, home: Path) -> list[str]:
    """Return an agent's command line; write the files that it reads from its home."""
    url = f"{session.base_url}/v1"
    match name:
        case "mini-swe-agent":
            settings = ["--model=openai/policy", "-c", "mini", f"--output={home}/trajectory.json"]
            return ["mini-swe-agent", "--yolo", "--exit-immediately", "--task=write hello", *settings]
        case "claude-code":
            return ["claude", "--print", "--permission-mode=bypassPermissions", "--model=policy", "write hello"]
        case "codex":
            (home / ".codex").mkdir()
            (home / ".codex/config.toml").write_text(f'openai_base_url = "{url}"\n')
            free = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"]
            return ["codex", "exec", *free, "--model=policy", "write hello"]
        case "qwen-coder":
            endpoint = ["--openai-base-url", url, "--openai-api-key", "unused", "--model", "policy"]
            return ["qwen", "--yolo", "--auth-type", "openai", *endpoint, "--prompt=write hello"]
        case _:
            provider = {"baseUrl": url, "apiKey": "unused", "api": "openai-completions", "models": [{"id": "policy"}]}
            (home / ".pi/agent").mkdir(parents=True)
            (home / ".pi/agent/models.json").write_text(json.dumps({"providers": {"own": provider}}))
            return ["pi", "--print", "--provider", "own", "--model", "policy", "write hello"]


async def run(argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> str:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=directory, env=env, stdin=null, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 300)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in AGENTS if AGENTS[name].program])
async def test_one_conversation_is_one_segment(name: str, tmp_path: Path) -> None:
    program = find_agent(AGENTS[name].program)
    commands = (*COMMANDS, SUBMIT) if name == "mini-swe-agent" else COMMANDS
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    async with Gateway(Policy(commands), ThinkingCodec(), model="policy") as gateway:
        session = gateway.open_session(name=name, limits=SessionLimits(max_turns=12, time_limit_sec=250))
        argv = prepare(name, session, home)
        kept = {key: os.environ[key] for key in ("LANG", "TERM") if key in os.environ} | {"PATH": agents_path()}
        quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "IS_SANDBOX": "1"}
        quiet |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "PI_OFFLINE": "1"}
        env = {**kept, **quiet, **agent_config(name, session.base_url).env, "HOME": str(home)}
        output = await run([program, *argv[1:]], work, env)
    assert (work / "hello.txt").is_file(), output[-2000:]
    (segment,) = session.trained_segments
    assert len(segment.calls) >= 3
    assert "hello" in text_of(segment.completion)
    assert not session.breaks
    assert session.end_reason is None
    assert session.error is None
