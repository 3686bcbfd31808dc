"""Harbor's Docker environment with an owner, a short start and a certain end."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, override

from harbor.environments.base import ExecResult

from harbor_gym._runtime.harbor_versions import declares_options
from harbor_gym._runtime.shielded import shielded
from harbor_gym.errors import SandboxError, SandboxLostError, SandboxTimeoutError
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.declared import require_workdir
from harbor_gym.sandboxes.docker import engine
from harbor_gym.sandboxes.docker.engine import MAIN
from harbor_gym.sandboxes.docker.exec import run_inside
from harbor_gym.sandboxes.docker.launch import DockerLaunch
from harbor_gym.sandboxes.labels import PROJECT_LABEL

_SETTLE_SEC = 1.0
_SETTLE_POLL_SEC = 0.1


@declares_options
class DockerEnvironment(DockerLaunch):
    """Run a task in Docker as Harbor does, with less waiting and nothing left behind.

    Everything carries the labels of run and owner, so that a reaper finds what a killed process left. A task of one
    container shares one network with the other sandboxes of its process, from which it can't reach them, or has none
    under ``no-network``; a task with a Compose file of its own has its own network, as under Harbor. The shared one
    goes when the process ends. The image of a Dockerfile is kept from one start to the next. Commands go to the
    container past Compose, and one that is cancelled or out of time is dead. Nothing that is downloaded leads to this
    machine's own files.

    A ``setup_command`` runs once, in a container of its own, and the image that is made of it is kept too (label
    ``harbor_gym.image``); sandboxes of one image, command and network share it. It runs at each start where such an
    image would not hold all of its work: with a Compose file, mounts or declared volumes.

    It serves a task's separate verifier too. Windows containers run as under Harbor, with nothing of this.
    """

    known_failures: ClassVar[Mapping[str, str]] = {
        "stderr_is_told_apart": "stderr comes in stdout, in order of printing",
        "root_inside_is_root_of_its_own_namespace": "containers have the machine's user namespace, unless remapped",
        "terminals_end_at_the_sandboxs_own_limit": "the machine's pseudo-terminals are one number for all containers",
        **engine.DAEMON_LIMITS,
        "the_first_process_is_closed": "root inside may write to the memory of the first process, which is its equal",
        "the_kernels_memory_is_hidden": "Docker hides less: kpagecount, slabinfo and others are the machine's",
        "a_user_stays_who_it_was": "Docker looks users up in the container's own /etc/passwd",
        "a_verifier_sees_the_image_and_what_counts": "a container has no second root for its verifier",
        "a_verifier_is_closed_to_all_outside_of_its_view": "a container has no second root for its verifier",
        "what_ran_before_the_policy_is_closed_to_it": "all commands of a container have the same rights",
        "no_program_inside_takes_part_in_directory_calls": "Harbor asks for them by the container's own shell",
        "a_set_up_runs_with_the_images_programs": "a container has no second root for a later step's set-up",
    }
    """stderr as under Harbor, whose callers may rely on the order; the others are what containers leave open."""

    def __init__(
        self, *args: Any, setup_command: str | None = None, build_dockerfile: bool = False, **kwargs: Any
    ) -> None:
        """Take Harbor's own arguments, and two more.

        Args:
            *args: Harbor's.
            setup_command: Shell text for root, run before anything else comes into the sandbox.
            build_dockerfile: Build the task's Dockerfile, if it has one, even where it names a ``docker_image``.
            **kwargs: Harbor's.

        Raises:
            UsageError: The command is empty.
        """
        self.left_behind: str | None = None
        super().__init__(*args, setup_command=setup_command, build_dockerfile=build_dockerfile, **kwargs)

    async def is_up(self) -> bool:
        """Return whether Docker runs the main container, whatever runs in it."""
        return bool(await engine.containers_of(self._project, service=MAIN, is_running=True))

    # --- start ---------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Build the image if this process has not yet, and start the containers.

        Raises:
            SandboxStartError: Docker refuses, the main container ended at once, or the set-up command failed.
            TaskError: The image is unhealthy, or has not the working directory that the task declares.
            RuntimeError: Compose failed; Harbor's own error.
        """
        reaper.reap_in_background(in_docker=True)
        self._share_logs()
        await asyncio.to_thread(self._runs_linux_containers)
        if force_build:
            self._forget_image()
        await super().start(force_build)
        if self._switches_network and self._needs_network and self._network_disabled:
            await self._apply_network_policy(self.network_policy)
        await require_workdir(self)
        if self._setup_command is not None and not self.shares_setup:
            await self._set_up_here(self._setup_command)

    @property
    def shares_setup(self) -> bool:
        """Whether the started sandbox stands on files that a set-up command wrote once for many."""
        return self._set_up_image is not None

    # --- commands ------------------------------------------------------------------------------------------------

    @override
    async def _compose_exec(
        self,
        command: str,
        *,
        service: str,
        cwd: str | None,
        env: dict[str, str] | None,
        timeout_sec: int | None,
        user: str | int | None,
    ) -> ExecResult:
        container = await self._container_of(service)
        if self._is_windows_container or container is None:
            return await super()._compose_exec(
                command, service=service, cwd=cwd, env=env, timeout_sec=timeout_sec, user=user
            )
        flags = [*(("--workdir", cwd) if cwd else ()), *(("--user", str(user)) if user is not None else ())]
        flags += [word for key, value in (env or {}).items() for word in ("--env", f"{key}={value}")]
        # As under Harbor: the images of a task's other services may have no bash.
        shell = "bash" if service == MAIN else "sh"
        return await run_inside(
            container, command, shell=shell, flags=flags, timeout_sec=timeout_sec, emit=self._output_callback()
        )

    async def _container_of(self, service: str) -> str | None:
        if service == MAIN:
            return self._container
        running = await engine.containers_of(self._project, service=service, is_running=True)
        return running[0] if len(running) == 1 else None

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        """Return an argument vector for a process of this machine that is ``command`` in the main container.

        Raises:
            SandboxLostError: The container is not running.
        """
        if self._container is None:
            raise SandboxLostError(f"sandbox {self.session_id!r} is not running")
        owner = [] if user is None else ["--user", str(user)]
        return self._engine_cmd("exec", "--interactive", *owner, self._container, "bash", "-c", command)

    # --- end -----------------------------------------------------------------------------------------------------

    @override
    async def stop(self, delete: bool) -> None:
        """Stop the sandbox; with ``delete``, remove all of it and look whether it is gone. Idempotent.

        The image of a Dockerfile stays for the next start (label ``harbor_gym.image``).

        Raises:
            SandboxTimeoutError: Something could not be removed; the message states what, and what to do.
        """
        try:
            await super().stop(delete)
        finally:
            if self._overlay_dir is not None:
                self._overlay_dir.cleanup()
                self._overlay_dir = None
            if self._logs_dir is not None and delete:
                self._logs_dir.cleanup()
                self._logs_dir = None
            if delete and not self._keep_containers and not self._is_windows_container:
                await shielded(self._make_sure_it_is_gone())

    async def _make_sure_it_is_gone(self) -> None:
        container, self._container = self._container, None
        kinds = (
            ["container"] if self._is_plain and not self._enable_egress_control else ["container", "network", "volume"]
        )
        try:
            if kinds == ["container"] and container is not None and not self._was_interrupted:
                left = [engine.Left("container", container)]  # there is nothing else
                refusals = await engine.remove(left) and await self._remove_what_is_left(kinds)
            else:
                refusals = await self._remove_what_is_left(kinds)
        except SandboxError as exc:
            refusals = [str(exc)]
        if refusals:
            self.left_behind = (
                f"sandbox {self.session_id!r} could not be removed: {'; '.join(refusals)}. Remove it by hand "
                f"(docker ps -a --filter label={PROJECT_LABEL}={self._project}), or run `harbor-gym reap` when "
                "this process has ended"
            )
            warnings.warn(self.left_behind, ResourceWarning, stacklevel=2)
            raise SandboxTimeoutError(self.left_behind)

    async def _remove_what_is_left(self, kinds: list[str]) -> list[str]:
        """Remove everything of the project; return what Docker refused to remove, and why."""
        ending = time.monotonic() + (_SETTLE_SEC if self._was_interrupted else 0.0)
        while True:
            left = await engine.left_of(self._project, kinds)
            refusals = await engine.remove(left)
            if refusals and await engine.left_of(self._project, kinds):
                return refusals
            # The daemon may still be carrying out what a command asked for that was cut off.
            if time.monotonic() >= ending:
                return []
            await asyncio.sleep(_SETTLE_POLL_SEC)
