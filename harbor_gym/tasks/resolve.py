"""Turn sources of tasks into local task directories, each with its origin."""

import asyncio
import json
import logging
import os
import subprocess
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.console.progress import SLOW_SEC, ticking
from harbor_gym._runtime.files import StrPath, why_unreadable
from harbor_gym._runtime.processes import tool_environment
from harbor_gym.errors import HarborGymError, TaskSourceError, UsageError
from harbor_gym.tasks.directories import find_tasks
from harbor_gym.tasks.specs import GRAMMAR, DirectorySpec, GitSpec, RegistrySpec, parse_spec

if TYPE_CHECKING:
    from harbor.models.task.id import GitTaskId, LocalTaskId, PackageTaskId
    from harbor.tasks.client import TaskDownloadResult

_logger = logging.getLogger(__name__)

_GIT_LOOK_TIMEOUT_SEC = 60.0
_FULL_COMMIT_LENGTHS = (40, 64)


@dataclass(frozen=True, slots=True)
class SourcedTask:
    """One task on this machine, and where it came from."""

    name: str
    """Unique in its list: the directory's name, with ``~2`` and so on for further tasks of that name."""

    path: Path
    """Its directory. Do not change one in Harbor's cache."""

    source: str
    """The source that named it."""

    digest: str
    """``sha256:…`` of the task's files, as in Harbor's packages."""

    commit: str | None = None
    """The git commit it was taken from."""


type TaskSource = StrPath | SourcedTask
"""A source as :func:`parse_spec` reads it, or an already resolved task, which is taken as it is."""


async def resolve_tasks(
    sources: TaskSource | Iterable[TaskSource],
    *,
    registry_path: StrPath | None = None,
    registry_url: str | None = None,
    download_dir: StrPath | None = None,
) -> list[SourcedTask]:
    """Return the tasks of the sources, in their order and none twice; fetch those that aren't here yet.

    Directories are used in place. Tasks from git or a registry are fetched once, into Harbor's own cache: a full commit
    that is already there needs no network. A branch or tag is looked up each time.

    Args:
        sources: One source, or several.
        registry_path: A ``registry.json`` to look registry names up in.
        registry_url: The address of one. With neither, ``org/name`` is looked up in Harbor's registry.
        download_dir: The folder for fetched tasks instead of Harbor's cache.

    Raises:
        UsageError: A source can't be read, or a directory holds no task.
        TaskSourceError: A repository or registry can't be reached, or has no such task.
    """
    registry = None if registry_path is None else Path(registry_path)
    target = None if download_dir is None else Path(download_dir)
    tasks: list[SourcedTask] = []
    for source in [sources] if isinstance(sources, str | os.PathLike | SourcedTask) else sources:
        if isinstance(source, SourcedTask):
            tasks.append(source)
            continue
        match parse_spec(source):
            case DirectorySpec(path):
                found = [(task, None) for task in find_tasks([path])]
            case GitSpec() as spec:
                found = await _from_git(spec, target)
            case RegistrySpec() as spec:
                found = await _from_registry(spec, registry, registry_url, target)
        tasks += [await _sourced(path, os.fspath(source), commit) for path, commit in found]
    by_path: dict[Path, SourcedTask] = {}
    for task in tasks:
        by_path.setdefault(task.path, task)
    return _unlike_named(by_path.values())


def _unlike_named(tasks: Iterable[SourcedTask]) -> list[SourcedTask]:
    """Number the tasks that have an earlier task's name."""
    named: dict[str, SourcedTask] = {}
    for task in tasks:
        name, number = task.name, 1
        while name in named:
            number += 1
            name = f"{task.name}~{number}"
        named[name] = replace(task, name=name)
    return list(named.values())


async def _sourced(path: Path, source: str, commit: str | None) -> SourcedTask:
    digest = await asyncio.to_thread(content_digest, path)
    # A package's directory is called by its digest; the task's own name stands above it.
    name = path.parent.name if path.name == digest.removeprefix("sha256:") else path.name
    return SourcedTask(name, path, source, digest, commit)


def content_digest(task_dir: Path) -> str:
    """Return ``sha256:…`` of a task's files, as in Harbor's packages. Blocks."""
    from harbor.publisher.packager import Packager

    return f"sha256:{Packager.compute_content_hash(task_dir)[0]}"


# -- git ---------------------------------------------------------------------------------------------------------------


async def _from_git(spec: GitSpec, download_dir: Path | None) -> list[tuple[Path, str | None]]:
    from harbor.models.task.id import GitTaskId

    commit = await _commit_of(spec)
    # Harbor's client fetches a folder, be it a task or a folder of tasks, and keeps it by address, commit and path.
    folder = GitTaskId(git_url=spec.url, git_commit_id=commit, path=Path(spec.path))
    ((path, resolved),) = await _download([folder], download_dir, of=f"{spec.path} of {spec.url} at {commit}")
    return [(task, resolved or commit) for task in find_tasks([path])]


async def _commit_of(spec: GitSpec) -> str:
    """Return the commit that the source's ref names now."""
    if spec.ref is not None and len(spec.ref) in _FULL_COMMIT_LENGTHS and _is_hex(spec.ref):
        return spec.ref.lower()
    from harbor.utils.git import select_ls_remote_sha

    ref = spec.ref or "HEAD"
    listing = await _ls_remote(spec.url, ref)
    try:
        return select_ls_remote_sha(listing, ref, exact=True)
    except ValueError as exc:
        raise TaskSourceError(
            f"{spec.url} has no branch or tag {ref!r}; a commit must be written with all of its 40 digits"
        ) from exc


async def _ls_remote(url: str, ref: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", "ls-remote", "--", url, ref),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=tool_environment({"GIT_TERMINAL_PROMPT": "0"}),
        )
    except FileNotFoundError as exc:
        raise TaskSourceError("git is not installed, and a source of tasks needs it") from exc
    try:
        with ticking(f"asking {url} for {ref}", delay_sec=SLOW_SEC):
            async with asyncio.timeout(_GIT_LOOK_TIMEOUT_SEC):
                out, err = await process.communicate()
    except TimeoutError as exc:
        raise TaskSourceError(f"{url} did not answer within {_GIT_LOOK_TIMEOUT_SEC:g} s") from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise TaskSourceError(f"git can't read {url}: {_one_line(err)}")
    return out.decode()


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdefABCDEF" for letter in text)


# -- registries --------------------------------------------------------------------------------------------------------


async def _from_registry(
    spec: RegistrySpec, registry_path: Path | None, registry_url: str | None, download_dir: Path | None
) -> list[tuple[Path, str | None]]:
    shown = f"{spec.name}@{spec.ref}" if spec.ref else spec.name
    if registry_path is not None:
        await asyncio.to_thread(_require_registry, registry_path)
    looking = ticking(f"looking for {shown} in the registry", delay_sec=SLOW_SEC)
    with _foreign_errors(f"{shown} in the registry (it is no directory here either)"), looking:
        if registry_path is None and registry_url is None and "/" in spec.name:
            ids = await _package_ids(spec)
        else:
            from harbor.registry.client.factory import RegistryClientFactory

            # Reading the file or the address happens in the constructor.
            client = await asyncio.to_thread(
                RegistryClientFactory.create, registry_url=registry_url, registry_path=registry_path
            )
            ids = (await client.get_dataset_metadata(shown)).task_ids
    if not ids:
        raise TaskSourceError(f"{shown} holds no tasks")
    downloaded = await _download(ids, download_dir, of=shown)
    return [(find_tasks([path])[0], commit) for path, commit in downloaded]


def _require_registry(path: Path) -> None:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} can't be read: {why_unreadable(exc)}; --registry-path is a registry.json") from exc


async def _package_ids(spec: RegistrySpec) -> Sequence["GitTaskId | LocalTaskId | PackageTaskId"]:
    """Return the tasks of a name in Harbor's own registry: one task, or a dataset's."""
    from harbor.db.client import RegistryDB
    from harbor.models.package.reference import PackageReference
    from harbor.models.task.id import PackageTaskId
    from harbor.registry.client.package import PackageDatasetClient

    reference = PackageReference(name=spec.name, ref=spec.ref or "latest")
    match await RegistryDB().get_package_type(org=reference.org, name=reference.short_name):
        case "task":
            return [PackageTaskId(org=reference.org, name=reference.short_name, ref=reference.ref)]
        case "dataset":
            return (await PackageDatasetClient().get_dataset_metadata(str(reference))).task_ids
        case kind:
            raise TaskSourceError(f"the registry has no task and no dataset {spec.name!r} (found: {kind}); {GRAMMAR}")


# -- fetching ----------------------------------------------------------------------------------------------------------


async def _download(
    ids: Sequence["GitTaskId | LocalTaskId | PackageTaskId"], download_dir: Path | None, *, of: str
) -> list[tuple[Path, str | None]]:
    from harbor.tasks.client import TaskClient

    with _foreign_errors(of), ticking(f"fetching {of}", delay_sec=SLOW_SEC):
        results = (await TaskClient().download_tasks(list(ids), output_dir=download_dir)).results
        broken = [n for n, result in enumerate(results) if await asyncio.to_thread(_is_broken, result)]
        if broken:
            places = " and ".join(str(results[n].path) for n in broken)
            _logger.warning("%s was damaged since it was fetched: it is fetched again", places)
            again = await TaskClient().download_tasks([ids[n] for n in broken], overwrite=True, output_dir=download_dir)
            for n, result in zip(broken, again.results, strict=True):
                results[n] = result
    return [(result.path.resolve(), result.resolved_git_commit_id) for result in results]


def _is_broken(result: "TaskDownloadResult") -> bool:
    """Return whether a task fetched earlier is missing files, or does not match its digest."""
    from harbor.publisher.packager import Packager

    if not result.cached:
        return False
    try:
        find_tasks([result.path])
    except UsageError:
        return True
    if result.content_hash is None:  # from a repository: there is no digest to compare with
        return False
    return Packager.compute_content_hash(result.path)[0] != result.content_hash.removeprefix("sha256:")


@contextmanager
def _foreign_errors(of: str) -> Generator[None]:
    """Turn every error of Harbor's clients into a TaskSourceError: those of git, HTTP and a database differ."""
    try:
        yield
    except HarborGymError:
        raise
    except Exception as exc:
        output: Any = exc.stderr if isinstance(exc, subprocess.CalledProcessError) else str(exc)
        raise TaskSourceError(f"can't fetch {of}: {type(exc).__name__}: {_one_line(output)}") from exc


def _one_line(output: Any) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
    return " ".join(text.split())
