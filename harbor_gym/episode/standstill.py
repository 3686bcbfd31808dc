"""What is known of a sandbox while nothing runs in it, and the trips there that this saves."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import stat
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from types import CoroutineType
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult

_EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


class Standstill:
    """Watches a sandbox: what was seen in it holds until the next command or upload.

    Harbor's trial copies the log folders out of the sandbox, and back, between the policy's end and the verifier. Where
    these were seen to be empty, nothing is sent there and back: on most tasks that is four commands of an episode. It
    also makes the uploaded test script executable, which most are already.

    Args:
        environment: The sandbox, not yet started; its methods are wrapped.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self._empty: frozenset[PurePosixPath] = frozenset()
        self._uploads: list[tuple[Path, PurePosixPath]] | None = None  # of a sandbox in which nothing runs
        self._ends = 0
        self.is_sealed = False
        """Whether the verifier's directories are as :func:`harbor_gym.episode.custody.seal` left them."""

        self._spare_commands(environment)
        environment.upload_file = self._ended_by(environment.upload_file)
        self._spare_directories(environment)

    def begin(self, empty: Iterable[PurePosixPath], *, is_sealed: bool, is_quiet: bool) -> None:
        """Take note of what was just seen.

        Args:
            empty: Directories that hold nothing.
            is_sealed: Whether the verifier's directories were just sealed.
            is_quiet: Whether nothing runs in the sandbox.
        """
        self._empty, self.is_sealed = frozenset(empty), is_sealed
        self._uploads = [] if is_quiet else None

    def end(self) -> None:
        """Forget it."""
        self._ends += 1
        self.begin((), is_sealed=False, is_quiet=False)

    def _ended_by[**P, T](
        self, work: Callable[P, CoroutineType[Any, Any, T]]
    ) -> Callable[P, CoroutineType[Any, Any, T]]:
        async def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            self.end()
            return await work(*args, **kwargs)

        return watched

    def _spare_commands(self, environment: BaseEnvironment) -> None:
        run = self._ended_by(environment.exec)
        keeps_modes = getattr(environment, "keeps_modes", False)

        async def exec_here(command: str, *args: Any, **kwargs: Any) -> ExecResult:
            path = _made_executable(command)
            is_by_root = not args and kwargs == {"user": "root"}
            if path is not None and keeps_modes and is_by_root and self._is_executable(path):
                return ExecResult(stdout="", stderr="", return_code=0)
            return await run(command, *args, **kwargs)

        environment.exec = exec_here

    def _is_executable(self, path: PurePosixPath) -> bool:
        """Tell whether a file of the sandbox was uploaded as a program for everybody, and is so still."""
        for source, target in reversed(self._uploads or ()):
            if path.is_relative_to(target) and ".." not in path.parts:
                with contextlib.suppress(OSError):
                    mode = (source / path.relative_to(target)).lstat().st_mode
                    return stat.S_ISREG(mode) and mode & _EXECUTABLE == _EXECUTABLE
        return False

    def _spare_directories(self, environment: BaseEnvironment) -> None:
        is_dir, download_dir = environment.is_dir, environment.download_dir
        upload_dir = environment.upload_dir
        upload = self._ended_by(upload_dir)

        async def is_dir_here(path: str, user: str | int | None = None) -> bool:
            return self._is_empty(path) or await is_dir(path, user=user)

        async def download_dir_here(source_dir: str, target_dir: Path | str) -> None:
            if self._is_empty(source_dir):
                await asyncio.to_thread(Path(target_dir).mkdir, parents=True, exist_ok=True)
            else:
                await download_dir(source_dir, target_dir)

        async def upload_dir_here(source_dir: Path | str, target_dir: str) -> None:
            if not self._is_empty(target_dir) or _holds_anything(Path(source_dir)):
                uploads, ends = self._uploads, self._ends
                await upload(source_dir, target_dir)
                # An upload leaves nobody behind who could change what was uploaded.
                if uploads is not None and self._ends == ends + 1:
                    self._uploads = [*uploads, (Path(source_dir), PurePosixPath(target_dir))]

        environment.is_dir = is_dir_here
        environment.download_dir = download_dir_here
        environment.upload_dir = upload_dir_here

    def _is_empty(self, path: str) -> bool:
        return PurePosixPath(path) in self._empty


def _made_executable(command: str) -> PurePosixPath | None:
    """Return the file that ``chmod +x FILE`` is about; None for every other command."""
    if not command.startswith("chmod +x "):
        return None
    try:
        _, _, *files = shlex.split(command)
    except ValueError:
        return None
    # Only what is quoted as Harbor does is a file's name and nothing else.
    return PurePosixPath(files[0]) if len(files) == 1 and shlex.join(["chmod", "+x", *files]) == command else None


def _holds_anything(directory: Path) -> bool:
    return not directory.is_dir() or any(directory.iterdir())
