"""The running services of one episode: their sandboxes, networks, volumes and commands, in the order of Compose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.sandboxes.compose.member import PREFIX_BITS, Member
from harbor_gym.sandboxes.compose.model import MAIN, Dependency, Mount, Project, Restart, Service
from harbor_gym.sandboxes.compose.process import ServiceProcess
from harbor_gym.sandboxes.errors import SandboxError, SandboxLostError, SandboxStartError, TaskError
from harbor_gym.sandboxes.health import Check, Healthcheck, await_health
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.supervisor.client import SupervisedSandbox
from harbor_gym.sandboxes.supervisor.program.messages import CommandSpec

if TYPE_CHECKING:
    from harbor_gym.sandboxes.compose.environment import ComposedEnvironment
    from harbor_gym.sandboxes.compose.service import ServiceSandbox

_STEADY_SEC = 0.5
"""Compose looks every half second; a service that lasts until the first look counts as running."""
_FILLING = "/.harbor-gym-volume"
_COPY_TIMEOUT_SEC = 120.0
_FIRST_PAUSE_SEC = 0.1
"""Between the first two of the checks that come before Docker's; then they double."""


class RunningServices:
    """The services of one episode beside ``main``.

    Args:
        project: All services.
        sandboxes: The sandboxes of the others, by name; their images are there.
        logs: The folder for their output.
        storage_bytes: The size of each volume.
    """

    def __init__(
        self, project: Project, sandboxes: Mapping[str, ServiceSandbox], logs: Path, storage_bytes: int
    ) -> None:
        self.project, self.sandboxes = project, sandboxes
        self._logs, self._storage_bytes = logs, storage_bytes
        self._processes: dict[str, ServiceProcess] = {}
        self._started: dict[str, asyncio.Event] = {name: asyncio.Event() for name in project.services}
        self._healthy: dict[str, asyncio.Event] = {name: asyncio.Event() for name in project.services}
        self._volumes: dict[str, str] = {}
        self._filled: set[str] = set()

    async def build_images(self, *, force_build: bool) -> None:
        """Get the images of the others, building those that the cache lacks.

        Raises:
            SandboxStartError: One is not available.
        """
        by_source: dict[ImageSource, list[ServiceSandbox]] = {}
        for sandbox in self.sandboxes.values():
            by_source.setdefault(sandbox.member.source, []).append(sandbox)

        async def build(sandboxes: Sequence[ServiceSandbox]) -> None:
            for number, sandbox in enumerate(sandboxes):  # those after the first find the image
                await sandbox.build_image(force_build=force_build and number == 0)

        async with task_group() as group:
            for sandboxes in by_source.values():
                group.create_task(build(sandboxes))

    async def start(self, main: ComposedEnvironment[Any], begin_main: Callable[[], Awaitable[None]]) -> None:
        """Start all services, and return when each of them runs, is healthy or has completed as it is to.

        Args:
            main: The agent's sandbox, which is up; no command of the task has run in it.
            begin_main: Makes it ready, once those services run on which it depends.

        Raises:
            SandboxStartError: A service ended, or a sandbox or a network does not come up.
            TaskError: A service is unhealthy.
        """
        first = main.supervised
        running = {MAIN: first}
        for shares in (False, True):
            async with task_group() as group:
                for name, sandbox in self.sandboxes.items():
                    service = self.project.services[name]
                    if (service.shares is not None) is shares:
                        root = running[self.project.root(service).name].first_process if shares else 0
                        group.create_task(sandbox.bring_up(network_of=root))
            for name, sandbox in self.sandboxes.items():
                if (self.project.services[name].shares is not None) is shares:
                    running[name] = sandbox.supervised
        await self._join(first, running)
        for service in (*self.project.others, self.project.main):
            await self._mount(first, running[service.name], service)
        for name, sandbox in self.sandboxes.items():
            self._processes[name] = self._process(sandbox, self.project.services[name])
        async with task_group() as group:
            for name in self.project.services:
                group.create_task(self._begin(name, begin_main))

    async def begin_command(self, main: ComposedEnvironment[Any]) -> None:
        """Start the command of ``main``.

        Raises:
            SandboxStartError: It has ended at once.
        """
        process = self._processes[MAIN] = self._process(main, self.project.main)
        await process.begin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STEADY_SEC):
                await asyncio.shield(process.ended)
        if process.ended.done():
            raise SandboxStartError(f"service 'main' did not come up: {self._end_of(MAIN)}")

    def _process(self, sandbox: ComposedEnvironment[Any], service: Service) -> ServiceProcess:
        async def clear(grace_sec: float) -> None:
            if service.name != MAIN:  # whose processes are the policy's
                await sandbox.end_processes(grace_sec=grace_sec)

        return ServiceProcess(
            sandbox.start_command,
            clear,
            service.restart if service.name != MAIN else Restart(),
            self._logs / f"{service.name}.log",
            keeps_input=service.keeps_input,
        )

    async def stop(self) -> None:
        """End all of them. Idempotent."""
        failure: BaseException | None = None
        for process in self._processes.values():
            await process.stop()
        ends = [sandbox.stop(delete=True) for sandbox in self.sandboxes.values()]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            failure = failure or (outcome if isinstance(outcome, BaseException) else None)
        if failure is not None:
            raise failure

    def running(self, name: str) -> ServiceSandbox:
        """Return the sandbox of a service whose command runs.

        Raises:
            SandboxError: There is no such service, or it has ended.
        """
        sandbox = self.sandbox(name)
        if not self._processes[name].is_running:
            raise SandboxError(f"service {name!r} is not running: {self._end_of(name)}")
        return sandbox

    def sandbox(self, name: str) -> ServiceSandbox:
        """Return the sandbox of a service, which is there after its command's end as well.

        Raises:
            SandboxError: There is no such service.
        """
        if name not in self.sandboxes or name not in self._processes:
            known = ", ".join(self.sandboxes) or "none"
            raise SandboxError(f"the task has no service {name!r} beside main: there are {known}")
        return self.sandboxes[name]

    async def end(self, name: str) -> None:
        """Stop one service; its files stay.

        Raises:
            SandboxError: There is no such service.
        """
        self.sandbox(name)
        with contextlib.suppress(SandboxLostError):
            await self._processes[name].end(self.project.services[name].stop_grace_sec)

    # --- networks and volumes ------------------------------------------------------------------------------------

    async def _join(self, main: SupervisedSandbox, running: Mapping[str, SupervisedSandbox]) -> None:
        if not self.project.networks:
            return
        networks = await main.share("make_networks", {"count": len(self.project.networks)})
        try:
            for name, sandbox in running.items():
                member = Member(self.project, self.project.services[name])
                if not member.service.networks:
                    continue
                joined = {"joined": member.addresses, "port": member.number, "bits": PREFIX_BITS}
                await sandbox.share("join_networks", joined, networks)
        finally:
            os.close(networks)

    async def _mount(self, main: SupervisedSandbox, sandbox: SupervisedSandbox, service: Service) -> None:
        if service.shm_bytes:
            await sandbox.share("shm", {"size_bytes": service.shm_bytes})
        for mount in sorted(service.mounts, key=lambda mount: mount.target.count("/")):
            await self._make_place(main, service, mount)
            if mount.kind == "tmpfs":
                details = {"target": mount.target, "size_bytes": mount.size_bytes, "mode": mount.mode}
                await sandbox.share("memory", details)
                continue
            if mount.kind == "volume" and mount.fills and mount.source not in self._filled:
                await self._fill(main, sandbox, mount)
            if mount.kind == "bind":
                await self._copy_once(main, self._whole(mount))
            await self._attach(main, sandbox, mount)
        if service.is_read_only:
            await sandbox.share("close_root", {})

    async def _make_place(self, main: SupervisedSandbox, service: Service, mount: Mount) -> None:
        """Make the place of a mount that is below a mounted directory of the same service."""
        above = [other for other in service.mounts if mount.target.startswith(f"{other.target.rstrip('/')}/")]
        outer = max(above, key=lambda other: other.target.count("/"), default=None)
        if outer is None or outer.kind == "tmpfs":
            return
        makes = {"makes": mount.target[len(outer.target.rstrip("/")) :], "makes_file": _is_file(mount)}
        os.close(await self._lend(main, *self._place(outer), **makes))

    def _whole(self, mount: Mount) -> Mount:
        """Return the outermost mount of the task's files that these are in: all services see the same ones."""
        mounts = (other for service in self.project.services.values() for other in service.mounts)
        source = Path(mount.source)
        around = [other for other in mounts if other.kind == "bind" and source.is_relative_to(other.source)]
        return min(around, key=lambda other: len(other.source))

    def _place(self, mount: Mount) -> tuple[str, str]:
        """Return the volume that has a mount's files, and the path in it."""
        if mount.kind != "bind":
            return mount.source, mount.part
        whole = self._whole(mount).source
        return whole, str(Path(mount.source).relative_to(Path(whole).parent))

    async def _lend(self, main: SupervisedSandbox, source: str, part: str, **makes: object) -> int:
        name = self._volumes.setdefault(source, str(len(self._volumes)))
        return await main.share("lend", {"name": name, "size_bytes": self._storage_bytes, "part": part, **makes})

    async def _attach(self, main: SupervisedSandbox, sandbox: SupervisedSandbox, mount: Mount) -> None:
        tree = await self._lend(main, *self._place(mount))
        try:
            await sandbox.share("volume", {"target": mount.target, "is_read_only": mount.is_read_only}, tree)
        finally:
            os.close(tree)

    async def _fill(self, main: SupervisedSandbox, sandbox: SupervisedSandbox, mount: Mount) -> None:
        """Copy what the image has at a volume's target into the volume, as Docker does with an empty one."""
        target = shlex.quote(mount.target)
        look = f'[ -d {target} ] && stat -c "%u:%g %a" {target} && ls -A {target} | head -n 1'
        asked = await sandbox.run(_root(look))
        if not (found := asked.stdout.text().split("\n")[:-1]):
            return
        owner, mode = found[0].split()
        await self._attach(main, sandbox, Mount("volume", _FILLING, mount.source))
        try:
            copy = f"cp -a {target}/. {_FILLING}/ && chown {owner} {_FILLING} && chmod {mode} {_FILLING}"
            done = await sandbox.run(_root(copy), timeout_sec=_COPY_TIMEOUT_SEC)
            if done.return_code != 0:
                raise SandboxStartError(f"volume {mount.source!r} can't be filled: {done.stderr.text().strip()}")
        finally:
            await sandbox.share("take_off", {"target": _FILLING})
        if len(found) > 1:
            self._filled.add(mount.source)

    async def _copy_once(self, main: SupervisedSandbox, mount: Mount) -> None:
        """Copy a file or a directory of the task to memory, if it is not there yet."""
        if mount.source in self._filled:
            return
        self._filled.add(mount.source)
        tree = await self._lend(main, mount.source, "")
        try:
            await asyncio.to_thread(_copy, mount, Path(f"/proc/self/fd/{tree}/{Path(mount.source).name}"))
        except OSError as exc:
            raise SandboxStartError(f"{mount.source} can't be copied for its services: {exc}") from exc
        finally:
            os.close(tree)

    # --- order ---------------------------------------------------------------------------------------------------

    async def _begin(self, name: str, begin_main: Callable[[], Awaitable[None]]) -> None:
        service = self.project.services[name]
        for dependency in service.depends_on:
            await self._await(dependency, name)
        if name == MAIN:
            self._started[name].set()
            await begin_main()
            self._healthy[name].set()
            return
        process = self._processes[name]
        await process.begin()
        self._started[name].set()
        check = asyncio.ensure_future(self._ready(name))
        try:
            await asyncio.wait([check, process.ended], return_when=asyncio.FIRST_COMPLETED)
            if process.ended.done() and not check.done():
                if not (self.project.is_to_complete(name) and process.ended.result() == 0 and not process.problem):
                    raise SandboxStartError(f"service {name!r} did not come up: {self._end_of(name)}")
                return
            await check
        finally:
            await cancel_and_wait(check)

    async def _ready(self, name: str) -> None:
        sandbox = self.sandboxes[name]
        if self.project.is_to_complete(name):
            await asyncio.Event().wait()
        if (declared := sandbox.healthcheck) is None:
            await asyncio.sleep(_STEADY_SEC)
            return
        try:
            if not await _is_soon_healthy(declared, sandbox.check_health):
                await await_health(declared, sandbox.check_health)
        except TaskError as exc:
            raise TaskError(f"service {name!r}: {exc}; it printed: {self._processes[name].last_output}") from exc
        self._healthy[name].set()

    async def _await(self, dependency: Dependency, dependent: str) -> None:
        name = dependency.name
        if dependency.condition == "service_started":
            await self._started[name].wait()
        elif dependency.condition == "service_healthy":
            if name != MAIN and self.sandboxes[name].healthcheck is None:
                if dependency.is_optional:
                    return
                raise TaskError(
                    f"docker-compose.yaml: service {dependent!r} waits until {name!r} is healthy, and that has no "
                    "healthcheck"
                )
            await self._healthy[name].wait()
        else:
            await self._started[name].wait()
            status = await asyncio.shield(self._processes[name].ended)
            if status != 0:
                raise SandboxStartError(f"service {name!r} did not complete: {self._end_of(name)}")

    def _end_of(self, name: str) -> str:
        process = self._processes[name]
        if not process.ended.done():
            return "it has not been started"
        if process.problem:
            return f"its command can't run: {process.problem}"
        said = process.last_output or "it printed nothing"
        return f"its command ended with status {process.ended.result()}: {said}"


async def _is_soon_healthy(declared: Healthcheck, check: Check) -> bool:
    """Return whether a check succeeds before Docker's first one would come, one interval after the start.

    Most services are up within a second, and each episode would wait for the interval.
    """
    ends, pause_sec = time.monotonic() + declared.interval_sec, _FIRST_PAUSE_SEC
    while time.monotonic() + pause_sec < ends:
        await asyncio.sleep(pause_sec)
        if (await check(declared.timeout_sec))[0] == 0:
            return True
        pause_sec *= 2
    return False


def _root(command: str) -> CommandSpec:
    return CommandSpec(command, "0", "/", {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})


def _is_file(mount: Mount) -> bool:
    return mount.kind == "bind" and (mount.text is not None or not Path(mount.source).is_dir())


def _copy(mount: Mount, target: Path) -> None:
    source = Path(mount.source)
    if mount.text is not None:
        target.write_text(mount.text, encoding="utf-8")
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
