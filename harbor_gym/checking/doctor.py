"""Diagnose which parts of harbor_gym work on this machine, and name the one command that repairs each of the others."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harbor_gym._runtime import rootless
from harbor_gym._runtime.cache import cache_dir, cache_path
from harbor_gym._runtime.disks import require_temporary
from harbor_gym._runtime.processes import ask
from harbor_gym.checking.capacity import USUAL_MEMORY_MB, sandboxes_at_once
from harbor_gym.errors import HarborGymError, MissingDependencyError, SandboxError, UsageError
from harbor_gym.sandboxes import environment_config, preflight, sandbox_names
from harbor_gym.sandboxes.apptainer import programs as apptainer
from harbor_gym.sandboxes.compose.reader import compose_program
from harbor_gym.sandboxes.local import criu
from harbor_gym.sandboxes.local.environment import TOOLS
from harbor_gym.sandboxes.local.options import LocalOptions
from harbor_gym.sandboxes.supervisor import cgroups, own_ids, seccomp
from harbor_gym.sandboxes.supervisor.network import NETWORK_PROGRAM, missing_packages
from harbor_gym.sandboxes.supervisor.program import core_files
from harbor_gym.sandboxes.supervisor.program.messages import MAX_OPEN_FILES

_ANSWER_TIMEOUT_SEC = 1.5
_REGISTRY = ("registry-1.docker.io", 443)
_MIN_FREE_BYTES = 5 << 30
_MACHINES = ("x86_64", "aarch64")
_KEYS = ("TINKER_API_KEY", "HF_TOKEN")
TINKER = ("tinker extra", "TINKER_API_KEY")
"""What training with the Tinker service needs, as :attr:`Finding.what`."""
_COMPOSE = "apt-get install -y docker-compose-v2 (Ubuntu), docker-compose (Debian 13), or docker-compose-plugin"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of this machine."""

    area: str
    """``local``, ``docker``, ``apptainer``, another sandbox's name, ``train``, or ``other``."""

    what: str
    ok: bool
    note: str = ""
    """A detail of the finding, or why it is missing."""

    fix: str = ""
    """The command or other step that would provide it; empty if nothing is missing."""

    is_needed: bool = True
    """Whether the area needs it."""


def examine(env: str | None = None) -> list[Finding]:
    """Check the requirements of one kind of sandbox, or of all. Starts no sandbox; of all it takes seconds, since
    Harbor's environments are imported.

    Args:
        env: A sandbox as ``--env`` takes it; None is all of them.

    Raises:
        UsageError: There is no such sandbox.
    """
    areas: dict[str, list[Callable[[], Iterable[Finding]]]] = {
        "local": [_local, partial(_cache, "local")],
        "docker": [_docker, _registry, partial(_cache, "docker")],
        "apptainer": [_apptainer, partial(_cache, "apptainer")],
    }
    if env is None:
        looks = [*areas["local"], *areas["docker"], _others, partial(_harbors, [*areas])]
    elif env in areas:
        looks = [*areas[env], _disk]
    else:
        environment_config(env)
        looks = [lambda: [_foreign(env)], _disk]
    with ThreadPoolExecutor(len(looks)) as pool:
        return [finding for found in pool.map(_take, looks) for finding in found]


def _take(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of one check; a failure of the check itself is one more finding."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except (HarborGymError, OSError) as exc:
        found.append(Finding("other", "this machine", ok=False, note=str(exc), is_needed=False))
    return found


def usable(findings: Iterable[Finding]) -> dict[str, bool]:
    """Return for each kind of sandbox among the findings whether all its needs are met."""
    found: dict[str, bool] = {}
    for item in findings:
        if item.area != "other":
            found[item.area] = found.get(item.area, True) and (item.ok or not item.is_needed)
    return found


def _finding(area: str, what: str, refusal: str, fix: str, *, note: str = "", is_needed: bool = True) -> Finding:
    return Finding(area, what, not refusal, refusal or note, fix if refusal else "", is_needed=is_needed)


def _local() -> Iterable[Finding]:
    if sys.platform != "linux":
        yield Finding("local", "Linux", ok=False, note=sys.platform, fix="use --env docker")
        return
    for program, package in TOOLS.items():
        yield _program("local", program, package)
    user = "an ordinary user" if rootless.is_rootless() else "root"
    if shutil.which("unshare") is not None:
        refusal, fix = rootless.refusal() if rootless.is_rootless() else (rootless.namespace_refusal(), _PRIVILEGED)
        yield _finding("local", f"namespaces for {user}", refusal, fix)
    if not rootless.is_rootless():
        refusal, fix = rootless.switch_refusal()
        yield _finding("local", "namespaces for ordinary users", refusal, fix, is_needed=False)
    has_overlay = "\toverlay\n" in Path("/proc/filesystems").read_text(encoding="utf-8")
    yield _finding("local", "overlay", "" if has_overlay else "the kernel has not loaded it", "modprobe overlay")
    has_filter = (
        "\nSeccomp:" in Path("/proc/self/status").read_text(encoding="utf-8") and platform.machine() in _MACHINES
    )
    yield _finding(
        "local", "seccomp", "" if has_filter else f"{platform.machine()}: no filter", "use --env docker", note="filter"
    )
    lacking, _, fix = seccomp.missing_profile().partition(": ")
    yield _finding("local", "system call profile", lacking, fix, note=str(seccomp.PROFILES[0]))
    refusal = "" if rootless.is_rootless() else _refusal_of_own_ids()
    cost = f"{refusal}: a sandbox's root shares root's id" if refusal else ""
    note = "the caller's own, confined" if rootless.is_rootless() else "a range for each sandbox"
    yield _finding("local", "user ids", cost, _OWN_IDS, note=note, is_needed=False)
    missing = ", ".join(name for name in cgroups.CONTROLLERS if name not in cgroups.places())
    yield _finding(
        "local", "control groups", f"none for {missing}: bounds per process instead" if missing else "", _CGROUPS,
        note="memory, pids, cpu", is_needed=False,
    )  # fmt: skip
    yield _open_files(
        int(Path("/proc/sys/fs/file-max").read_text(encoding="utf-8")), sandboxes_at_once(USUAL_MEMORY_MB)
    )
    yield _core_files()
    lack = f"no {NETWORK_PROGRAM}: tasks with a network are refused" if missing_packages() else ""
    yield _finding("local", NETWORK_PROGRAM, lack, f"apt-get install -y {NETWORK_PROGRAM}", is_needed=False)
    yield _compose("local")
    refusal, fix = rootless.network_refusal()
    cost = "tasks run without a network" if rootless.is_rootless() else "tasks with a network are refused"
    yield _finding("local", str(rootless.TUN), refusal and f"{refusal}: {cost}", fix, note="open", is_needed=False)
    yield _criu()


def _compose(area: str) -> Finding:
    """Look for the program that reads a task's Compose file."""
    found = compose_program()
    lack = "" if found else "no Compose 2: tasks with a docker-compose.yaml are refused"
    return _finding(area, "docker-compose", lack, _COMPOSE, note=found or "", is_needed=False)


def _criu() -> Finding:
    """Look whether CRIU works, by its own check."""
    try:
        program = asyncio.run(criu.found()).program
    except SandboxError as exc:
        why, _, fix = str(exc).rpartition(": ")
        return Finding("local", "criu", ok=False, note=f'{why}: no fork(mode="exact")', fix=fix, is_needed=False)
    version, _ = _ask(program, "--version")
    return Finding("local", "criu", ok=True, note=version.removeprefix("Version: "), is_needed=False)


def _open_files(most: int, sandboxes: int) -> Finding:
    """Compare the machine's limit of open files with those that all sandboxes may open: no process may exceed it."""
    processes = LocalOptions().max_processes
    held = sandboxes * processes * MAX_OPEN_FILES
    each = f"{processes} processes with {MAX_OPEN_FILES} in each"
    cost = f"fs.file-max is {most}, and {sandboxes} sandboxes at once may hold {held} ({each})"
    fix = f"sysctl -w fs.file-max={2 * held}, or a smaller max_processes"
    return _finding("local", "open files", cost if most <= held else "", fix, note=f"{most} here", is_needed=False)


def _core_files() -> Finding:
    """Look whether a program of the machine would get the memory of a sandbox's crashed process."""
    note, fix = "files, inside the sandbox", "sysctl -w kernel.core_pattern=core"
    handler = core_files.handler()
    cost = f"kernel.core_pattern is {handler}, a program of this machine: no process of a sandbox leaves a core file"
    return _finding("local", "core files", cost if handler else "", fix, note=note, is_needed=False)


_OWN_IDS = "boot Linux 5.19 or newer; a cache on ext4, xfs or btrfs (HARBOR_GYM_CACHE)"
_PRIVILEGED = "inside a container: start that with --privileged"
_CGROUPS = "root; inside a container: start that with --privileged --cgroupns=host"


def _docker() -> Iterable[Finding]:
    yield _program("docker", "docker", "docker.io")
    if shutil.which("docker") is None:
        return
    version, refusal = _ask("docker", "version", "--format", "{{.Server.Version}}")
    denied, fix = rootless.docker_refusal(refusal)
    fix = fix or "systemctl start docker (without systemd: dockerd &)"
    yield _finding("docker", "daemon", denied or refusal, fix, note=version)
    version, refusal = _ask("docker", "compose", "version", "--short")
    yield _finding("docker", "Compose v2", refusal, _COMPOSE, note=version)


def _apptainer() -> Iterable[Finding]:
    for what, find, is_needed, cost in (
        ("squashfuse", lambda: apptainer.find_programs().squashfuse, True, ""),
        ("apptainer", apptainer.find_runtime, False, ": images are only found here, not pulled or built"),
    ):
        try:
            yield Finding("apptainer", what, ok=True, note=find())
        except MissingDependencyError as exc:
            why, _, fix = str(exc).partition(": ")
            yield Finding("apptainer", what, ok=False, note=f"{why}{cost}", fix=fix, is_needed=is_needed)
    user = "an ordinary user" if rootless.is_rootless() else "root"
    refusal, fix = apptainer.refusal()
    yield _finding("apptainer", f"FUSE, {user}", refusal, fix)
    for program, package in (("buildah", "buildah"), ("mksquashfs", "squashfs-tools")):
        lack = "images are not built here, only found or pulled"
        yield _program("apptainer", program, package, is_needed=False, lack=lack)
    yield _program("apptainer", "fuse-overlayfs", "fuse-overlayfs", is_needed=False, lack="only Linux 6.6 or newer")
    lacking, _, fix = seccomp.missing_profile().partition(": ")
    note = f"{lacking}: commands run without a filter" if lacking else ""
    yield _finding("apptainer", "system call profile", note, fix, note=str(seccomp.PROFILES[0]), is_needed=False)
    yield _compose("apptainer")


def _registry() -> Iterable[Finding]:
    try:
        socket.create_connection(_REGISTRY, _ANSWER_TIMEOUT_SEC).close()
        refusal = ""
    except OSError:
        refusal = "not reached: images that Docker does not have must be loaded"
    yield _finding(
        "docker", "registry", refusal, "docker load --input FILE", note=_REGISTRY[0],
        is_needed=False,
    )  # fmt: skip


def _others() -> Iterable[Finding]:
    yield _program("other", "tmux", "tmux", is_needed=False, lack="for tests; sandboxes bring their own")
    missing = [name for name in ("tinker", "tinker_cookbook") if importlib.util.find_spec(name) is None]
    refusal, fix = f"no {', '.join(missing)}" if missing else "", 'pip install "harbor-gym[tinker]"'
    yield _finding("other", "tinker extra", refusal, fix, is_needed=False)
    for key in _KEYS:
        refusal = "" if os.environ.get(key) else "not set"
        yield _finding("other", key, refusal, f"export {key}=…", note="set", is_needed=False)
    yield from _disk()


def _cache(area: str) -> Iterable[Finding]:
    """Check that images and temporary files can be written; no finding if they can."""
    try:
        require_temporary()
    except UsageError as exc:
        yield Finding(area, "TMPDIR", ok=False, note=str(exc).partition(": ")[0], fix="set TMPDIR to another folder")
    fix = "set HARBOR_GYM_CACHE to a folder on a disk with room, that can be written to"
    try:
        with tempfile.TemporaryFile(dir=cache_dir()) as file:
            file.write(bytes(1 << 16))
    except UsageError as exc:
        yield Finding(area, "cache", ok=False, note=str(exc).partition(": ")[0], fix=fix)
    except OSError as exc:
        yield Finding(area, "cache", ok=False, note=f"{cache_path()}: {exc.strerror}", fix=fix)


def _refusal_of_own_ids() -> str:
    try:
        return own_ids.refusal()
    except (HarborGymError, OSError) as exc:
        return str(exc)


def _disk() -> Iterable[Finding]:
    try:
        place = cache_dir()
    except UsageError:
        return  # each kind of sandbox has a finding of it
    free = shutil.disk_usage(place).free
    note = f"{free / (1 << 30):.1f} GiB free for {place}"
    refusal = note if free < _MIN_FREE_BYTES else ""
    yield _finding("other", "disk", refusal, "harbor-gym cache prune --max-size 5G", note=note, is_needed=False)


def _harbors(own: Sequence[str]) -> Iterable[Finding]:
    """Ask the installed Harbor for its other environments, the needs of each, and its agents."""
    from harbor.models.agent.name import AgentName

    version = f"Harbor {importlib.metadata.version('harbor')}"
    for name in sandbox_names():
        if name not in own:
            asked = _foreign(name)
            yield replace(asked, area="other", what=f"--env {name}", note=asked.note or version, is_needed=False)
    yield Finding("other", "--agent", ok=True, note=f"{version}: {', '.join(sorted(AgentName.values()))}")


def _foreign(env: str) -> Finding:
    try:
        preflight(environment_config(env))
    except HarborGymError as exc:
        return Finding(env, "preflight", ok=False, note=str(exc).removeprefix(f"sandbox {env!r}: "))
    return Finding(env, "preflight", ok=True)


def _program(area: str, program: str, package: str, *, is_needed: bool = True, lack: str = "") -> Finding:
    path = shutil.which(program)
    refusal = "" if path else lack or "not installed"
    return _finding(area, program, refusal, f"apt-get install -y {package}", note=path or "", is_needed=is_needed)


def _ask(*argv: str) -> tuple[str, str]:
    """Return a program's output, and why there is none; one of them is empty."""
    try:
        done = ask(*argv, timeout_sec=_ANSWER_TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_ANSWER_TIMEOUT_SEC:g} s"
    if done.returncode == 0:
        return done.stdout.strip(), ""
    return "", (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
