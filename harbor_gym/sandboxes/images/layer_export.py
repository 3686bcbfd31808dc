"""Copy a mounted image's layers out of buildah's store. A program of its own, stdlib only; see :func:`main`.

It runs where the image is mounted: in a private mount namespace that ends with it. ``runtime.sh`` calls it during a
build, for the ACLs: buildah's layers are archives, which have none.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

_FILES = {
    "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "resolv.conf": "# This sandbox has no network.\n",
    "hostname": "sandbox\n",
}
"""Files that a container runtime provides in /etc."""
_PLACES = ("etc", "dev", "proc", "sys", "tmp")
_NOTES = {f"user.harbor-gym.{name}": f"system.{name}" for name in ("posix_acl_access", "posix_acl_default")}
"""An attribute that is in buildah's archives → the ACL that it keeps."""

_ACLS = "harbor-gym-acls"
"""A file in buildah's store once any layer may have ACLs, and beside each layer that has got them back."""

_FOUND = "harbor-gym-found.json"
"""A file beside a layer in buildah's store, which goes with it: the result of :func:`found_in`."""

_OVERLAY_SWITCHES = ("redirect_dir", "metacopy")
_IMAGE_DIRECTORY_MODE = 0o755
_ORDINARY_IDS = 1 << 16


def lower_directories(root: str, mounts: str) -> list[str]:
    """Return the layers of the overlay mounted at ``root``, the topmost first; empty if there is none.

    Args:
        root: The mount point.
        mounts: The text of ``/proc/self/mountinfo``.
    """
    for line in mounts.splitlines():
        place, _, source = line.partition(" - ")
        if _unescaped(place.split()[4]) != root or not source.startswith("overlay "):
            continue
        options = source.split()[2]
        stack = re.search(r"(?:^|,)lowerdir=([^,]*)", options)
        if stack is None or "\\" in stack[1]:
            return []
        names = stack[1].split(":")
        if names[0].isdecimal():
            # Very many layers are given by open descriptors of the mounting process. The store has a list of names.
            names = (Path(root).parent / "lower").read_text(encoding="utf-8").strip().split(":")
        # Many layers have names relative to the store's own directory, to keep the option short.
        home = os.path.dirname(os.path.dirname(root))  # noqa: PTH120  # pathlib has no realpath of a relative name
        return [os.path.realpath(os.path.join(home, name)) for name in names]  # noqa: PTH118  # as above
    return []


def _unescaped(field: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), field)


def writes_plain_layers(parameters: Path = Path("/sys/module/overlay/parameters")) -> bool:
    """Return whether this kernel's overlays write layers that don't depend on the paths of the layers below."""
    for name in _OVERLAY_SWITCHES:
        try:
            if (parameters / name).read_text(encoding="utf-8").strip() == "Y":
                return False
        except OSError:
            continue
    return True


def copy_layers(root: str, layers: Path, staging: Path, image_id: str, diff_ids: list[str]) -> list[str]:
    """Copy the layers that the cache lacks; return the layers' names, the topmost first.

    If the layers can't be distinguished, the whole root is one layer.
    """
    lowers = lower_directories(root, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    restore_acls(lowers)
    if len(lowers) != len(diff_ids) or not writes_plain_layers():
        return [copy_once(root, layers, staging, f"whole-{image_id[:32]}")]
    names = [identity.removeprefix("sha256:")[:32] for identity in reversed(diff_ids)]
    stack = [(lower, name) for lower, name in zip(lowers, names, strict=True) if any(os.scandir(lower))]
    copied: list[str] = []
    for place, (lower, name) in enumerate(stack):
        vain = vain_deletions(lower, [below for below, _ in stack[place + 1 :]])
        # On other layers the same content may delete something.
        suffix = f"-{hashlib.sha256(json.dumps(vain).encode()).hexdigest()[:16]}" if vain else ""
        copied.append(copy_once(lower, layers, staging, name + suffix, vain))
    return copied


def note_acls(layer: str) -> None:
    """Note the ACLs of the files in what a RUN wrote in attributes that buildah keeps."""
    for path, names in _attributes(layer):
        for note, acl in _NOTES.items():
            if acl in names:
                os.setxattr(path, note, os.getxattr(path, acl))
                (Path(layer).parent.parent.parent / _ACLS).touch()
            elif note in names:
                os.removexattr(path, note)


def restore_acls(layers: Iterable[str]) -> None:
    """Give the files in layers of buildah's store the ACLs that were noted."""
    for layer in map(Path, layers):
        if not (layer.parent.parent.parent / _ACLS).exists() or layer.with_name(_ACLS).exists():
            continue
        for path, names in _attributes(str(layer)):
            for note in _NOTES.keys() & names:
                os.setxattr(path, _NOTES[note], os.getxattr(path, note))
        layer.with_name(_ACLS).touch()


def _attributes(directory: str) -> Iterable[tuple[str, list[str]]]:
    """Yield each file and directory below a directory that has attributes, and their names."""
    for place, _, files in os.walk(directory):
        for path in (place, *(f"{place}/{name}" for name in files)):
            if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR) and (names := os.listxattr(path)):
                yield path, names


def vain_deletions(layer: str, below: list[str]) -> list[str]:
    """Return the deletions in a layer that delete nothing in those below it.

    A RUN that makes a file called ``.wh.NAME`` has made one for buildah. overlayfs lists NAME, and can't open it.
    """
    deletions = found_in(layer)["deletions"]
    return [path for path in deletions if not any(os.path.lexists(f"{lower}/{path}") for lower in below)]


class Found(TypedDict):
    """What a walk through a layer finds. A layer of buildah's store never changes."""

    deletions: list[str]
    high_ids: list[int]


def found_in(layer: str) -> Found:
    """Return the deletions in a layer of buildah's store, and its :func:`high_ids`; the first call walks through it."""
    note = Path(layer).with_name(_FOUND)
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = Found(deletions=_deletions(layer), high_ids=high_ids(layer))
    partial = note.with_name(f"{_FOUND}.{os.getpid()}")
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.replace(note)
    return found


def _deletions(layer: str) -> list[str]:
    found: list[str] = []
    directories = [""]
    while directories:
        above = directories.pop()
        with os.scandir(f"{layer}/{above}") as entries:
            for entry in entries:
                path = f"{above}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    directories.append(f"{path}/")
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                        found.append(path)
    return sorted(found)


def copy_once(source: str, layers: Path, staging: Path, name: str, left_out: Iterable[str] = ()) -> str:
    """Copy a directory with all metadata of its files, including deletions; the copy is complete or absent.

    Of several processes one copies, the others wait for it.
    """
    if (layers / name).is_dir():
        return name
    locks = layers.parent / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / f"layer-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (layers / name).is_dir():
            partial = staging / name
            partial.mkdir()
            subprocess.run(["cp", "-a", f"{source}/.", str(partial)], check=True)
            for path in left_out:
                (partial / path).unlink()
            partial.rename(layers / name)
    return name


def write_top(root: Path, top: Path) -> None:
    """Write the layer above an image's own: the files of /etc that a runtime provides, and mount points.

    No link of the image is followed: it may lead anywhere.
    """
    top.mkdir()
    top.chmod(_IMAGE_DIRECTORY_MODE)
    for name in _PLACES:
        if not os.path.lexists(root / name):
            (top / name).mkdir()
            (top / name).chmod(_IMAGE_DIRECTORY_MODE)
    etc = top / "etc"
    is_of_image = not etc.exists()
    if is_of_image:
        etc.mkdir()
    for name, content in _FILES.items():
        (etc / name).write_text(content, encoding="utf-8")
        (etc / name).chmod(0o644)
    if is_of_image:
        status = (root / "etc").lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError("the image's /etc is no directory")
        os.chown(etc, status.st_uid, status.st_gid)
        etc.chmod(status.st_mode & 0o7777)
        os.utime(etc, ns=(status.st_atime_ns, status.st_mtime_ns))


def high_ids_of(root: str) -> list[int]:
    """Return the :func:`high_ids` of a mounted image, without a walk through it if none of its layers has any."""
    lowers = lower_directories(root, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if lowers and not any(found_in(layer)["high_ids"] for layer in lowers):
        return []
    return high_ids(root)  # an upper layer may hide a lower one's


def high_ids(root: str | Path) -> list[int]:
    """Return the uids and gids above 65535 of files below a directory."""
    found: set[int] = set()
    for directory, folders, names in os.walk(root):
        for name in (*folders, *names):
            try:
                status = os.lstat(f"{directory}/{name}")
            except FileNotFoundError:
                continue  # see vain_deletions
            found |= {status.st_uid, status.st_gid}
    return sorted(number for number in found if number >= _ORDINARY_IDS)


def main() -> int:
    """Export the image mounted at the last argument; print its layers and high ids as JSON on the last line.

    With two arguments, ``note LAYER`` or ``restore ROOT``, it does that with the ACLs of a RUN.
    """
    match sys.argv[1:]:
        case ["note", layer]:
            note_acls(layer)
            return 0
        case ["restore", root]:
            restore_acls(lower_directories(root, Path("/proc/self/mountinfo").read_text(encoding="utf-8")))
            return 0
        case _:
            pass
    layers, staging, image_id, diff_ids, root = sys.argv[1:]
    names = copy_layers(root, Path(layers), Path(staging), image_id, json.loads(diff_ids))
    top = f"top-{Path(staging).name[-32:]}"
    write_top(Path(root), Path(staging) / top)
    (Path(staging) / top).rename(Path(layers) / top)
    print(json.dumps({"layers": [top, *names], "high_ids": high_ids_of(root)}))  # noqa: T201  # a program's own output
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as exc:
        sys.exit(str(exc))
