"""The portable transport: one ``exec`` per step, on any Harbor environment that has bash and tmux."""

import shlex
from typing import TYPE_CHECKING

from harbor_gym.errors import SandboxLostError
from harbor_gym.terminal.sandbox_exec import run_in_sandbox
from harbor_gym.terminal.screen.capture import NO_SESSION, Capture, CaptureError, parse_capture
from harbor_gym.terminal.scripts import call_in_bash, read_script
from harbor_gym.terminal.tools import path_prefix
from harbor_gym.terminal.transports.step import LONG_PAYLOAD_BYTES, Step

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment, ExecResult  # 0.3 s to import, and only types are needed

MARGIN_SEC = 30
"""Seconds for the work of a step beside its waits, on an overloaded machine."""

_REMOVED = 96
"""The command's exit code if the session's directory, with the script, is gone."""

_NO_SHELL_CODES = (126, 127)
"""Exit codes if the policy removed the shell that opened the session."""


class PortableTransport:
    """Runs the step script once per step."""

    def __init__(
        self,
        environment: "BaseEnvironment",
        user: str | int | None,
        directory: str,
        server: str,
        tools: str | None = None,
    ) -> None:
        self.name = "portable"
        self._environment = environment
        self._user = user
        self._directory = directory
        self._server = server
        self.prefix = path_prefix(tools)
        """The beginning of every command in the sandbox."""

    async def run_step(self, step: Step, *, again: bool = False) -> Capture:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.run_step`.

        ``again``: another transport may have begun this step. Its process is stopped, keystrokes that it typed are not
        typed again, and a screen that it captured is returned again.
        """
        short, files = step.with_long_payloads_in_files()
        for name, content in files.items():
            await self._send_ahead(name, content)
        script = f"{self._directory}/step"
        words = shlex.join([script, "again" if again else "step", *short.words])
        result = await self._run(step, f"[ -r {script} ] || exit {_REMOVED}; exec bash {words}")
        if result.return_code == _REMOVED:
            # The policy has removed the session's directory; the script makes it again.
            text = shlex.quote(read_script("step"))
            result = await self._run(step, f"server={self._server} exec bash -c {text} {words}")
        try:
            return parse_capture(result.stdout or "", step.nonce)
        except CaptureError as error:
            if result.return_code in _NO_SHELL_CODES:
                return NO_SESSION
            if step.inputs:
                # The script was killed (as by `kill -9 -1`): read the screen once, type nothing again.
                return await self.run_step(step.without_inputs())
            raise SandboxLostError(
                f"Sandbox {self._environment.session_id!r} gave no usable answer to a terminal step "
                f"(return code {result.return_code}): {error}. Run the episode again in a fresh sandbox."
            ) from error

    async def _run(self, step: Step, command: str) -> "ExecResult":
        return await run_in_sandbox(
            self._environment,
            self.prefix + command,
            timeout_sec=step.wait_sec + MARGIN_SEC,
            user=self._user,
            purpose="run a terminal step",
            cwd="/",
        )

    async def finish(self, script: str, *arguments: object) -> str:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.finish`."""
        result = await run_in_sandbox(
            self._environment,
            self.prefix + call_in_bash(script, *arguments),
            timeout_sec=MARGIN_SEC,
            user=self._user,
            purpose=f"{script} the terminal session",
            cwd="/",
        )
        return result.stdout or ""

    async def close_channel(self) -> None:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.close_channel`."""

    async def close(self) -> None:
        """See :meth:`harbor_gym.terminal.transports.step.Transport.close`."""

    async def _send_ahead(self, name: str, content: str) -> None:
        """Write a long payload into the sandbox in pieces.

        ``upload_file`` would be one call, but it may miss file systems that are mounted inside the sandbox, and the
        file would not belong to the session's user.
        """
        for start in range(0, len(content), LONG_PAYLOAD_BYTES):
            await run_in_sandbox(
                self._environment,
                f"printf %s {content[start : start + LONG_PAYLOAD_BYTES]} >>{self._directory}/{name}",
                timeout_sec=MARGIN_SEC,
                user=self._user,
                purpose="take keystrokes",
                cwd="/",
            )
