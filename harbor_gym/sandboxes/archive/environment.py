"""File transfers of a Harbor environment that run no program of the sandbox."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, override

from harbor.environments.base import BaseEnvironment

from harbor_gym.sandboxes.archive import transfers
from harbor_gym.sandboxes.archive.transfers import Way
from harbor_gym.sandboxes.archive.trees.records import ALL, Choice


class CarriesFiles(BaseEnvironment):
    """Harbor's transfers by a process outside the sandbox: a policy that replaces tar or the shell changes nothing."""

    cuts_rewards: ClassVar[bool] = True
    executable: PurePosixPath | None = None
    """A file that an upload of a directory makes executable for all, as ``chmod +x`` does."""
    is_executable = False
    """Whether an upload has brought that file."""

    @abstractmethod
    def _way(self) -> Way:
        """Return the function that carries files into the running sandbox and out of it.

        Raises:
            SandboxLostError: The sandbox is not running.
        """

    @property
    def _storage_mb(self) -> int:
        """The sandbox's limit on written files, in MiB."""
        limit = self._effective_storage_mb
        return transfers.DEFAULT_STORAGE_MB if limit is None else limit

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the sandbox, owned by root, mode kept; into ``target_path`` if a directory.

        Raises:
            FileNotFoundError: The host has no such file.
            SandboxError: It is too large, or the sandbox has no place for it.
            SandboxLostError: The sandbox is not running.
        """
        await transfers.upload_file(self._way(), Path(source_path), target_path, self._transfer_limit_bytes)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a host directory into a directory of the sandbox, made if absent. Owned by root.

        Links stay links. An existing file or directory with a file's name is replaced.

        Raises:
            FileNotFoundError: The host has no such directory.
            SandboxError: It is too large, or the sandbox has no place for it.
            SandboxLostError: The sandbox is not running.
        """
        way, inside = self._way(), ""
        if self.executable is not None and self.executable.is_relative_to(target_dir):
            inside = str(self.executable.relative_to(target_dir))
        brought = await transfers.upload_dir(way, Path(source_dir), target_dir, self._transfer_limit_bytes, inside)
        self.is_executable = self.is_executable if brought is None else brought

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to the host, links followed inside the sandbox.

        Raises:
            SandboxError: There is no such file, or it is larger than four times the sandbox's storage.
            SandboxLostError: The sandbox is not running.
        """
        await transfers.download_file(self._way(), source_path, Path(target_path), self._transfer_limit_bytes)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the contents of a directory of the sandbox into a host directory, made if absent.

        Links that lead out of the directory, devices, FIFOs, sockets, and entries that change their kind meanwhile are
        left out: nothing is written elsewhere. The caller owns the files, and others can't write to them.

        Raises:
            SandboxError: There is no such directory, or it is larger than four times the sandbox's storage, nested
                deeper than 64 directories, or has more than 200 000 entries.
            SandboxLostError: The sandbox is not running.
        """
        await self._download_dir(source_dir, target_dir, ALL)

    @override
    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        """Do as :meth:`download_dir`, without the entries that ``tar --exclude`` leaves out for these patterns."""
        await self._download_dir(source_dir, target_dir, Choice(without=exclude))

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
        """Do as :meth:`download_dir` for files that match ``include`` and not ``exclude``, and for those in
        ``protect``; without ``include`` and ``exclude`` for all.
        """
        await self._download_dir(source_dir, target_dir, Choice((), include or (), exclude or (), protect or ()))

    async def _download_dir(self, source_dir: str, target_dir: Path | str, choice: Choice) -> None:
        carry, target = self._way(), Path(target_dir)
        await transfers.download_dir(carry, source_dir, target, self._transfer_limit_bytes, choice)

    @property
    def _transfer_limit_bytes(self) -> int:
        return transfers.limit_bytes(self._effective_storage_mb)
