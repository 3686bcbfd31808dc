"""The notation for a source of tasks."""

import re
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.shipped import is_shipped, resolve_shipped
from harbor_gym.errors import UsageError

GRAMMAR = (
    "a directory, task:NAME of one that is shipped, git+URL@COMMIT#path/in/the/repository, or a registry's org/name@ref"
)

_GIT_PREFIX = "git+"
# Not git's remote helpers: "ext::" runs the rest as a command.
_GIT_URL = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:[^:\s]\S*")
_REGISTRY_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_GIT_REF = re.compile(r"[A-Za-z0-9][\w./+-]*")
_DEFAULT_GIT_PATH = "tasks"


@dataclass(frozen=True, slots=True)
class DirectorySpec:
    """A task directory, or a directory of tasks."""

    path: Path


@dataclass(frozen=True, slots=True)
class GitSpec:
    """A task directory, or a directory of tasks, at one commit of a git repository."""

    url: str
    ref: str | None
    """Commit, branch or tag; None is the repository's HEAD."""

    path: str
    """Path in the repository."""


@dataclass(frozen=True, slots=True)
class RegistrySpec:
    """A task or a dataset of a registry."""

    name: str
    ref: str | None
    """Tag, revision, version or digest; None is the latest."""


type Spec = DirectorySpec | GitSpec | RegistrySpec


def parse_spec(text: StrPath) -> Spec:
    """Read a source of tasks.

    A path that exists, and any text that begins with ``.``, ``/`` or ``~``, is a directory. In a git source the path
    defaults to ``tasks``, as in Harbor.

    Raises:
        UsageError: It is none of these.
    """
    if is_shipped(text):
        return DirectorySpec(resolve_shipped(text))
    if not isinstance(text, str):
        return DirectorySpec(Path(text).expanduser())
    if text.startswith(_GIT_PREFIX):
        return _git(text)
    if text.startswith((".", "/", "~")) or (text and Path(text).exists()):
        return DirectorySpec(Path(text).expanduser())
    name, _, ref = text.partition("@")
    if not _REGISTRY_NAME.fullmatch(name) or (not ref and "@" in text):
        raise UsageError(f"{text!r} is no source of tasks; write {GRAMMAR}")
    return RegistrySpec(name, ref or None)


def _git(text: str) -> GitSpec:
    address, _, path = text.removeprefix(_GIT_PREFIX).partition("#")
    url, ref = address, None
    # The last @ is the commit's only behind the last slash or colon of the address: git@host:org/repo has one, too.
    at = address.rfind("@")
    if at > max(address.rfind("/"), address.rfind(":")):
        url, ref = address[:at], address[at + 1 :]
        if not _GIT_REF.fullmatch(ref):
            raise UsageError(f"{text!r}: {ref!r} is no commit, branch or tag")
    if not _GIT_URL.fullmatch(url):
        raise UsageError(f"{text!r}: {url!r} is no git address (https, ssh, git or file ://…, or user@host:path)")
    parts = Path(path or _DEFAULT_GIT_PATH).parts
    if Path(path).is_absolute() or ".." in parts or not parts:
        raise UsageError(f"{text!r}: what follows # is the path of a folder inside the repository")
    return GitSpec(url, ref, Path(*parts).as_posix())
