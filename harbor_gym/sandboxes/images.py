"""Root file systems for local sandboxes: a task's Dockerfile built by buildah, exported once, cached by content."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from harbor_gym.cache import Hold, cache_dir, hold, locked
from harbor_gym.errors import MissingDependencyError, SandboxStartError
from harbor_gym.owners import temporary_prefix
from harbor_gym.sandboxes import base_image, dockerfile
from harbor_gym.sandboxes.docker_images import copy_from_docker, find_in_docker
from harbor_gym.sandboxes.tools import CONTAINED, run_tool

_logger = logging.getLogger(__name__)

_FORMAT = 1
"""Version of the cache's layout and of what :func:`_export` writes. A change makes old entries unreachable."""
_ULIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
"""Where CAP_SYS_RESOURCE is missing, buildah's own higher limits can't be set and every RUN would fail."""
_PULL_TIMEOUT_SEC = 300.0
_PRUNE_PAUSE_SEC = 0.05
_ERROR_TAIL_LINES = 25
_HOSTS = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_RESOLV_CONF = "# This sandbox has no network.\n"
_EXPORT = (
    'set -e; container=$(buildah from --pull-never "$1"); '
    'trap \'buildah umount "$container" >/dev/null 2>&1 || :; buildah rm "$container" >/dev/null 2>&1 || :\' EXIT; '
    'root=$(buildah mount "$container"); cp -a "$root/." "$2"'
)

_unreachable: set[str] = set()
_built: dict[str, Image] = {}


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system ready to serve as a read-only lower layer. Owned by the cache: never write to it."""

    rootfs: Path
    """Directory that holds the root file system."""

    env: dict[str, str]
    """ENV of the image."""

    workdir: str
    """WORKDIR of the image, ``/`` if it names none."""

    user: str
    """USER of the image as written (name or uid, maybe with a group), ``0`` if it names none."""

    digest: str
    """Cache key: SHA-256 over the build context, the identity of every base image, and the format."""

    substitutions: tuple[str, ...]
    """Bases that could not be had, and what stands in their place; empty is the rule."""


async def hold_image(
    environment_dir: Path,
    *,
    docker_image: str | None = None,
    build_timeout_sec: float = 600.0,
    force_build: bool = False,
) -> tuple[Image, Hold]:
    """Do what :func:`build_image` does, and keep the image from being pruned until the hold is released.

    Raises:
        MissingDependencyError, SandboxStartError: As :func:`build_image`.
    """
    while True:
        image = await build_image(
            environment_dir, docker_image=docker_image, build_timeout_sec=build_timeout_sec, force_build=force_build
        )
        held = await asyncio.to_thread(hold, image.rootfs.parent)
        if held is not None and image.rootfs.is_dir():
            return image, held
        if held is not None:
            held.release()
        await asyncio.sleep(_PRUNE_PAUSE_SEC)  # it is being pruned at this moment: the next round builds it again


async def build_image(
    environment_dir: Path,
    *,
    docker_image: str | None = None,
    build_timeout_sec: float = 600.0,
    force_build: bool = False,
) -> Image:
    """Return the image of a task's environment, building and exporting it only when the cache has none.

    Who stands on it for long takes :func:`hold_image`. Safe to call concurrently, from several processes too: one
    builds, the others wait and share.

    Args:
        environment_dir: Build context, with its ``Dockerfile``.
        docker_image: A prebuilt image to use instead of the Dockerfile.
        build_timeout_sec: Ceiling on the build, in seconds, the wait for another builder included.
        force_build: Build anew even if the cache has the image, and replace it there for later calls.

    Raises:
        MissingDependencyError: buildah (or mmdebstrap, for the offline base) is not installed.
        SandboxStartError: The Dockerfile fails, a base image can't be had, or the time was up.
    """
    if shutil.which("buildah") is None:
        raise MissingDependencyError("local sandboxes need buildah to build images: apt-get install buildah")
    scope = asyncio.timeout(build_timeout_sec)
    try:
        async with scope:
            return await _build_image(environment_dir, docker_image, force_build=force_build)
    except TimeoutError:
        if not scope.expired():
            raise
        raise SandboxStartError(
            f"building the image of {environment_dir} took longer than {build_timeout_sec:g} s (build_timeout_sec)"
        ) from None


async def _build_image(environment_dir: Path, docker_image: str | None, *, force_build: bool) -> Image:
    content = await asyncio.to_thread(_content_hash, environment_dir, docker_image)
    known = _built.get(content)
    if known is not None and not force_build and known.rootfs.is_dir():
        return known
    text = f"FROM {docker_image}\n" if docker_image else await asyncio.to_thread(_read_dockerfile, environment_dir)
    if not docker_image and dockerfile.has_heredoc(text):
        await _require_heredoc_support(environment_dir)
    bases = {ref: await _resolve_base(ref) for ref in dockerfile.base_references(text)}
    identity = {ref: base.identity for ref, base in bases.items()}
    digest = hashlib.sha256(json.dumps([_FORMAT, content, identity], sort_keys=True).encode()).hexdigest()
    async with locked(f"image-{digest[:32]}"):
        home = cache_dir() / "images" / digest[:32]
        image = None if force_build else await asyncio.to_thread(_load, home, digest)
        if image is None:
            image = await _build_and_export(environment_dir, docker_image, text, bases, home, digest)
    _built[content] = image
    return image


# --- bases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Base:
    reference: str
    """What buildah is to be told."""

    identity: str
    """What goes into the cache key: an image id, or the substitute's own key."""

    substitution: str | None = None


async def _resolve_base(reference: str) -> _Base:
    """Find a base image: buildah's, Docker's, pulled, or (Debian and Ubuntu only) the offline stand-in."""
    full = dockerfile.full_reference(reference)
    for _ in range(2):
        for candidate in dict.fromkeys((reference, full)):
            code, output = await run_tool(
                *CONTAINED, "buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", candidate
            )
            if code == 0:
                return _Base(candidate, output.strip())
        if (base := await _docker_base(reference)) is not None:
            return base
        if full in _unreachable:
            break
        code, why = await run_tool(*CONTAINED, "buildah", "pull", "--quiet", full, timeout_sec=_PULL_TIMEOUT_SEC)
        if code != 0:
            _logger.debug("can't pull %s: %s", full, why.strip())
            _unreachable.add(full)
            break
    if not dockerfile.is_debian_family(full):
        raise SandboxStartError(
            f"base image {reference!r} is neither local to buildah nor can it be pulled, and nothing stands in for it: "
            f"run `buildah pull {full}` where a registry can be reached, or use another sandbox (--env docker)"
        )
    return await _substitute(reference)


async def _docker_base(reference: str) -> _Base | None:
    """Return Docker's image of this name. A stand-in of ours for an official image is not that image."""
    found = await find_in_docker(reference)
    if found is None:
        return None
    image_id, is_substitute = found
    if is_substitute and dockerfile.is_debian_family(dockerfile.full_reference(reference)):
        return None
    async with locked(f"docker-image-{image_id.removeprefix('sha256:')[:32]}"):
        copied = await copy_from_docker(image_id)
    why = f"{reference} -> Docker's image of that name, which stands on the {base_image.description()}"
    return _Base(copied, copied, why if is_substitute else None)


async def _substitute(reference: str) -> _Base:
    name = base_image.base_name()
    local = f"localhost/harbor-gym-base:{name}"
    async with locked("base-import"):
        code, _ = await run_tool(*CONTAINED, "buildah", "inspect", "--type", "image", local)
        if code != 0:
            await _import_base(await base_image.ensure_base_tar(), local)
    description = base_image.description()
    substitution = f"{reference} -> {description}"
    if substitution not in _warned:
        _warned.add(substitution)
        _logger.warning("base image %s can't be pulled: SUBSTITUTED by %s", reference, description)
    return _Base(local, f"substitute:{name}", substitution)


_warned: set[str] = set()


async def _import_base(tar: Path, reference: str) -> None:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
        recipe = Path(folder) / "Dockerfile"
        lines = ["FROM scratch", f"ADD {tar.name} /", f"ENV PATH={base_image.PATH}", 'CMD ["bash"]', ""]
        recipe.write_text("\n".join(lines))
        code, output = await run_tool(
            *CONTAINED, "buildah", "bud", "--quiet", *_ULIMITS, "-t", reference, "-f", str(recipe), str(tar.parent)
        )
    if code != 0:
        raise SandboxStartError(f"the offline base can't be imported into buildah: {_tail(output)}")


# --- building --------------------------------------------------------------------------------------------------------


async def _build_and_export(
    environment_dir: Path, docker_image: str | None, text: str, bases: dict[str, _Base], home: Path, digest: str
) -> Image:
    started = time.monotonic()
    if docker_image:
        image_id = bases[docker_image].reference
    else:
        image_id = await _run_build(environment_dir, text, bases)
    code, output = await run_tool(*CONTAINED, "buildah", "inspect", "--type", "image", image_id)
    if code != 0:
        raise SandboxStartError(f"buildah built {image_id} but can't show it: {_tail(output)}")
    settings = json.loads(output)["OCIv1"].get("config", {})
    image = Image(
        rootfs=home / f"rootfs-{uuid.uuid4().hex[:12]}",
        env=dict(entry.partition("=")[::2] for entry in settings.get("Env") or []),
        workdir=settings.get("WorkingDir") or "/",
        user=settings.get("User") or "0",
        digest=digest,
        substitutions=tuple(base.substitution for base in bases.values() if base.substitution),
    )
    await _export(image_id, image, home, made_for=docker_image or str(environment_dir))
    _logger.info("built the image of %s in %.1f s", environment_dir, time.monotonic() - started)
    return image


async def _run_build(environment_dir: Path, text: str, bases: dict[str, _Base]) -> str:
    replaced = dockerfile.replace_references(text, {ref: base.reference for ref, base in bases.items()})
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
        recipe, id_file = Path(folder) / "Dockerfile", Path(folder) / "id"
        recipe.write_text(replaced)
        code, output = await run_tool(
            *CONTAINED, "buildah", "bud", "--layers", "--force-rm", "--pull-never", *_ULIMITS,
            "--iidfile", str(id_file), "-f", str(recipe), str(environment_dir),
        )  # fmt: skip
        if code != 0:
            raise SandboxStartError(f"{environment_dir / 'Dockerfile'} does not build:\n{_tail(output)}")
        return id_file.read_text().strip().removeprefix("sha256:")


async def _export(image_id: str, image: Image, home: Path, *, made_for: str) -> None:
    """Copy the image's root into the cache; it can be found there only when it is complete."""
    partial = home / f".partial-{uuid.uuid4().hex}"
    await asyncio.to_thread(_prepare, home, partial)
    try:
        code, output = await run_tool(*CONTAINED, "sh", "-c", _EXPORT, "sh", image_id, str(partial))
        if code != 0:
            raise SandboxStartError(f"the root file system of {image_id} can't be exported: {_tail(output)}")
        await asyncio.to_thread(_complete, partial, image, home, made_for)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True))
        raise


def _prepare(home: Path, partial: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for leftover in home.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()


def _complete(partial: Path, image: Image, home: Path, made_for: str) -> None:
    # An older root that this one replaces stays: running sandboxes may stand on it.
    _write_network_files(partial)
    partial.rename(image.rootfs)
    record = home / ".image.json"
    record.write_text(json.dumps({**asdict(image), "rootfs": image.rootfs.name, "made_for": made_for}, indent=2))
    record.rename(home / "image.json")


def _write_network_files(rootfs: Path) -> None:
    """Write what a container runtime provides in /etc. Links are replaced, never followed: they may lead anywhere."""
    root = os.open(rootfs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in ("etc", "dev", "proc", "sys", "tmp"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=root)
        etc = os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        try:
            for name, content in (("hosts", _HOSTS), ("resolv.conf", _RESOLV_CONF), ("hostname", "sandbox\n")):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=etc)
                handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=etc)
                with os.fdopen(handle, "w") as file:
                    file.write(content)
        finally:
            os.close(etc)
    finally:
        os.close(root)


def _load(home: Path, digest: str) -> Image | None:
    try:
        stored = json.loads((home / "image.json").read_text())
        return Image(
            rootfs=home / stored["rootfs"],
            env=stored["env"],
            workdir=stored["workdir"],
            user=stored["user"],
            digest=digest,
            substitutions=tuple(stored["substitutions"]),
        )
    except (FileNotFoundError, KeyError, json.JSONDecodeError):
        return None


# --- small things ----------------------------------------------------------------------------------------------------


def _read_dockerfile(environment_dir: Path) -> str:
    try:
        return (environment_dir / "Dockerfile").read_text()
    except FileNotFoundError:
        raise SandboxStartError(
            f"{environment_dir} has no Dockerfile and the task names no docker_image: there is nothing to build"
        ) from None


def _content_hash(environment_dir: Path, docker_image: str | None) -> str:
    """Hash everything of the build context that a build can see: names, kinds, modes, link targets, bytes."""
    total = hashlib.sha256(json.dumps(docker_image).encode())
    if docker_image:
        return total.hexdigest()
    for path in sorted(environment_dir.rglob("*")):
        status = path.lstat()
        head = [path.relative_to(environment_dir).as_posix(), status.st_mode]
        if path.is_symlink():
            total.update(json.dumps([*head, str(path.readlink())]).encode())
        elif path.is_file():
            with path.open("rb") as file:
                total.update(json.dumps([*head, hashlib.file_digest(file, "sha256").hexdigest()]).encode())
        else:
            total.update(json.dumps(head).encode())
    return total.hexdigest()


async def _require_heredoc_support(environment_dir: Path) -> None:
    _, output = await run_tool("buildah", "--version")
    if not dockerfile.builds_heredocs(output):
        raise SandboxStartError(
            f"{environment_dir / 'Dockerfile'} uses a here-document, which this {output.split(' (')[0].strip()} "
            "does not know: install buildah 1.33 or newer (Debian 13 has 1.39), or use --env docker"
        )


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-_ERROR_TAIL_LINES:])
