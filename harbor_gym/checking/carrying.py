"""Derive the paths that a pristine view must carry from those that the task's solution wrote."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

from harbor_gym.config.verify_paths import check_paths

MAX_PATHS = 20
"""Longest list that is proposed: nobody would review a longer one."""

_HARBORS = ("/tmp", "/tests", "/logs", "/solution", "/proc", "/sys", "/dev")
_PACKAGES = ("/var/lib/apt", "/var/lib/dpkg", "/var/cache", "/var/log/apt", "/var/log/dpkg.log", "/etc/ld.so.cache")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/boot")
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_LITTER = re.compile(
    r"\.cache|\.npm|__pycache__|\.pytest_cache|\.(?:bash|python|node_repl)_history|\.wget-hsts|\.lesshst"
)


def candidates(written: Iterable[PurePosixPath]) -> list[tuple[PurePosixPath, ...]]:
    """Return lists of paths to try, the shortest first: without system files, then with them, then with packages'.

    Args:
        written: Paths that the solution changed.
    """
    leaves = _leaves([path for path in written if _may_count(path)])
    lists = [
        [path for path in leaves if not _is_below(path, (*_SYSTEM, *_PACKAGES))],
        [path for path in leaves if not _is_below(path, _PACKAGES)],
        leaves,
    ]
    found: list[tuple[PurePosixPath, ...]] = []
    for paths in lists:
        carried = check_paths(map(_carrier, paths)) if paths else ()
        if carried and len(carried) <= MAX_PATHS and carried not in found:
            found.append(carried)
    return found


def what_remains(task_dir: Path, carried: Sequence[PurePosixPath]) -> list[str]:
    """Return the kinds of files that a policy could plant in carried paths and this task's verifier would run.

    Args:
        task_dir: The task's directory; its tests are searched for the programs that they call.
        carried: The paths of the view.
    """
    calls = _words_of_tests(task_dir)
    trees = [path for path in carried if not _is_below(path, _PROGRAMS)]
    where = ", ".join(map(str, trees))
    remains = [f"programs and libraries: {path}" for path in carried if _is_below(path, _PROGRAMS)]
    if trees and "pytest" in calls:
        remains.append(f"conftest.py, pytest.ini, pyproject.toml below {where}")
    if trees and calls & {"python", "python3", "pytest", "uv", "uvx"}:
        remains.append(f"Python modules, sitecustomize.py and *.pth below {where}")
    if trees and "git" in calls:
        remains.append(f"git configuration and hooks below {where}")
    if trees and calls & {"make", "npm", "cargo", "go", "gcc", "cmake"}:
        remains.append(f"what builds run below {where}")
    return remains


def _may_count(path: PurePosixPath) -> bool:
    is_litter = any(map(_LITTER.fullmatch, path.parts))
    return path != PurePosixPath("/") and not is_litter and not _is_below(path, _HARBORS)


def _is_below(path: PurePosixPath, tops: Collection[str]) -> bool:
    return any(path.is_relative_to(top) for top in tops)


def _leaves(paths: Collection[PurePosixPath]) -> list[PurePosixPath]:
    """Leave out the directories that are parents of other paths."""
    inner = {parent for path in paths for parent in path.parents}
    return sorted(path for path in paths if path not in inner)


def _carrier(path: PurePosixPath) -> PurePosixPath:
    """Return the path to carry for a changed one: the task's own directory, or, in a shared one, the path itself."""
    names = path.parts[1:]
    match names:
        case ("usr" | "bin" | "sbin" | "lib" | "lib32" | "lib64" | "boot", *_):
            return path
        case ("root", child, *_):
            return PurePosixPath("/root", child)
        case ("home", user, child, *_):
            return PurePosixPath("/home", user, child)
        case ("etc", name, _, *_) if not name.endswith(".d"):
            return PurePosixPath("/etc", name)
        case ("opt", name, _, *_):
            return PurePosixPath("/opt", name)
        case ("var", kind, name, _, *_):
            return PurePosixPath("/var", kind, name)
        case ("etc" | "opt" | "var" | "home" | "root" | "run", *_):
            return path
        case _:
            return PurePosixPath("/", names[0])


def _words_of_tests(task_dir: Path) -> set[str]:
    folders = [task_dir / "tests", *task_dir.glob("steps/*/tests")]
    files = [
        file for folder in folders for file in folder.rglob("*") if file.suffix in (".sh", ".py") and file.is_file()
    ]
    return {word for file in files for word in re.findall(r"\w+", file.read_text(errors="replace", encoding="utf-8"))}
