"""Open a session in a sandbox, and choose the transport to it."""

import asyncio
import logging
import secrets
import shlex
from typing import TYPE_CHECKING, cast

from harbor_gym._runtime.shell_text import with_arguments
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import HarborGymError, TerminalStartError
from harbor_gym.sandboxes.extensions import SupportsProcessCopies, SupportsTerminal
from harbor_gym.terminal.sandbox_exec import run_in_sandbox
from harbor_gym.terminal.scripts import call_in_bash, read_script, reader
from harbor_gym.terminal.session import Terminal
from harbor_gym.terminal.tmux import Session, TmuxTerminal
from harbor_gym.terminal.tools import MIN_TMUX, ensure_tmux, path_prefix
from harbor_gym.terminal.transports.attach import has_pipes
from harbor_gym.terminal.transports.channel import Channel, ChannelBrokenError
from harbor_gym.terminal.transports.persistent import PersistentTransport, open_channel
from harbor_gym.terminal.transports.portable import PortableTransport
from harbor_gym.terminal.transports.step import Transport, max_answer_bytes

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

_OPEN_TIMEOUT_SEC = 60

# In a command's text a tab is a tab, and "!" recalls no earlier command.
_LITERAL = "set +H\nbind 'set disable-completion on' 2>/dev/null\n"
_PAGERS = ("PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER")

logger = logging.getLogger(__name__)


async def open_terminal(
    environment: "BaseEnvironment", config: TerminalConfig, *, user: str | int | None = None
) -> Terminal:
    """Start an interactive bash in a tmux pane inside ``environment``, in the environment's working directory.

    ``user`` None is the environment's default user at this moment; the session keeps it. The caller closes the
    terminal; a terminal that failed to open leaves nothing behind. An environment that runs no real processes has
    a terminal of its own (:class:`harbor_gym.sandboxes.extensions.SupportsTerminal`).

    Raises:
        TerminalStartError: the image has no bash or no usable tmux, the shell ended at once, or the transport that
            ``config`` asks for is not available here.
        SandboxLostError: the sandbox is gone.
        SandboxTimeoutError: the sandbox did not answer.
    """
    user = user if user is not None else environment.default_user
    if isinstance(environment, SupportsTerminal):
        return cast("Terminal", await environment.make_terminal(config, user=user))
    try:
        return await _open(environment, config, user, None)
    except _ToolMissingError:
        # An image with tmux and bash costs no further call.
        return await _open(environment, config, user, await ensure_tmux(environment, user=user))


class _ToolMissingError(Exception):
    """The image has no bash, or no usable tmux."""


async def _open(
    environment: "BaseEnvironment", config: TerminalConfig, user: str | int | None, tools: str | None
) -> Terminal:
    nonce = f"@{secrets.token_hex(8)}"
    channel = None
    root = ""
    if isinstance(environment, SupportsProcessCopies) and environment.is_forkable:
        answer = await _open_root(environment, config, user, tools, nonce)
        match answer.split(" "):
            case [_, "root", root]:
                pass
            case failure:
                raise _failure(environment, failure, answer, "", tools)
    if config.transport != "portable" and has_pipes(environment):
        channel = await _open_by_channel(environment, config, user, tools, nonce, root)
    if channel is not None:
        text, mishap = channel.greeting, ""
    else:
        result = await run_in_sandbox(
            environment,
            _open_command(nonce, config, tools, root),
            timeout_sec=_OPEN_TIMEOUT_SEC,
            user=user,
            purpose="open a terminal session",
        )
        text, mishap = result.stdout or "", f"return code {result.return_code}: {result.stderr or ''}"
    answer = next((line for line in text.split("\n") if line.startswith(nonce)), "")
    match answer.split(" "):
        case [_, "ok", directory, shell, server]:
            portable = PortableTransport(environment, user, directory, server, tools)
            terminal = TmuxTerminal(environment, config, user, directory, (shell, server), portable, tools)
            if config.transport == "portable":
                return terminal
            persistent = _persistent(portable, environment, config, user, directory, channel)
            try:
                terminal.transport = await _connected(environment, config, persistent)
            except BaseException:
                await terminal.close()
                raise
            return terminal
        case failure:
            if channel is not None:
                await channel.close()
            raise _failure(environment, failure, text, mishap, tools)


def session_of(terminal: TmuxTerminal) -> Session:
    """Return a terminal's session as it stands, with which :func:`resume_terminal` goes on."""
    return terminal.session(is_persistent=isinstance(terminal.transport, PersistentTransport))


def resume_terminal(environment: "BaseEnvironment", config: TerminalConfig, session: Session) -> Terminal:
    """Return the terminal of a session that a copy of its sandbox has, at the same place of its history.

    Args:
        environment: The copy, in which the session's processes run.
        config: That of the session.
        session: The session.
    """
    user, directory, pids = session.user, session.directory, session.pids
    portable = PortableTransport(environment, user, directory, pids[1], session.tools)
    terminal = TmuxTerminal(environment, config, user, directory, pids, portable, session.tools)
    if session.is_persistent:
        terminal.transport = _persistent(portable, environment, config, user, directory)
    terminal.go_on(session)
    return terminal


def _persistent(
    portable: PortableTransport,
    environment: "BaseEnvironment",
    config: TerminalConfig,
    user: str | int | None,
    directory: str,
    channel: Channel | None = None,
) -> PersistentTransport:
    limit = max_answer_bytes(config)
    return PersistentTransport(environment, user, directory, portable=portable, max_answer_bytes=limit, channel=channel)


async def _open_root(
    environment: SupportsProcessCopies, config: TerminalConfig, user: str | int | None, tools: str | None, nonce: str
) -> str:
    """Start the session's server as the process above all that the policy starts; return its one line."""
    ready = f"@{secrets.token_hex(8)}"
    command, given = _reader(ready, nonce, config, tools, "", "root")
    process = await environment.exec_root(command, user=user)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given.encode())
        async with asyncio.timeout(_OPEN_TIMEOUT_SEC):
            return (await process.stdout.readline()).decode("utf-8", "replace").strip()
    except TimeoutError:
        process.kill()
        raise
    finally:
        process.drop()


async def _open_by_channel(
    environment: "BaseEnvironment",
    config: TerminalConfig,
    user: str | int | None,
    tools: str | None,
    nonce: str,
    root: str,
) -> Channel | None:
    """Open a session by the process that then serves it, which saves a trip; None where that fails."""
    ready = f"@{secrets.token_hex(8)}"
    command, given = _reader(ready, nonce, config, tools, ready, root)
    try:
        return await open_channel(
            environment,
            command,
            user=user,
            ready=ready,
            max_answer_bytes=max_answer_bytes(config),
            given=given,
            directory="" if root else _directory(nonce),
        )
    except ChannelBrokenError as error:
        logger.debug("no channel at once for sandbox %s: %s", environment.session_id, error)
        return None


def _reader(key: str, nonce: str, config: TerminalConfig, tools: str | None, ready: str, part: str) -> tuple[str, str]:
    """Return the command that opens a session, and its input."""
    script = with_arguments(read_script("open"), (*_open_arguments(nonce, config, tools), ready, part))
    command, given = reader(key, read_script("step"), script)
    return path_prefix(tools) + command, given


def _directory(nonce: str) -> str:
    """Return the first of the places for the session's directory."""
    return f"/run/.terminal-{nonce.removeprefix('@')}"


def _open_command(nonce: str, config: TerminalConfig, tools: str | None, root: str) -> str:
    """Return the shell text that opens a session."""
    call = call_in_bash("open", *_open_arguments(nonce, config, tools), "", root)
    no_bash = f"rmdir {_directory(nonce)} 2>/dev/null; echo '{nonce} fail no-bash'; exit 0"
    step = f"export seldom= step={shlex.quote(read_script('step'))}"
    return f"{path_prefix(tools)}command -v bash >/dev/null 2>&1 || {{ {no_bash}; }}; {step}; {call}"


def _open_arguments(nonce: str, config: TerminalConfig, tools: str | None) -> tuple[object, ...]:
    sizes = (config.columns, config.rows, config.history_lines)
    rc = read_script("rc") + (_LITERAL if config.keys == "literal" else "")
    pager = ("cat" if config.keys == "literal" else "") if config.pager is None else config.pager
    if pager:
        rc += "export " + " ".join(f"{name}={shlex.quote(pager)}" for name in _PAGERS) + "\n"
    return nonce, rc, *sizes, MIN_TMUX[0] * 100 + MIN_TMUX[1], tools or ""


async def _connected(
    environment: "BaseEnvironment", config: TerminalConfig, persistent: PersistentTransport
) -> Transport:
    """Return the persistent transport, or the portable one if the first is neither available nor required."""
    kind = type(environment).__name__
    problem = f"{kind} offers no pipes into its sandbox, only exec; local, docker and apptainer sandboxes do"
    try:
        if await persistent.connect():
            return persistent
    except ChannelBrokenError as error:
        problem = f"the channel into the sandbox does not answer: {error}"
    if config.transport == "persistent":
        raise TerminalStartError(
            f"No persistent terminal in sandbox {environment.session_id!r}: {problem}. "
            "Set transport to 'auto' or 'portable'."
        )
    logger.debug("portable transport for sandbox %s: %s", environment.session_id, problem)
    return persistent.portable


def _failure(environment: "BaseEnvironment", answer: list[str], text: str, mishap: str, tools: str | None) -> Exception:
    match answer:
        case [_, "fail", "no-tmux" | "no-bash" | "old-tmux", *_] if tools is None:
            return _ToolMissingError()
        case [_, "fail", reason, *details]:
            return _start_error(environment, reason, " ".join(details), text)
        case _:
            return _start_error(environment, "no-answer", f"{mishap} {text.strip()[-500:]}".strip(), "")


def _start_error(environment: "BaseEnvironment", reason: str, details: str, output: str) -> HarborGymError:
    install = "Install it in the task's environment/Dockerfile (Debian: `RUN apt-get update && apt-get install -y {}`)."
    match reason:
        case "no-tmux" | "no-bash":
            program = reason.removeprefix("no-")
            what = f"the image has no {program}. {install.format(program)}"
        case "old-tmux":
            oldest = f"{MIN_TMUX[0]}.{MIN_TMUX[1]}"
            what = f"the image has {details}, and at least tmux {oldest} is needed. {install.format('tmux')}"
        case "no-directory":
            what = f"no directory for the session could be made in /run, /dev/shm, /var/tmp, $HOME or /tmp. {details}"
        case "shell-ended":
            what = f"bash ended at once; its ~/.bashrc may exit. Last output: {output.strip()[-500:]}"
        case _:
            what = f"{reason}: {details} {output.strip()[-500:]}".strip()
    return TerminalStartError(f"No terminal in sandbox {environment.session_id!r}: {what}")
