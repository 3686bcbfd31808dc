"""Root file systems for local sandboxes: built by buildah, copied out layer by layer, cached by content."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import itertools
import json
import logging
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harbor_gym._runtime.cache import (
    LAYERS_LOCK,
    STORE_LOCK,
    Hold,
    building,
    cache_dir,
    cache_limit,
    count_entries,
    find_broken_layers,
    hold,
    is_whole,
    layers_dir,
    locked,
    remove_broken_layers,
)
from harbor_gym._runtime.console.progress import SLOW_SEC, Work, ticking
from harbor_gym._runtime.disks import reports_full_disk
from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym._runtime.files import replace_text
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.shielded import shielded
from harbor_gym._runtime.unchanged import UntilChanged
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.dockerfile import Instruction
from harbor_gym.sandboxes.errors import SandboxStartError, TaskError
from harbor_gym.sandboxes.image_settings import ImageSettings, config_of, settings_of
from harbor_gym.sandboxes.images import layers, sources
from harbor_gym.sandboxes.images.base_images import Base, resolve_base
from harbor_gym.sandboxes.images.builder import (
    build_argv,
    is_old,
    require_faithful,
    require_ids,
    run_buildah,
    run_environment,
)
from harbor_gym.sandboxes.images.chosen import Recipe, chosen
from harbor_gym.sandboxes.images.context import Context
from harbor_gym.sandboxes.images.plan import PICKED, LookNeeded, Plan, planned, unknown_name
from harbor_gym.sandboxes.images.recipe import read
from harbor_gym.sandboxes.images.store import full_disk, keep_limit, without_triggers
from harbor_gym.sandboxes.tools import DockerfileError, build_failure, contained, find_program, limited, run_tool, tail

_logger = logging.getLogger(__name__)

_FORMAT = 8
"""Version of the cache's layout and of exported layers. A change makes old entries unreachable."""
_PRUNE_PAUSE_SEC = 0.05
_LAYER_IS_GONE = "layer not known"
"""In the output of a build beside which another process removed an image. Source: ErrLayerUnknown of
containers/storage."""

_FAILED_SEC = 300.0
"""Seconds for which a Dockerfile that failed counts as one that fails; then what it fetches may be reached again."""

_SHOWN_STEP = 60
"""Characters of an instruction that is in progress."""

_built: dict[str, Image] = {}
_failures: dict[str, tuple[float, SandboxStartError]] = {}
"""By what was built: when, and how, its last build of this process failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(ImageSettings):
    """A root file system for the lower layers of overlays. The cache owns it: never write to it."""

    layers: tuple[str, ...]
    """Names of its layers in the cache, the topmost first. Images share layers of the same content."""

    digest: str
    """Cache key: SHA-256 over the build context, the identity of every base image, and the format."""

    entries: dict[str, int] = field(default_factory=dict[str, int])
    """Layer → number of names at its top, from the image's record in the cache."""

    @property
    def home(self) -> Path:
        """The directory of its record in the cache."""
        return cache_dir() / "images" / self.digest[:32]

    @property
    def directories(self) -> list[Path]:
        """The layers' directories, the topmost first, as overlayfs reads them: a deleted file is a device 0:0.

        overlayfs accepts no directory twice. If an image has a layer twice, the upper one hides the other completely.
        """
        place = layers_dir()
        return [place / name for name in dict.fromkeys(self.layers)]

    @property
    def is_there(self) -> bool:
        """Whether its record and layers exist and have not lost files."""
        return is_whole(self.home, self.layers, self.entries)


@dataclass(frozen=True, slots=True)
class ImageSource:
    """The source of an image: the last of these three fields that is given."""

    environment_dir: Path
    """Build context, with its ``Dockerfile``."""

    docker_image: str | None = None
    """A prebuilt image: a name, or an archive (``oci-archive:PATH``, ``docker-archive:PATH``)."""

    rootfs: Path | None = None
    """A root file system: a directory, or a tar of one."""

    recipe: Recipe | None = None
    """How the build context is built; None is by its ``Dockerfile`` alone."""

    @property
    def dockerfile(self) -> Path:
        """The Dockerfile, which names errors."""
        file = None if self.recipe is None else self.recipe.file
        return file or self.environment_dir / "Dockerfile"

    def __str__(self) -> str:
        return str(self.rootfs or self.docker_image or self.environment_dir)


async def hold_image(
    source: ImageSource, *, build_timeout_sec: float = 600.0, force_build: bool = False
) -> tuple[Image, Hold]:
    """Do as :func:`build_image`, and keep the image from being pruned until the hold is released.

    Raises:
        MissingDependencyError, SandboxStartError: As :func:`build_image`.
    """
    while True:
        image = await build_image(source, build_timeout_sec=build_timeout_sec, force_build=force_build)
        if (held := hold_known(image)) is not None:
            return image, held
        await asyncio.sleep(_PRUNE_PAUSE_SEC)  # it is being pruned at this moment: the next round builds it again


def hold_known(image: Image) -> Hold | None:
    """Keep an image from being pruned; None if it is removed or being removed."""
    held = hold(image.home)
    if held is not None and image.is_there:
        return held
    if held is not None:
        held.release()
    return None


async def build_image(source: ImageSource, *, build_timeout_sec: float = 600.0, force_build: bool = False) -> Image:
    """Return the image of a task's environment; build and export it only if the cache does not have it.

    To keep the image from removal for longer, use :func:`hold_image`. Safe to call concurrently, also from several
    processes: one builds, the others wait and share.

    Args:
        source: The image's source.
        build_timeout_sec: Ceiling on the build, in seconds from its own start. The waits for a processor, and for
            another builder of the image, whose failure is this call's too, are no part of it.
        force_build: Build anew even if the cache has the image, and replace it there for later calls.

    Raises:
        MissingDependencyError: buildah is not installed.
        SandboxStartError: The Dockerfile fails, a base image is not available, the source does not exist or is invalid,
            or the time was up.
    """
    if source.rootfs is None and find_program("buildah") is None:
        raise MissingDependencyError("local sandboxes need buildah to build images: apt-get install buildah")
    with _naming_dockerfile(source):
        content = await asyncio.to_thread(content_hash, source)
    known = _built.get(content)
    if known is not None and not force_build and known.is_there:
        return known
    limit = cache_limit()
    async with limited(build_timeout_sec, lambda: f"finding the base images of {source}"):
        text, base_images = await _read_recipe(source)
    identity = {ref: base.identity for ref, base in base_images.items()}
    digest = hashlib.sha256(json.dumps([_FORMAT, content, identity], sort_keys=True).encode()).hexdigest()
    asked = time.monotonic()
    with ticking(f"building the image of {source}", delay_sec=SLOW_SEC) as work:
        # Another process may be building it.
        async with _naming_step(source, work), locked(f"image-{digest[:32]}"):
            image = None if force_build else await asyncio.to_thread(load_image, digest)
            if image is None:
                with failing_together(digest, asked):
                    async with building(), limited(build_timeout_sec, lambda: _stage(source, work)):
                        work.begin()
                        await _remove_broken_layers(digest)
                        async with locked(STORE_LOCK, shared=True):
                            image = await _make_image(source, text, base_images, digest, work, is_fresh=force_build)
                if limit is not None:
                    await shielded(keep_limit(limit))  # not this image: its lock is held
    _built[content] = image
    return image


@contextlib.contextmanager
def failing_together(key: str, asked: float) -> Generator[None]:
    """Fail as the build of ``key`` did that this caller waited for, so that no waiter repeats it.

    A Dockerfile that failed is not built again for five minutes, in which a retry or another episode asks for it.

    Args:
        key: What is built, by its content. The caller holds its lock.
        asked: When the caller began to wait for the lock, by the monotonic clock.

    Raises:
        SandboxStartError: A build in this process failed since then.
    """
    failed, failure = _failures.get(key, (asked, None))
    if failure is not None and failed > asked - (_FAILED_SEC if isinstance(failure, DockerfileError) else 0.0):
        raise copy.copy(failure)
    try:
        yield
    except SandboxStartError as exc:
        _failures[key] = time.monotonic(), copy.copy(exc)  # without its traceback
        raise


async def _remove_broken_layers(digest: str) -> None:
    home = cache_dir() / "images" / digest[:32]
    if await asyncio.to_thread(find_broken_layers, home):
        async with locked(LAYERS_LOCK):
            for layer in await asyncio.to_thread(remove_broken_layers, home):
                _logger.warning("the layer %s in the cache has lost files: it is made again", layer)


@contextlib.asynccontextmanager
async def _naming_step(source: ImageSource, work: Work) -> AsyncGenerator[None]:
    """Say in a note of a cancellation what the build was doing, for an error of the limit that cancels it."""
    try:
        yield
    except asyncio.CancelledError as exc:
        exc.add_note(f"{_stage(source, work)} (build_timeout_sec)")
        raise


def _stage(source: ImageSource, work: Work) -> str:
    return f"building the image of {source} (at {work.detail or 'its start'})"


async def _read_recipe(source: ImageSource) -> tuple[str, dict[str, Base]]:
    """Return the Dockerfile to build, or one of a prebuilt image, and its base images; empty for other sources."""
    if source.rootfs is not None or sources.is_archive(source.docker_image or ""):
        return "", {}
    if source.docker_image:
        text = f"FROM {source.docker_image}\n"
    else:
        text = await asyncio.to_thread(_read_dockerfile, source)
    with _naming_dockerfile(source):
        return text, {ref: await resolve_base(ref) for ref in read(text).images}


@contextlib.contextmanager
def _naming_dockerfile(source: ImageSource) -> Generator[None]:
    """Add a hint at the Dockerfile, if there is one, to the failure of a prebuilt image."""
    try:
        yield
    except SandboxStartError as exc:
        if source.docker_image is None or not (instead := dockerfile.alternative(source.environment_dir)):
            raise
        raise SandboxStartError(f"{exc}. {instead}") from exc


# --- building --------------------------------------------------------------------------------------------------------


async def _make_image(
    source: ImageSource, text: str, base_images: dict[str, Base], digest: str, work: Work, *, is_fresh: bool
) -> Image:
    started = time.monotonic()
    if source.rootfs is not None:
        async with layers.imported(source.rootfs) as (names, high_ids):
            image = Image(layers=tuple(names), digest=digest, high_ids=tuple(high_ids))
            return await shielded(asyncio.to_thread(write_record, image, made_for=str(source)))
    volumes: tuple[str, ...] = ()
    if source.docker_image is None:
        image_id, volumes = await _run_build(source, text, base_images, is_fresh=is_fresh, on_step=work.tell)
    elif sources.is_archive(source.docker_image):
        image_id = await sources.load_archive(source.docker_image, source.environment_dir)
    else:
        image_id = base_images[source.docker_image].reference
    code, output = await run_tool(*contained(), "buildah", "inspect", "--type", "image", image_id)
    if code != 0:
        raise SandboxStartError(f"buildah built {image_id} but can't show it: {tail(output)}")
    shown = json.loads(output)
    config = shown["Docker"]["config"]
    settings: dict[str, Any] = {
        **settings_of(config),
        "volumes": tuple(dict.fromkeys((*(config.get("Volumes") or ()), *volumes))),
    }
    diff_ids: list[str] = shown["OCIv1"]["rootfs"]["diff_ids"] or []  # null where the image has no layer
    async with layers.exported(image_id, diff_ids) as (names, high_ids):
        image = Image(layers=tuple(names), digest=digest, high_ids=tuple(high_ids), **settings)
        built = image_id if source.docker_image is None else ""
        image = await shielded(asyncio.to_thread(write_record, image, made_for=str(source), built=built))
    _logger.info("built the image of %s in %.1f s", source, time.monotonic() - started)
    return image


async def _run_build(
    source: ImageSource,
    text: str,
    base_images: dict[str, Base],
    *,
    is_fresh: bool,
    on_step: Callable[[str], object] | None = None,
) -> tuple[str, tuple[str, ...]]:
    """Build a Dockerfile; return the image's id and the VOLUMEs that only the Dockerfile names."""
    path = source.dockerfile
    for name, base in base_images.items():
        if base.has_volumes:
            await asyncio.to_thread(require_faithful, path, name)
    base_images = {
        name: replace(base, reference=await without_triggers(base.reference)) if base.start.triggers else base
        for name, base in base_images.items()
    }
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as name:
        folder = Path(name)
        answers, is_repeated = _Answers(), False
        for attempt in map(folder.joinpath, map(str, itertools.count())):
            attempt.mkdir()
            plan, argv = await asyncio.to_thread(
                _prepare, source.environment_dir, text, base_images, attempt, answers, is_fresh=is_fresh
            )
            if (wanted := answers.wanted) is not None and isinstance(wanted.of, str):
                await answers.find(wanted, wanted.of, folder)
                continue
            steps: list[Instruction] = []
            on_line = _noting(plan, steps, on_step)
            code, output = await run_buildah(*argv, environment=run_environment(), on_line=on_line)
            image_id = (attempt / "id").read_text(encoding="utf-8").strip().removeprefix("sha256:") if code == 0 else ""
            if code == 0:
                if wanted is None:
                    return image_id, plan.volumes
                await answers.find(wanted, image_id, folder)
                is_fresh = False  # the part that is built is new
                continue
            if _LAYER_IS_GONE in output and not is_repeated:
                is_repeated = True
                continue
            missing = unknown_name(output)
            failed = steps[-1] if steps else Instruction("", 0)
            if not missing or (failed.line, missing) in answers.unknown:
                require_ids(output, str(path), text=text)
                why = await full_disk() if reports_full_disk(output) else ""
                kind = SandboxStartError if why else DockerfileError
                raise kind(build_failure(path, output, step=failed.shown, line=failed.line, why=why))
            answers.unknown.add((failed.line, missing))
    raise AssertionError("each round ends the build or has one more answer")


@dataclass(slots=True)
class _Answers:
    """What is known of the images that a Dockerfile makes."""

    unknown: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    directories: dict[str, str] = field(default_factory=dict[str, str])
    wanted: LookNeeded | None = None
    """The question that a build of the first part of the Dockerfile answers."""

    async def find(self, wanted: LookNeeded, image: str, folder: Path) -> None:
        """Answer a question by an image of buildah's store; what is picked of it lies in ``folder``."""
        if wanted.pick is None:
            self.directories[wanted.key] = await layers.directory_of(image, wanted.path)
            return
        name = str(len(self.directories))
        picked = await layers.picked(image, folder / PICKED / name, wanted.pick)
        self.directories[wanted.key] = picked and f"{name}/made/{picked}"


def _noting(plan: Plan, steps: list[Instruction], on_step: Callable[[str], object] | None) -> Callable[[str], None]:
    """Return what notes in ``steps`` each instruction that buildah's output says to begin, and tells of it."""

    def note(line: str) -> None:
        if (begun := plan.origin(line)) is not None:
            steps.append(begun)
            if on_step is not None:
                on_step(f"line {begun.line}: {begun.shown[:_SHOWN_STEP]}")

    return note


def _prepare(
    environment_dir: Path,
    text: str,
    base_images: dict[str, Base],
    folder: Path,
    answers: _Answers,
    *,
    is_fresh: bool,
) -> tuple[Plan, tuple[str, ...]]:
    """Write the Dockerfile for buildah with its contexts into a folder; return it and the command that builds it."""
    try:
        context = Context(environment_dir, folder)
    except ValueError as exc:
        raise TaskError(f"{exc}. Correct it, or use --env docker") from None
    except OSError as exc:
        raise SandboxStartError(f"the build context {environment_dir} can't be read: {exc}") from exc
    starts = {ref: base.start for ref, base in base_images.items()}
    references = {ref: base.reference for ref, base in base_images.items()}
    answers.wanted = None
    try:
        plan = planned(
            read(text), starts, references, context, unknown=answers.unknown, directories=answers.directories
        )
    except LookNeeded as exc:
        answers.wanted = exc
        plan = exc.plan
    written = folder / "Dockerfile"
    written.write_text(plan.text, encoding="utf-8", errors="surrogateescape")
    # An old buildah's cache ignores changes of files in bind mounts.
    is_fresh = is_fresh or (is_old() and "--mount=" in plan.text)
    return plan, build_argv(folder, context, written, is_fresh=is_fresh)


def write_record(image: Image, *, made_for: str, built: str = "") -> Image:
    """Write an image's record into the cache, where it can be found from now on. It keeps the image's layers.

    Args:
        image: The image.
        made_for: Its source, for people.
        built: buildah's id of it, if its Dockerfile was built.

    Returns:
        The image with its entries.
    """
    image = replace(image, entries=count_entries(image.layers))
    image.home.mkdir(parents=True, exist_ok=True)
    record = image.home / "image.json"
    if record.exists():
        # Running sandboxes may use the layers of the replaced image.
        record.rename(record.with_name(f"replaced-{uuid.uuid4().hex}.json"))
    document = {
        "layers": image.layers,
        "high_ids": image.high_ids,
        "entries": image.entries,
        "config": config_of(image),
        "made_for": made_for,
        "built": built,
    }
    replace_text(record, json.dumps(document, indent=2))
    return image


def load_image(digest: str) -> Image | None:
    """Return the image of this digest if the cache has it completely; None otherwise."""
    try:
        stored = json.loads((cache_dir() / "images" / digest[:32] / "image.json").read_text(encoding="utf-8"))
        image = Image(
            layers=tuple(stored["layers"]),
            digest=digest,
            high_ids=tuple(stored["high_ids"]),
            entries=stored["entries"],
            **settings_of(stored["config"]),
        )
    except (FileNotFoundError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return image if image.is_there else None


# --- sources ---------------------------------------------------------------------------------------------------------


def _read_dockerfile(source: ImageSource) -> str:
    recipe = source.recipe
    if recipe is not None and recipe.inline is not None:
        return chosen(recipe.inline, recipe)
    try:
        text = source.dockerfile.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        if recipe is not None:
            raise TaskError(f"there is no {source.dockerfile}, which docker-compose.yaml builds") from None
        raise SandboxStartError(
            f"{source.environment_dir} has no Dockerfile and the task names no docker_image: there is nothing to build"
        ) from None
    return text if recipe is None else chosen(text, recipe)


def content_hash(source: ImageSource) -> str:
    """Return a hash of an image's source; of a build context its names, kinds, modes, link targets and bytes.

    Raises:
        SandboxStartError: The source does not exist.
    """
    if source.rootfs is not None:
        return sources.fingerprint(source.rootfs)
    environment_dir = source.environment_dir
    if source.docker_image:
        total = hashlib.sha256(json.dumps(source.docker_image).encode())
        if sources.is_archive(source.docker_image):
            path = sources.archive_path(source.docker_image, environment_dir)
            total.update(sources.fingerprint(path).encode())
        return total.hexdigest()
    context = _context_hashes.get(environment_dir, lambda: _context_hash(environment_dir))
    if source.recipe is None:
        return context
    text = _read_dockerfile(source).encode("utf-8", "surrogateescape")
    return hashlib.sha256(context.encode() + text).hexdigest()


_context_hashes = UntilChanged[str]()
"""By build context: to read and hash a large one for each episode would take longer than the episode."""


def _context_hash(environment_dir: Path) -> str:
    total = hashlib.sha256(b"null")  # in place of an image's name in JSON
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
