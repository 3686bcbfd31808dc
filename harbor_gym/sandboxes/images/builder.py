"""Call buildah as Docker's builder works: RUN in namespaces of its own, Docker's image format and limits."""

from __future__ import annotations

import asyncio
import functools
import re
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from harbor_gym._runtime import rootless
from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym._runtime.processes import ask
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.errors import TaskError
from harbor_gym.sandboxes.images import layer_export
from harbor_gym.sandboxes.images.context import Context
from harbor_gym.sandboxes.images.plan import CONTEXT, EMPTY, MADE, PICKED
from harbor_gym.sandboxes.tools import contained, find_program, run_tool

_MOST_FILES = 1 << 20
"""The limit of open files that Docker's packages give a daemon."""

CAPABILITIES = ("--cap-add", "CAP_AUDIT_WRITE", "--cap-add", "CAP_MKNOD", "--cap-add", "CAP_NET_RAW")
"""Capabilities of a RUN under Docker that buildah does not give by default."""

RUNTIMES = ("runc", "crun")
"""Runtimes that give a RUN namespaces, so that its processes end with it. crun refuses machines with mixed cgroups."""

NO_RUN = {"BUILDAH_ISOLATION": "oci", "BUILDAH_RUNTIME": "false"}
"""Environment in which buildah runs no command: a container made from an image would run the image's ONBUILD."""

_CURRENT = (1, 39)
"""The first version that keeps files which a RUN writes below a VOLUME of its base, and whose cache heeds the content
of bind mounts."""

_RUNTIME = Path(__file__).with_name("runtime.sh")
"""Runs the builder, and for it each RUN: in a network of its own, without names that mean deletions."""

_NO_SUCH_ID = re.compile(
    r".*(insufficient UIDs or GIDs|unmapped|(chown|owner|set[ug]id|setgroups|set ?up user).*invalid argument).*",
    re.IGNORECASE,
)
"""Errors of buildah, tar, chown and useradd for an id that is not in the map of their user namespace (EINVAL)."""
_NUMBER = re.compile(r"(?<!\w)\d{1,10}(?!\w)")

_INCONSISTENT = "store is inconsistent"
"""buildah's error if two of them find a container at once that a killed one left incomplete."""
_ATTEMPTS = 3


async def run_buildah(
    *argv: str, environment: Mapping[str, str], on_line: Callable[[str], object] | None = None
) -> tuple[int, str]:
    """Do as :func:`run_tool`, and repeat it if another buildah was cleaning up the store meanwhile.

    Args:
        argv: The program and its arguments.
        environment: Variables on top of this process's.
        on_line: Called with each line of the output as it comes.
    """
    for attempt in range(1, _ATTEMPTS):
        code, output = await run_tool(*argv, environment=environment, on_line=on_line)
        if code == 0 or _INCONSISTENT not in output:
            return code, output
        await asyncio.sleep(attempt)
    return await run_tool(*argv, environment=environment, on_line=on_line)


def ulimits() -> tuple[str, ...]:
    """Return the options that give each RUN this process's own limits, as Docker gives it those of its daemon.

    buildah's own are higher, and without CAP_SYS_RESOURCE no higher ones can be set: every RUN would fail.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    files = _MOST_FILES if files == resource.RLIM_INFINITY else min(files, _MOST_FILES)
    return "--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={processes}:{processes}"


def build_argv(folder: Path, context: Context, recipe: Path, *, is_fresh: bool) -> tuple[str, ...]:
    """Return the command that builds ``recipe`` with ``context`` and writes the image's id to ``folder/id``.

    Args:
        folder: A folder of its own in the build's temporary one, where what was picked of images lies beside it.
        context: What COPY copies from.
        recipe: The Dockerfile, which :func:`~harbor_gym.sandboxes.images.plan.planned` wrote.
        is_fresh: Run every instruction without the cache.
    """
    contexts = {EMPTY: folder / EMPTY, MADE: context.made, CONTEXT: context.root, PICKED: folder.parent / PICKED}
    for name in (EMPTY, PICKED):
        contexts[name].mkdir(exist_ok=True)
    nothing_ignored = folder / "ignored"
    nothing_ignored.touch()
    options = ["--format", "docker", "--layers", "--force-rm", "--pull-never", "--network", "host"]
    options += [*ulimits(), *CAPABILITIES]
    options += [word for name, place in contexts.items() for word in ("--build-context", f"{name}={place}")]
    options += ["--ignorefile", str(nothing_ignored), "--iidfile", str(folder / "id"), "-f", str(recipe)]
    options += ["--no-cache"] if is_fresh else []
    runtime = ("sh", str(_RUNTIME), str(folder), _networks(), sys.executable, layer_export.__file__)
    return *contained(), *runtime, *dockerfile.owned_build(str(folder)), *options, str(context.directory)


def _networks() -> str:
    return "shared" if find_program("slirp4netns") is None or rootless.network_refusal()[0] else "own"


def require_ids(output: str, what: str, *, text: str = "", count: int | None = None) -> None:
    """Check whether a build, pull or set-up failed because its user namespace lacks an id.

    Args:
        output: The output of the failed program.
        what: The object with the id, for the message.
        text: Text in which to look for the id if the output does not name it.
        count: The number of ids, from 0 on; None is that of a build.

    Raises:
        TaskError: It failed for that.
    """
    found = _NO_SUCH_ID.search(output)
    count = rootless.mapped_ids_of_builds() if count is None else count
    if found is None or count >= rootless.ALL_IDS:
        return
    line = found[0].strip()
    named = [[n for n in map(int, _NUMBER.findall(part)) if count <= n < rootless.ALL_IDS] for part in (line, text)]
    ids = ", ".join(map(str, dict.fromkeys(named[0] or named[1]))) or "which, the failure does not tell"
    raise TaskError(
        f"{what} has user or group ids above {count - 1}, the highest here: {ids} ({line}): "
        f"give files and users lower ids{rootless.more_ids_hint()}, or use --env docker"
    )


def run_environment() -> dict[str, str]:
    """Return variables with which buildah runs each RUN in PID, IPC, UTS and mount namespaces of its own.

    Raises:
        MissingDependencyError: No runtime that makes them is installed.
    """
    for name in RUNTIMES:
        if (path := find_program(name)) is not None:
            return {"BUILDAH_ISOLATION": "oci", "BUILDAH_RUNTIME": path}
    raise MissingDependencyError(f"local sandboxes build images with {RUNTIMES[0]}: apt-get install {RUNTIMES[0]}")


@functools.cache
def _version(program: str) -> tuple[int, int]:
    shown = ask(program, "--version", timeout_sec=None).stdout
    found = re.search(r"version (\d+)\.(\d+)", shown)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def is_old() -> bool:
    """Return whether this machine's buildah has faults to work around. Blocks at the first call."""
    return _version(find_program("buildah") or "buildah") < _CURRENT


def require_faithful(dockerfile_path: Path, base: str) -> None:
    """Refuse a base image with a VOLUME if an old buildah would silently lose files that a RUN writes there.

    Raises:
        TaskError: It would.
    """
    if is_old():
        version = ".".join(map(str, _version(find_program("buildah") or "buildah")))
        raise TaskError(
            f"{dockerfile_path}: {base} has a VOLUME, and buildah {version} loses what a RUN writes there: install "
            f"buildah {'.'.join(map(str, _CURRENT))} or newer (`make engines-local` unpacks it), or use --env docker"
        )
