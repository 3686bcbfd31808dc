"""Check that a task directory holds only its own files, so that no other file of the machine gets into a prompt."""

import os
import stat
from pathlib import Path

from harbor_gym.errors import TaskError


def require_own_files(task_dir: Path) -> None:
    """Refuse links out of a task directory, as Harbor does for tasks from git, and special files.

    The directory's own path may have links, and links within it are allowed.

    Raises:
        TaskError: The message names the link and its target, or the file.
    """
    root = task_dir.resolve()
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                _require_inside(path, root)
            elif not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise TaskError(f"{path} is neither a file nor a directory; a task directory holds nothing else")


def _require_inside(link: Path, root: Path) -> None:
    shown = f"{link} is a link to {link.readlink()}"
    try:
        target = link.resolve()
    except (OSError, RuntimeError) as exc:  # RuntimeError: a loop of links, before Python 3.13
        raise TaskError(f"{shown}, which leads nowhere: {exc}") from exc
    if target.is_symlink():
        raise TaskError(f"{shown}, which is part of a loop of links")
    if not target.is_relative_to(root):
        raise TaskError(f"{shown}, which leads to {target}, outside the task directory: put a copy there instead")
    if link.is_relative_to(target):
        raise TaskError(f"{shown}, a directory that holds the link itself")
