"""Harbor's operations on single services, for the environment whose sandbox is ``main``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, override

from harbor.environments.base import ExecResult

from harbor_gym.sandboxes.compose.running import RunningServices

if TYPE_CHECKING:
    from harbor_gym.sandboxes.local.options import LocalOptions
    from harbor_gym.sandboxes.namespaced import NamespacedEnvironment

    _Base = NamespacedEnvironment[LocalOptions]
else:
    _Base = object

_END_SEC = 30.0


class ServiceOperations(_Base):
    """A sandbox with services beside it, or none."""

    _others: RunningServices | None
    """The services; None for a task without a Compose file, and before the start."""

    @override
    async def service_exec(
        self,
        command: str,
        *,
        service: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run ``command`` in a service: in another than ``main`` by its ``sh``, with its own user and environment.

        Raises:
            SandboxError: As :meth:`exec`, or there is no such service, or its command has ended.
            RuntimeError: The task has no Compose file; Harbor's own error.
        """
        given: dict[str, Any] = {"cwd": cwd, "env": env, "timeout_sec": timeout_sec, "user": user}
        if service is None or self.is_main_service(service) or self._others is None:
            return await super().service_exec(command, service=service, **given)
        sandbox = self._others.running(service)
        if (emit := self._output_callback()) is None:
            return await sandbox.exec(command, **given)
        with sandbox.scoped_output_callback(emit):
            return await sandbox.exec(command, **given)

    @override
    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        """Copy a file out of a service, also after its command's end; as :meth:`service_exec`."""
        if service is None or self.is_main_service(service) or self._others is None:
            await super().service_download_file(source_path, target_path, service=service)
        else:
            await self._others.sandbox(service).download_file(source_path, target_path)

    @override
    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        """Copy a directory out of a service; as :meth:`service_download_file`."""
        if service is None or self.is_main_service(service) or self._others is None:
            await super().service_download_dir(source_dir, target_dir, service=service)
        else:
            await self._others.sandbox(service).download_dir(source_dir, target_dir)

    @override
    async def stop_service(self, service: str) -> None:
        """End the processes of a service, by SIGTERM first; its files stay, and the other services run on.

        Raises:
            SandboxError: There is no such service.
            RuntimeError: The task has no Compose file; Harbor's own error.
        """
        if self._others is None:
            await super().stop_service(service)
        elif self.is_main_service(service):
            await self.end_processes(grace_sec=self._others.project.main.stop_grace_sec)
        else:
            await self._others.end(service)

    async def end_processes(self, *, grace_sec: float) -> None:
        """End all processes in the sandbox, which stays.

        Args:
            grace_sec: Seconds from SIGTERM to SIGKILL.
        """
        arguments = {
            "own": [], "ipc_objects": [], "terminal": [], "leftovers": "", "grace_sec": grace_sec,
            "deadline_sec": grace_sec + _END_SEC / 2, "keeps": False,
        }  # fmt: skip
        await self._running().clean_up("stop", arguments, timeout_sec=grace_sec + _END_SEC)
