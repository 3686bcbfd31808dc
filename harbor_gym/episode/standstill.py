"""What is known of a sandbox while nothing runs in it, and the trips there that this saves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from types import CoroutineType
from typing import Any

from harbor.environments.base import BaseEnvironment


class Standstill:
    """Watches a sandbox: what was seen in it holds until the next command or upload.

    Harbor's trial copies the log folders out of the sandbox, and back, between the policy's end and the verifier. Where
    these were seen to be empty, nothing is sent there and back: on most tasks that is four commands of an episode.

    Args:
        environment: The sandbox, not yet started; its methods are wrapped.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self._empty: frozenset[PurePosixPath] = frozenset()
        self.is_sealed = False
        """Whether the verifier's directories are as :func:`harbor_gym.episode.custody.seal` left them."""

        environment.exec = self._ended_by(environment.exec)
        environment.upload_file = self._ended_by(environment.upload_file)
        self._spare_directories(environment)

    def begin(self, empty: Iterable[PurePosixPath], *, is_sealed: bool) -> None:
        """Take note of what was just seen."""
        self._empty, self.is_sealed = frozenset(empty), is_sealed

    def end(self) -> None:
        """Forget it."""
        self._empty, self.is_sealed = frozenset(), False

    def _ended_by[**P, T](
        self, work: Callable[P, CoroutineType[Any, Any, T]]
    ) -> Callable[P, CoroutineType[Any, Any, T]]:
        async def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            self.end()
            return await work(*args, **kwargs)

        return watched

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
            if not self._is_empty(target_dir) or await asyncio.to_thread(_holds_anything, Path(source_dir)):
                await upload(source_dir, target_dir)

        environment.is_dir = is_dir_here
        environment.download_dir = download_dir_here
        environment.upload_dir = upload_dir_here

    def _is_empty(self, path: str) -> bool:
        return PurePosixPath(path) in self._empty


def _holds_anything(directory: Path) -> bool:
    return not directory.is_dir() or any(directory.iterdir())
