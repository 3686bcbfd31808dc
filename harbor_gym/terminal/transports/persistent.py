"""The persistent transport: the step script runs on in the sandbox behind a pipe, and a step needs no ``exec``."""

import logging
import secrets
from typing import TYPE_CHECKING

from harbor_gym._runtime.shell_text import with_arguments
from harbor_gym.sandboxes.extensions import SupportsUnblocking
from harbor_gym.terminal.screen.capture import Capture, CaptureError, parse_capture
from harbor_gym.terminal.scripts import read_script, reader
from harbor_gym.terminal.transports.attach import start_piped
from harbor_gym.terminal.transports.channel import Channel, ChannelBrokenError
from harbor_gym.terminal.transports.portable import MARGIN_SEC, PortableTransport
from harbor_gym.terminal.transports.step import LONG_PAYLOAD_BYTES, Step

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

_OPEN_TIMEOUT_SEC = 30.0
_REOPEN_TIMEOUT_SEC = 10.0
"""For a channel in place of a broken one: a step waits for it, and goes on without it. The policy may stop each one."""

_MAX_BREAKS = 3
"""Channels that may break in a row, without a successful step, before no new one is opened."""

_SERVE = 'dir=$1 session=@${1##*/.terminal-} tmux= ready=$2; set -- load; eval "$step"; serve "$ready"'
"""Serves steps of the session in a directory."""

logger = logging.getLogger(__name__)


async def open_channel(
    environment: "BaseEnvironment",
    command: str,
    *,
    user: str | int | None,
    ready: str,
    max_answer_bytes: int,
    given: str = "",
    directory: str = "",
    timeout_sec: float = _OPEN_TIMEOUT_SEC,
) -> Channel | None:
    """Start ``command`` in the sandbox with pipes, and wait until it reports that it is ``ready``.

    Args:
        environment: The sandbox.
        command: Shell text.
        user: The process's user; None is the environment's default user.
        ready: The word before "ready" in the line that reports it.
        max_answer_bytes: Limit of one answer.
        given: The beginning of its input.
        directory: As for :func:`exec_pipes`.
        timeout_sec: Seconds until it has to be ready.

    Returns:
        The channel; None where the environment supports no channel.

    Raises:
        ChannelBrokenError: There is one, but no usable answer came.
        SandboxLostError: The sandbox is gone.
    """
    try:
        process = await start_piped(environment, command, user=user, directory=directory)
    except OSError as error:
        raise ChannelBrokenError(f"the process into the sandbox could not be started: {error}") from error
    if process is None:
        return None
    return await Channel.open(
        process, given, ready=f"{ready} ready", max_answer_bytes=max_answer_bytes, timeout_sec=timeout_sec
    )


class PersistentTransport:
    """Passes steps to the resident step script. If its channel breaks, the portable transport finishes the step."""

    def __init__(
        self,
        environment: "BaseEnvironment",
        user: str | int | None,
        directory: str,
        *,
        portable: PortableTransport,
        max_answer_bytes: int,
        channel: Channel | None = None,
    ) -> None:
        self.name = "persistent"
        self._environment = environment
        self._user = user
        self._directory = directory
        self.portable = portable
        """The transport that finishes a step when the channel breaks."""

        self._max_answer_bytes = max_answer_bytes
        self._channel = channel
        self._breaks = 0
        self._is_closed = False

    async def connect(self) -> bool:
        """Open the channel, if there is none yet. False: the environment supports no channel.

        Raises:
            ChannelBrokenError: There is one, but no usable answer came.
        """
        if self._channel is None:
            ready = f"@{secrets.token_hex(8)}"
            script = with_arguments(_SERVE, (self._directory, ready))
            command, given = reader(ready, read_script("step"), script)
            self._channel = await open_channel(
                self._environment,
                self.portable.prefix + command,
                user=self._user,
                ready=ready,
                max_answer_bytes=self._max_answer_bytes,
                given=given,
                timeout_sec=_REOPEN_TIMEOUT_SEC if self._breaks else _OPEN_TIMEOUT_SEC,
            )
        return self._channel is not None

    async def run_step(self, step: Step) -> Capture:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.run_step`."""
        try:
            if self._channel is None and self._breaks <= _MAX_BREAKS and not self._is_closed:
                await self.connect()
            if self._channel is not None:
                capture = await self._ask(self._channel, step)
                self.name, self._breaks = "persistent", 0
                return capture
        except ChannelBrokenError as error:
            logger.info("the channel into sandbox %s broke: %s", self._environment.session_id, error)
            self._breaks += 1
            if isinstance(self._environment, SupportsUnblocking):
                await self._environment.unblock()
            await self.close_channel()
        self.name = "portable"
        return await self.portable.run_step(step, again=True)

    async def _ask(self, channel: Channel, step: Step) -> Capture:
        short, files = step.with_long_payloads_in_files()
        requests = [
            f"put {name} {content[start : start + LONG_PAYLOAD_BYTES]}"
            for name, content in files.items()
            for start in range(0, len(content), LONG_PAYLOAD_BYTES)
        ]
        requests.append(" ".join(["step", *short.words]))
        answer = await channel.ask(requests, end=f"{step.nonce} end", timeout_sec=step.wait_sec + MARGIN_SEC)
        try:
            return parse_capture(answer, step.nonce)
        except CaptureError as error:
            raise ChannelBrokenError(f"damaged answer: {error}") from error

    async def finish(self, script: str, *arguments: object) -> str:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.finish`."""
        try:
            if self._channel is not None:
                return await self._hand_over(self._channel, with_arguments(read_script(script), arguments))
        except ChannelBrokenError as error:
            logger.info("the channel into sandbox %s broke at the end: %s", self._environment.session_id, error)
        finally:
            await self.close()
        return await self.portable.finish(script, *arguments)

    async def _hand_over(self, channel: Channel, text: str) -> str:
        """Let the process at the other end continue as another script, which saves the start of one."""
        end = f"@{secrets.token_hex(8)} end"
        text = f"{text}\nprintf '%s\\n' '{end}'"
        return (await channel.ask([f"become {text}"], end=end, timeout_sec=MARGIN_SEC)).removesuffix(f"{end}\n")

    async def close_channel(self) -> None:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.close_channel`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.close`."""
        self._is_closed = True
        await self.close_channel()
