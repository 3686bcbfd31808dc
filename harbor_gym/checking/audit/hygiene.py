"""Find what makes a task depend on a time, a place or an author: unpinned downloads, paths of a machine, secrets."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from harbor_gym.checking.audit.contents import Carrier, Content, TaskContents, is_below, is_environment
from harbor_gym.checking.audit.kinds import at, finding
from harbor_gym.tasks.receipts import Evidence, Finding

_MOST_PLACES = 10
_CONFIGS = {".json", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".conf", ".env", ".properties", ".xml", ".mk"}
_PROGRAMS = {".sh", ".bash", ".py", ".js", ".ts", ".rb", ".pl", ".mjs", ".cjs", ".c", ".go", ".rs", ".java"}


def find_hygiene(contents: TaskContents) -> Iterator[Finding]:
    """Yield at most one finding of each kind, with its places."""
    for kind, message, places in (
        ("hygiene/unpinned", "{} downloads have no version and no checksum", _unpinned(contents)),
        ("hygiene/author-path", "{} paths are of an author's machine", _author_paths(contents)),
        ("hygiene/secret", "{} secrets stand in the files", _secrets(contents)),
    ):
        found = list(places)
        if found:
            yield finding(kind, message.format(len(found)), found[:_MOST_PLACES])


# -- downloads ---------------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"\bv?\d+\.\d+|[0-9a-f]{40}|[-_/]v?\d{1,4}(?:[./_-]|$)")
_LOCAL = re.compile(
    r"://(?:localhost|127\.|0\.0\.0\.0|\[::1\]|[\w.-]+\.(?:local|internal|test|example))(?=[:/]|$)|file://|://[^/]*\$"
)
_PIP = re.compile(r"(?:\bpip3?|\buv\s+pip|\buv\s+tool|\bpipx)\s+install\s+([^|;&>\n]+)")
_UV = re.compile(r"\buvx?\b(?!\s+(?:pip|tool|venv|sync|init|lock))([^|;&\n]*)")
_UV_WITH = re.compile(r"(?:--with|--from|-w)[=\s]+[\"']?([\w.\[\]-]+(?:[=<>~!@][^\s\"']*)?)")
_CURL = re.compile(r"\b(?:curl|wget)\b[^|;&\n]*?[\"']?((?:https?|ftp)://[^\s\"'|;)]+)")
_CHECKED = re.compile(r"sum\b[^|\n]*\s(?:-\w*c\b|--check)|--checksum|gpg\s+--verify|cosign\s+verify|hashlib")
_CLONE = re.compile(r"\bgit\s+clone\b([^|;&\n]*)")
_FROM = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.I | re.M)
_NPM = re.compile(r"\b(?:npm\s+(?:install|i|add)|yarn\s+(?:global\s+)?add|pnpm\s+(?:add|install)|npx)\s+([^|;&\n]*)")
_OTHERS = (
    re.compile(r"\bgo\s+(?:install|get)\s+\S+@latest\b"),
    re.compile(
        r"\bcargo\s+install\s+(?!.*(?:--version|--vers|--path|--locked\s+--git.*--rev|@\d))(?:-\S+\s+)*[a-z][\w-]*"
    ),
    re.compile(r"\bgem\s+install\s+(?!.*(?:-v|--version|:\d))[a-z][\w-]*"),
    re.compile(r"^\s*ADD\s+(?!.*--checksum)https?://(?!\S*(?:v?\d+\.\d+|[0-9a-f]{40}))\S+", re.M),
    re.compile(
        r"\brequests\.get\(\s*[\"']https?://(?!\S*(?:v?\d+\.\d+|[0-9a-f]{40}|localhost|127\.))[^\"']+\.(?:tar|zip|gz|whl|sh|bin)\b"
    ),
)


def _unpinned(contents: TaskContents) -> Iterator[Evidence]:
    for file in contents.files:
        is_build = file.name.startswith(("Dockerfile", "Containerfile")) or file.name.endswith(".def")
        is_script = file.suffix in (".sh", ".bash") and not file.file.startswith("README")
        if file.name.startswith("requirements") and file.suffix == ".txt" and not is_below(file.file, "solution"):
            yield from _requirements(file, contents)
        elif is_build or (is_script and not is_below(file.file, "solution")) or _is_test_program(file):
            yield from _in_script(file, is_build=is_build)


def _is_test_program(file: Content) -> bool:
    return is_below(file.file, "tests") and file.suffix == ".py"


def _in_script(file: Content, *, is_build: bool) -> Iterator[Evidence]:
    text = file.text
    stages = {name.lower() for _, name in _FROM.findall(text) if name} if is_build else set[str]()
    if is_build:
        for match in _FROM.finditer(text):
            if match[1].lower() not in stages | {"scratch"} and not _is_pinned_image(match[1], text):
                yield _at(file, match)
    is_checked = bool(_CHECKED.search(text))
    commands = re.sub(r"\\\n", "  ", text)  # as many characters, so that places stay; lines are counted in the text
    commands = re.sub(r"(?m)^\s*#.*$|(?<=\s)#\s.*$", lambda match: " " * len(match[0]), commands)
    if file.suffix != ".py":
        for match in _PIP.finditer(commands):
            if any(map(_is_unpinned_package, _pip_names(match[1]))):
                yield _at(file, match)
        for match in _UV.finditer(commands):
            if any(map(_is_unpinned_package, _UV_WITH.findall(match[1]))):
                yield _at(file, match)
        for match in _NPM.finditer(commands):
            names = [word for word in match[1].split() if not word.startswith(("-", ".", "/", "$"))]
            if match[0].startswith("npx"):
                names = names[:1] if "-y" in match[1] or "--yes" in match[1] else []
            if any(not re.search(r".@v?\d|^file:|\.tgz$|/", name.removeprefix("@")) for name in names):
                yield _at(file, match)
        for match in _CLONE.finditer(commands):
            is_old = re.search(
                r"--(?:branch|revision)[=\s]+\S*\d+\.\d+|-b\s+\S*\d+\.\d+|(?:--revision[=\s]+[0-9a-f]{7,})", match[1]
            )
            rest = commands[match.end() :]
            is_set = re.search(
                r"git\s+(?:-C\s+\S+\s+)?(?:checkout|reset\s+--hard|switch\s+--detach)\s+(?:-\S+\s+)*\S*(?:[0-9a-f]{7,40}|\d+\.\d+|\$)",
                rest,
            )
            is_remote = re.search(r"https?://|git@|ssh://|git://", match[1]) and not _LOCAL.search(match[1])
            if is_remote and not is_old and not is_set:
                yield _at(file, match)
        for match in _CURL.finditer(commands):
            if (
                not is_checked
                and not _LOCAL.search(match[1])
                and not _VERSION.search(match[1])
                and _is_download(commands, match)
            ):
                yield _at(file, match)
    for pattern in _OTHERS:
        yield from (_at(file, match) for match in pattern.finditer(commands))


def _is_download(commands: str, match: re.Match[str]) -> bool:
    """Return whether what is fetched is kept or run, and not only asked whether it answers."""
    line = commands[commands.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
    if re.search(r"\|\s*(?:sudo\s+)?(?:\w*sh|python3?|tar|gpg|apt-key|tee|gunzip|bunzip2|xz)\b|<\(|\$\(", line):
        return True
    return match[0].startswith("wget") or bool(re.search(r"\s-\w*[oO]\b|--output|--remote-name|>", line))


def _is_pinned_image(image: str, text: str) -> bool:
    if "$" in image:
        default = re.search(
            r"^\s*ARG\s+" + re.escape(re.sub(r"[${}]|:-.*", "", image.rpartition(":")[2])) + r"=(\S+)", text, re.M
        )
        return default is None or default[1].strip("\"'") != "latest"
    if "@sha256:" in image:
        return True
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag not in ("", "latest", "edge", "nightly", "main", "master", "rolling", "stable")


def _pip_names(words: str) -> Iterator[str]:
    skip = False
    for word in re.sub(r"\s#.*", "", words).split():
        name = word.strip("\"'")
        if skip or name.startswith("-"):
            skip = (
                name
                in (
                    "-r",
                    "-c",
                    "-e",
                    "-i",
                    "-f",
                    "-t",
                    "--requirement",
                    "--constraint",
                    "--editable",
                    "--index-url",
                    "--find-links",
                    "--extra-index-url",
                    "--target",
                    "--prefix",
                    "--python",
                    "-p",
                    "--root",
                    "--trusted-host",
                    "--platform",
                    "--with",
                )
                and not skip
            )
            continue
        if name != "\\":
            yield name


def _is_unpinned_package(name: str) -> bool:
    if (
        name.startswith((".", "/", "$", "file:", "~"))
        or name.endswith((".whl", ".gz", ".zip", ".txt", ".toml"))
        or "/" in name.partition("@")[0]
    ):
        is_git = name.startswith("git+")
        return is_git and not re.search(r"@(?:v?\d|[0-9a-f]{7,})", name)
    if re.match(r"^[\w.\[\],-]+\s*@\s*\S", name) and "==" not in name:
        return not re.search(r"@\s*(?:v?\d|.*(?:[0-9a-f]{7,40}|\d+\.\d+))", name)
    return (
        bool(re.match(r"^[A-Za-z]", name))
        and "==" not in name
        and name not in ("pip", "setuptools", "wheel", "uv", "poetry-core")
    )


def _requirements(file: Content, contents: TaskContents) -> Iterator[Evidence]:
    builds = "\n".join(
        other.text for other in contents.files if other.name.startswith("Dockerfile") or other.suffix == ".sh"
    )
    if file.name not in builds:
        return
    for number, line in enumerate(file.text.split("\n"), start=1):
        name = re.sub(r"\s*(?:#|;).*", "", line).strip()
        if name and not name.startswith("-") and _is_unpinned_package(name):
            yield at(file.file, number, line)


# -- paths of a machine ------------------------------------------------------------------------------------------------

_PATH = re.compile(
    r"(?<![\w.~}/])(?:/(?:home|Users)/(\w[\w.-]*)/|/(?:home|Users)/(\w[\w.-]*)(?=[\"'\s:])"
    r"|[A-Za-z]:\\{1,2}Users\\{1,2}(\w[\w. -]*)\\|/mnt/[c-z]/Users/(\w[\w.-]*)/)"
)
_USERS_OF_IMAGES = {
    *(
        "agent",
        "ubuntu",
        "user",
        "node",
        "vscode",
        "jovyan",
        "coder",
        "app",
        "appuser",
        "runner",
        "debian",
        "admin",
        "root",
    ),
    *(
        "Shared",
        "linuxbrew",
        "postgres",
        "git",
        "circleci",
        "gitpod",
        "sandbox",
        "nonroot",
        "dev",
        "username",
        "USER",
        "student",
        "oracle",
    ),
    *(
        "model",
        "worker",
        "service",
        "test",
        "tester",
        "testuser",
        "developer",
        "builder",
        "pptruser",
        "vagrant",
        "coq",
        "opam",
        "candidate",
    ),
}


def _author_paths(contents: TaskContents) -> Iterator[Evidence]:
    made = "\n".join(
        file.text for file in contents.files if file.name.startswith("Dockerfile") or file.name == "task.toml"
    )
    data = contents.instruction + "\n".join(
        file.text
        for file in contents.below("environment")
        if file.suffix not in _CONFIGS | _PROGRAMS and not file.name.startswith("Dockerfile")
    )
    makes = "\n".join(
        file.text
        for file in contents.files
        if is_environment(file.file) and (file.suffix in (".sh", ".bash") or file.name.startswith("Dockerfile"))
    )
    for file in contents.files:
        is_read = (
            file.suffix in _CONFIGS | _PROGRAMS or file.name.startswith("Dockerfile") or file.name == "instruction.md"
        )
        if not is_read or file.file.startswith("README"):
            continue
        for match in _PATH.finditer(file.text):
            user = next(name for name in match.groups() if name)
            is_windows_or_mac = "/home/" not in match[0]
            if user in _USERS_OF_IMAGES or user.startswith(("$", "<")):
                continue
            if match[0].strip("\"' ") in data and file.name != "instruction.md":
                continue
            if file.name == "instruction.md" and (not is_windows_or_mac or _is_subject(user, contents)):
                continue
            if not is_windows_or_mac and re.search(
                rf"(?:useradd|adduser|USER|user\s*=|usermod|chown|mkdir|install|WORKDIR|COPY|ADD)\b[^\n]*\b{re.escape(user)}\b",
                made + makes,
            ):
                continue
            yield _at(file, match)


def _is_subject(user: str, contents: TaskContents) -> bool:
    """Return whether a user's name is a part of the task's own files, beyond the instruction."""
    return any(re.search(rf"[/\\]{re.escape(user)}\b", file.text) for file in contents.below("environment"))


# -- secrets -----------------------------------------------------------------------------------------------------------

_SECRET = re.compile(
    r"(?P<known>\bAKIA[0-9A-Z]{16}\b|\bASIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_\w{50,}|\bglpat-[\w-]{20,}"
    r"|\bsk-(?:ant-|proj-|or-v1-|svcacct-)?[\w-]{20,}|\bxox[abprs]-[\w-]{20,}|\bAIza[\w-]{35}|\bhf_[A-Za-z0-9]{30,}\b|\bnpm_[A-Za-z0-9]{36}\b"
    r"|\b[rs]k_live_[A-Za-z0-9]{20,}|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bpypi-[\w-]{50,}|\bdop_v1_[a-f0-9]{64}\b|\bwandb_v1_\w{30,})"
    r"|(?P<name>\b[A-Z][A-Z0-9_]*(?:API_?KEY|SECRET_KEY|ACCESS_KEY|ACCESS_TOKEN|AUTH_TOKEN|API_TOKEN))\s*[=:]\s*[\"']?(?P<value>[A-Za-z0-9_/+-]{20,}={0,2})"
    r"|(?P<key>-----BEGIN (?:RSA |EC |DSA |OPENSSH |ENCRYPTED )?PRIVATE KEY-----)"
    r"|://[\w.-]+:(?P<password>[^\s/@:\"'$<{]{8,})@[\w.-]+\.\w{2,}"
)
_PLACEHOLDER = re.compile(
    r"example|fake|dummy|test|placeholder|sample|changeme|your|xxxx|0{6}|1234|abcd|redacted|mock|not.?real|secret|password|invalid",
    re.I,
)
_SUBJECT = re.compile(
    r"\b(?:secrets?|credentials?|api[ _-]?keys?|tokens?|sanitiz\w+|leak\w*|private keys?|ssh|tls|certificates?)\b", re.I
)
_MIN_ENTROPY = 3.2
"""Bits a character: random keys have above 4, words and patterns less."""


def _secrets(contents: TaskContents) -> Iterator[Evidence]:
    is_subject = bool(_SUBJECT.search(contents.instruction))
    by_folder = {folder: "\n".join(file.text for file in contents.below(folder)) for folder in ("environment", "tests")}
    names = {file.file for file in contents.files}
    for file in (*contents.files, *contents.hidden):
        is_material = is_environment(file.file) or file.file.endswith("instruction.md")
        for match in _SECRET.finditer(file.text):
            value = match["known"] or match["value"] or match["password"] or match["key"]
            if match["key"] is not None:
                stem = file.file.rpartition(".")[0] or file.file
                has_public = any(
                    f"{stem}{end}" in names or f"{file.file}{end}" in names for end in (".crt", ".pem", ".cert", ".pub")
                )
                if (
                    (is_material and (is_subject or has_public))
                    or is_below(file.file, "tests")
                    or "\\n" in file.text[match.end() : match.end() + 2]
                ):
                    continue
            elif _PLACEHOLDER.search(value) or _entropy(value) < _MIN_ENTROPY:
                continue
            elif (is_material and is_subject) or all(value in text for text in by_folder.values()):
                continue  # planted: the task is about it
            shown = match["key"] or f"{value[:6]}… ({len(value)} characters)"
            line = file.line or file.text.count("\n", 0, match.start()) + 1
            how = "" if file.carrier is Carrier.FILE else f" ({file.carrier.value})"
            yield at(file.file, line, f"{match['name'] + '=' if match['name'] else ''}{shown}{how}")


def _entropy(text: str) -> float:
    counts = Counter(text)
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values())


def _at(file: Content, match: re.Match[str]) -> Evidence:
    line = file.text.count("\n", 0, match.start()) + 1
    return at(file.file, line, match[0])
