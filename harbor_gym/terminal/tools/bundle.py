"""The host's tmux and bash as one file that installs itself: programs, libraries, loader, locale, terminfo.

The loader and the C library are included and called by their path, so the image's own files are neither used nor
changed, whichever C library it has.
"""

import functools
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir, locked
from harbor_gym._runtime.files import replacing
from harbor_gym._runtime.processes import ask

TOOLS = ("tmux", "bash")
_FORMAT = 1
_LOCALES = (Path("/usr/lib/locale/C.utf8"), Path("/usr/lib/locale/C.UTF-8"))
_TERMINFO = tuple(
    Path(place) for place in ("/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo")
)
_TERMS = ("screen", "screen-256color")
_LIBRARY = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_HOST_TIMEOUT_SEC = 20

_INSTALLER = """\
#!/bin/sh
# Installs tools beside itself: sh <file> <tool>... Only the named tools can be called afterwards.
set -e
umask 022
file=$0 dir=${{0%/*}}
take() {{ tail -c "$1" "$file" | head -c "$2" >"$dir/$3"; }}
mkdir -p {directories}
{takes}
chmod -R a+rX "$dir"
for tool; do
    printf '%s\\n' '#!/bin/sh' 'dir=${{0%/*}}' 'export LOCPATH="$dir/locale"' \\
        'exec {call} "$dir/lib/'"$tool"'" "$@"' >"$dir/.$tool"
    chmod 755 "$dir/lib/$tool" {loader} "$dir/.$tool"
    mv "$dir/.$tool" "$dir/$tool"
done
rm -f "$file"
exit 0
"""


class BundleError(RuntimeError):
    """The host has no programs that could be bundled; the message states what is missing."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A file that installs the tools."""

    path: Path
    name: str
    """A digest of its content."""

    machine: str
    """The processor that it runs on, as ``uname -m`` prints it."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a bundle."""

    members: tuple[tuple[str, Path], ...]
    """Path in the bundle, and file of the host."""

    loader: str | None
    """Name of the programs' dynamic loader; None if they are static."""

    loader_flags: tuple[str, ...]


async def ensure_bundle() -> Bundle:
    """Return this host's bundle, made once and kept in the cache.

    Raises:
        BundleError: The host has no usable tmux or bash.
    """
    import asyncio

    content = await asyncio.to_thread(find_content)
    key = [(place, str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for place, file in content.members]
    name = hashlib.sha256(repr((_FORMAT, _INSTALLER, key)).encode()).hexdigest()[:12]
    path = cache_dir() / "tools" / f"{name}.sh"
    if not path.is_file():
        async with locked(f"tools-{name}"):
            if not path.is_file():
                await asyncio.to_thread(_write, content, path)
    return Bundle(path, name, os.uname().machine)


@functools.cache
def find_content() -> Content:
    """Return the files of this host that the bundle contains."""
    members: dict[str, Path] = {}
    loader = None
    for tool in TOOLS:
        program = shutil.which(tool)
        if program is None:
            raise BundleError(f"the host has no {tool} either")
        file = Path(program).resolve()
        members[f"lib/{tool}"] = file
        libraries, own_loader = _find_libraries(file)
        members |= libraries
        loader = own_loader or loader
    locale = next((place for place in _LOCALES if (place / "LC_CTYPE").is_file()), None)
    if locale is None and loader is not None and "musl" not in loader:
        raise BundleError(f"the host has no C.UTF-8 locale (looked for {' and '.join(map(str, _LOCALES))})")
    if locale is not None:
        # tmux needs only LC_CTYPE; bash refuses a locale with missing files.
        members |= {f"locale/C.utf8/{file.relative_to(locale)}": file for file in locale.rglob("*") if file.is_file()}
    for term in _TERMS:
        entries = (place / letter / term for place in _TERMINFO for letter in ("s", "73"))
        if entry := next((entry for entry in entries if entry.is_file()), None):
            members[f"terminfo/s/{term}"] = entry
    return Content(tuple(sorted(members.items())), loader, _find_loader_flags(members, loader))


def _find_libraries(program: Path) -> tuple[dict[str, Path], str | None]:
    """Return the shared libraries of ``program`` with its loader, and the loader's name."""
    with program.open("rb") as content:
        if content.read(4) != b"\x7fELF":
            raise BundleError(f"the host's {program} is no program but a script")
    done = ask("ldd", str(program), timeout_sec=_HOST_TIMEOUT_SEC)
    if "not found" in done.stdout:
        raise BundleError(f"the host's {program} misses a library: {done.stdout.strip()}")
    libraries: dict[str, Path] = {}
    loader = None
    for name, path in _LIBRARY.findall(done.stdout):
        file = Path(path)
        libraries[f"lib/{name or file.name}"] = file.resolve()
        if not name:
            loader = file.name
    for directory in {file.parent for file in libraries.values()}:
        # Older C libraries load a library at run time to look accounts up.
        if (accounts := directory / "libnss_files.so.2").is_file():
            libraries[f"lib/{accounts.name}"] = accounts.resolve()
    return libraries, loader


def _find_loader_flags(members: dict[str, Path], loader: str | None) -> tuple[str, ...]:
    if loader is None:
        return ()
    argv = [str(members[f"lib/{loader}"]), "--help"]
    done = ask(*argv, timeout_sec=_HOST_TIMEOUT_SEC)
    known = done.stdout + done.stderr
    flags = ["--library-path", '"$dir/lib"']
    if "--inhibit-cache" in known:
        flags.insert(0, "--inhibit-cache")
    if "--argv0" in known:
        flags += ["--argv0", '"$0"']
    return tuple(flags)


def _write(content: Content, path: Path) -> None:
    sizes = [file.stat().st_size for _, file in content.members]
    takes = [f'take {sum(sizes[index:])} {sizes[index]} "{place}"' for index, (place, _) in enumerate(content.members)]
    directories = sorted({str(Path(place).parent) for place, _ in content.members})
    loader = f'"$dir/lib/{content.loader}"' if content.loader else ""
    installer = _INSTALLER.format(
        directories=" ".join(f'"$dir/{directory}"' for directory in directories),
        takes="\n".join(takes),
        call=" ".join([loader, *content.loader_flags]).strip(),
        loader=loader,
    )
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as partial:
        with partial.open("wb") as bundle:
            bundle.write(installer.encode())
            for (place, file), size in zip(content.members, sizes, strict=True):
                if bundle.write(file.read_bytes()) != size:
                    raise BundleError(f"{file} ({place}) changed while it was read: try again")
        partial.chmod(0o644)
