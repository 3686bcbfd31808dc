"""What must be known of a Dockerfile before a builder reads it: its bases, and whether it has here-documents."""

import re
from pathlib import Path

OWNER_OF_BUILD = "{{.DefaultMountsFilePath}}"
"""Where ``buildah inspect`` shows what :func:`owned_build` has put into a working container's state."""

_DEFAULT_DOMAIN = "docker.io"
"""What a reference without a domain means. Source: the reference grammar of the distribution project."""
_FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)(.*)$", re.IGNORECASE)
_STAGE_NAME = re.compile(r"\s+AS\s+(\S+)", re.IGNORECASE)
_COPY_FROM = re.compile(r"^(\s*(?:COPY|ADD)\b.*?\s--from=)([^\s\\]+)(.*)$", re.IGNORECASE)
_ARG = re.compile(r"^\s*ARG\s+([A-Za-z_]\w*)(?:=(.*))?$", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
_HEREDOC = re.compile(r"^\s*(?:RUN|COPY|ADD)\b.*?(?<!<)<<-?([\"']?)([A-Za-z_]\w*)\1", re.IGNORECASE | re.MULTILINE)
_HEREDOC_BUILDAH = (1, 33)
"""First buildah that reads here-documents. Source: buildah's changelog; 1.28 says "Unknown instruction"."""


def base_references(text: str) -> list[str]:
    """Return the images a Dockerfile starts from or copies from, each once, its own stages and scratch left out."""
    return [reference for _, reference in _scan(text)]


def replace_references(text: str, replacements: dict[str, str]) -> str:
    """Return the Dockerfile with each base image under another name. Line numbers stay as they are."""
    lines = text.split("\n")
    for number, reference in _scan(text, once=False):
        pattern = _FROM if _FROM.match(lines[number]) else _COPY_FROM
        new = replacements.get(reference, reference)
        lines[number] = pattern.sub(lambda found, new=new: f"{found[1]}{new}{found[3]}", lines[number])
    return "\n".join(lines)


def _scan(text: str, *, once: bool = True) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    stages: set[str] = set()
    arguments: dict[str, str] = {}
    count = 0
    for number, line in enumerate(text.split("\n")):
        if (argument := _ARG.match(line)) and count == 0:
            arguments[argument[1]] = _expand((argument[2] or "").strip().strip("\"'"), arguments)
        elif opened := _FROM.match(line):
            reference = _expand(opened[2].strip("\"'"), arguments)
            if reference.lower() not in stages | {"scratch"}:
                found.append((number, reference))
            if name := _STAGE_NAME.match(opened[3]):
                stages.add(name[1].lower())
            stages.add(str(count))
            count += 1
        elif (copied := _COPY_FROM.match(line)) and copied[2].lower() not in stages:
            found.append((number, copied[2]))
    if not once:
        return found
    seen: set[str] = set()
    return [entry for entry in found if not (entry[1] in seen or seen.add(entry[1]))]


def _expand(value: str, arguments: dict[str, str]) -> str:
    def one(found: re.Match[str]) -> str:
        name, operator, word = found[1] or found[2], found[3] or "", found[4] or ""
        current = arguments.get(name, "")
        if operator.endswith("+"):
            return word if current else ""
        return current or (word if operator else "")

    return _VARIABLE.sub(one, value)


def has_heredoc(text: str) -> bool:
    """Tell whether an instruction carries a here-document (``RUN <<EOF``), which old builders can't read."""
    return _HEREDOC.search(text) is not None


def builds_heredocs(version: str) -> bool:
    """Tell from ``buildah --version`` whether this buildah reads here-documents."""
    found = re.search(r"version (\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= _HEREDOC_BUILDAH


def full_reference(reference: str) -> str:
    """Spell a short reference out as a container engine understands it (``debian:12`` is an official image)."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"{_DEFAULT_DOMAIN}/{reference}" if slash else f"{_DEFAULT_DOMAIN}/library/{reference}"


def is_debian_family(reference: str) -> bool:
    """Tell whether a full reference names the official Debian or Ubuntu image, of any tag."""
    return re.fullmatch(rf"{re.escape(_DEFAULT_DOMAIN)}/library/(debian|ubuntu)([:@].+)?", reference) is not None


def owned_build(folder: str) -> tuple[str, ...]:
    """Return the words that start ``buildah bud`` so that a reaper can tell whose a killed build's leftovers are.

    A build gives its working containers names of its own, and no label; the path of the file that lists default mounts
    is the one thing of the caller's that each keeps. The file is made, and lists none. Temporary files go there.

    Args:
        folder: The build's temporary folder, which has its owner in its name.
    """
    path = Path(folder) / "mounts.conf"
    path.touch()
    return "env", f"TMPDIR={folder}", "buildah", "bud", "--default-mounts-file", str(path)
