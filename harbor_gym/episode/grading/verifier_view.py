"""Grade in a view of the sandbox.

A *pristine* one the policy cannot prepare: it is the image, and only the given paths of the policy. There is a similar
one for the set-up of later steps. A *shared* one is for what the policy left running: only the verifier's directories
are out of its reach. A sandbox class may support them (:mod:`harbor_gym.sandboxes.extensions`). The environment's calls
then happen in the view.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.task.task import Task

from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.episode._harbor_patches import precede_calls
from harbor_gym.episode.grading.cleanup import BrokenByPolicyError
from harbor_gym.episode.task import declared_verify_paths, grades_in_shared_sandbox
from harbor_gym.errors import SandboxTimeoutError, TaskUnsupportedError
from harbor_gym.sandboxes.extensions import SupportsSetUpView, SupportsSharedView, SupportsVerifierView

_MERGE_TIMEOUT_SEC = 120.0
_logger = logging.getLogger(__name__)


class VerifierView:
    """The views of one sandbox: entered for a verification, left by the first call of a further step.

    Harbor reports when a verification begins, but not when it ends; its next request to the sandbox is the next step's.
    The set-up of that step has a view of its own, from the first command to the beginning of the policy's phase.

    Args:
        environment: A sandbox that supports such a view; its methods are wrapped.
        paths: The paths carried into pristine views; None if there are no pristine ones.
        begun: Returns how many steps have begun.
    """

    def __init__(
        self, environment: BaseEnvironment, paths: Sequence[PurePosixPath] | None, begun: Callable[[], int]
    ) -> None:
        self._sandbox = environment
        self._paths = tuple(paths or ())
        self.is_pristine = paths is not None
        """Whether each verification has a pristine view."""
        self._begun = begun
        self._entered_in: int | None = None
        self._is_setting_up = False
        self._prepared = 1
        """The last step that has been prepared, or is being prepared."""
        precede_calls(environment, self._leave_for_next_step)

    async def enter(self) -> None:
        """Enter the pristine view.

        Raises:
            SandboxError: The sandbox could not make one.
        """
        assert isinstance(self._sandbox, SupportsVerifierView)
        await self._sandbox.enter_verifier_view(self._paths)
        self._entered_in = self._begun()

    async def enter_shared(self, directories: Sequence[PurePosixPath]) -> None:
        """Enter a shared view, in which these directories are the verifier's alone.

        Raises:
            SandboxError: The sandbox could not make one.
        """
        assert isinstance(self._sandbox, SupportsSharedView)
        await self._sandbox.enter_shared_view(directories)
        self._entered_in = self._begun()

    async def enter_for_set_up(self) -> bool:
        """Enter the view of the current step's set-up, unless it was entered before or its phase has begun.

        Returns:
            Whether it was entered now.

        Raises:
            SandboxError: The sandbox could not make one.
        """
        if self._begun() <= self._prepared or not isinstance(self._sandbox, SupportsSetUpView):
            return False
        self._prepared = self._begun()
        await self._leave_for_next_step()
        await self._sandbox.enter_set_up_view(self._paths)
        self._is_setting_up = True
        return True

    async def begin_phase(self) -> None:
        """Leave the view of the set-up, if there is one; the policy gets the files written in it.

        Raises:
            SandboxError: The sandbox could not do it.
            BrokenByPolicyError: The policy left no room for the files, or files that can't be replaced in time.
        """
        self._prepared = self._begun()
        if not self._is_setting_up or not isinstance(self._sandbox, SupportsSetUpView):
            return
        self._is_setting_up = False
        try:
            problem = await self._sandbox.leave_set_up_view(timeout_sec=_MERGE_TIMEOUT_SEC)
        except SandboxTimeoutError as exc:
            problem = str(exc)
        if problem:
            raise BrokenByPolicyError(f"could not give the policy the files of its step's set-up: {problem}")

    async def _leave_for_next_step(self) -> None:
        if self._entered_in is not None and self._begun() > self._entered_in:
            self._entered_in = None
            assert isinstance(self._sandbox, SupportsSharedView | SupportsVerifierView)
            await self._sandbox.leave_verifier_view()


def kind_of(environment: BaseEnvironment) -> str:
    """Return the name of a sandbox's kind, for people."""
    kind: Any = environment.type()
    return str(getattr(kind, "value", kind))  # an enumeration for Harbor's own


def paths_in_view(task: Task, environment: BaseEnvironment, wanted: VerifyPaths) -> tuple[PurePosixPath, ...] | None:
    """Return the paths of the policy's sandbox that a task's verifier sees; None for all, as under Harbor.

    Args:
        task: The task.
        environment: Its sandbox, not yet started.
        wanted: The configuration's ``verify_paths``. Given paths require a view, ``auto`` does not.

    Raises:
        TaskUnsupportedError: Paths are given for a sandbox that has no such view.
    """
    paths = declared_verify_paths(task) if wanted == "auto" else wanted
    if paths is None or paths == "off":
        return None
    if not any(grades_in_shared_sandbox(task, step) for step in task.config.steps or [None]):
        return None  # the verifier's sandbox is one that the policy never saw
    if isinstance(environment, SupportsVerifierView):
        return paths
    kind = kind_of(environment)
    if wanted != "auto":
        raise TaskUnsupportedError(
            f"task {task.name!r} can't be verified with verify_paths in a {kind} sandbox, which has no pristine view: "
            "use --env local, or verify_paths 'auto' for Harbor's grading where there is none"
        )
    note_missing(kind)
    return None


@functools.cache
def note_missing(kind: str) -> None:
    """Log once per kind of sandbox that it grades as Harbor does."""
    _logger.warning(
        "%s sandboxes have no pristine view (local ones have): a task's verify_paths have no effect there",
        kind,
    )
