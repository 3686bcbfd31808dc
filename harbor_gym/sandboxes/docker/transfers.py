"""Files into and out of a task's containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import override

from harbor.environments.base import ExecResult

from harbor_gym.errors import SandboxError, SandboxLostError
from harbor_gym.sandboxes.archive import transfers
from harbor_gym.sandboxes.archive.trees.records import ALL, Choice
from harbor_gym.sandboxes.docker import downloads
from harbor_gym.sandboxes.docker import engine as engine
from harbor_gym.sandboxes.docker.engine import MAIN, docker
from harbor_gym.sandboxes.docker.project import DockerProject

_COPY_TIMEOUT_SEC = 600.0


class DockerTransfers(DockerProject):
    """Uploads without Compose, and downloads of which nothing leads to this machine's own files."""

    async def _copy(self, source: str, target: str, *, check: bool) -> ExecResult:
        """Do what Compose's ``cp`` does to the main container, and make the folder that is to hold the target."""
        inside = target.removeprefix(f"{MAIN}:")
        copy = ("cp", source, f"{self._container}:{inside}")
        code, output = await docker(*copy, timeout_sec=_COPY_TIMEOUT_SEC)
        if code != 0 and await asyncio.to_thread(os.path.exists, source):
            folder = inside if source.endswith("/.") else str(PurePosixPath(inside).parent)
            await docker("exec", "--user", "0", self._container or "", "mkdir", "-p", "--", folder)
            code, output = await docker(*copy, timeout_sec=_COPY_TIMEOUT_SEC)
        if check and code != 0:
            raise RuntimeError(f"docker cp {source} {target} failed: {output.strip()}")
        return ExecResult(stdout=output, stderr=None, return_code=code)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the sandbox.

        Raises:
            SandboxError: It is larger than four times the sandbox's storage.
        """
        with transfers.explained(f"upload {source_path} to {target_path}"):
            await asyncio.to_thread(transfers.measure, Path(source_path), self._transfer_limit_bytes)
        await super().upload_file(source_path, target_path)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a host directory into a directory of the sandbox, made if absent.

        Raises:
            FileNotFoundError: The host has no such directory.
            SandboxError: It is larger than four times the sandbox's storage, or has too many files.
        """
        if not await asyncio.to_thread(Path(source_dir).is_dir):
            raise FileNotFoundError(f"{source_dir} is not a directory of this machine")
        with transfers.explained(f"upload {source_dir} to {target_dir}"):
            await asyncio.to_thread(transfers.measure, Path(source_dir), self._transfer_limit_bytes)
        await super().upload_dir(source_dir, target_dir)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to the host; a link is followed inside the sandbox.

        Raises:
            SandboxError: There is no such file, or it is larger than four times the sandbox's storage.
        """
        if self._is_windows_container:
            await super().download_file(source_path, target_path)
            return
        await self.service_download_file(source_path, target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the contents of a directory of the sandbox into a host directory, made if absent.

        Links that lead out of the directory, devices and FIFOs are left out: nothing is written elsewhere, and nothing
        of the host is read later.

        Raises:
            SandboxError: There is no such directory, or it is larger than four times the sandbox's storage.
        """
        if self._is_windows_container:
            await super().download_dir(source_dir, target_dir)
            return
        await self.service_download_dir(source_dir, target_dir)

    @override
    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        if self._is_windows_container:
            await super().service_download_file(source_path, target_path, service=service)
            return
        source = await self._download_source(service)
        await downloads.download_file(source, source_path, Path(target_path), limit_bytes=self._transfer_limit_bytes)

    @override
    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        if self._is_windows_container:
            await super().service_download_dir(source_dir, target_dir, service=service)
            return
        await self._download_some(source_dir, target_dir, ALL, service)

    @override
    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        """Do what :meth:`download_dir` does, without what ``tar --exclude`` leaves out for these patterns."""
        await self.service_download_dir_with_exclusions(source_dir=source_dir, target_dir=target_dir, exclude=exclude)

    @override
    async def service_download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str], service: str | None = None
    ) -> None:
        # Harbor's own has a tar of the sandbox pack it, and unpacks that in this process.
        if self._is_windows_container:
            await super().service_download_dir_with_exclusions(
                source_dir=source_dir, target_dir=target_dir, exclude=exclude, service=service
            )
            return
        await self._download_some(source_dir, target_dir, Choice(without=exclude), service)

    @override
    async def download_dir_filtered(
        self,
        *,
        source_dir: str,
        target_dir: Path | str,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        if self._is_windows_container:
            await super().download_dir_filtered(
                source_dir=source_dir, target_dir=target_dir, include=include, exclude=exclude, protect=protect
            )
            return
        await self._download_some(source_dir, target_dir, Choice((), include or (), exclude or (), protect or ()))

    async def _download_some(
        self, source_dir: str, target_dir: Path | str, choice: Choice, service: str | None = None
    ) -> None:
        source, limit_bytes = await self._download_source(service), self._transfer_limit_bytes
        await downloads.download_dir(source, source_dir, Path(target_dir), limit_bytes=limit_bytes, choice=choice)

    async def _download_source(self, service: str | None) -> str:
        if service in (None, MAIN):
            if self._container is not None:
                return self._container
        elif containers := await engine.containers_of(self._project, service=service):
            return containers[0]
        raise SandboxLostError(f"sandbox {self.session_id!r} has no container of its service {service or MAIN!r}")

    @property
    def _transfer_limit_bytes(self) -> int:
        return transfers.limit_bytes(self._effective_storage_mb)

    @override
    async def prepare_logs_for_host(self) -> None:
        """Give what the sandbox wrote into its log folders to this process's user, in one command."""
        targets = [item["target"] for item in self._mounts_of_this_machine if not item.get("read_only")]
        if self._is_windows_container or self._container is None or not targets:
            return
        # A rootless daemon's root is this user; any other id there would be a stranger's.
        uid, gid = (0, 0) if await self._is_rootless_docker() else (os.getuid(), os.getgid())
        with contextlib.suppress(RuntimeError, OSError, SandboxError):
            await self.exec(f"chown -R {uid}:{gid} {shlex.join(targets)}", user="root")

    @override
    async def _is_rootless_docker(self) -> bool:
        if DockerTransfers._rootless_docker is None:
            DockerTransfers._rootless_docker = await super()._is_rootless_docker()
        return DockerTransfers._rootless_docker
