"""Words of a Dockerfile and patterns of ignore files. Source of each value: Docker 28.5."""

import os
from pathlib import Path

import pytest

from harbor_gym.sandboxes.images.context import Context, changed_mode
from harbor_gym.sandboxes.images.ignored import read_patterns
from harbor_gym.sandboxes.images.words import expand, split_words

VARIABLES = {"V": "a.b.c", "P": "/usr/lib/x.tar.gz", "S": "s", "E": "", "STAR": "a*b"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("$V${V}x$NONE", "a.b.ca.b.cx"),
        ("${A-unset}${S+set}${E-none}${E:-empty}${E+there}${E:+no}", "unsetsetemptythere"),
        ("${V#*.} ${V##*.} ${V%.*} ${V%%.*} ${V#x} ${V%?}", "b.c c a.b a a.b.c a.b."),
        ("${V/./-} ${V//./-} ${V/b/} ${P//\\//_} ${V//?/x}", "a-b.c a-b-c a..c _usr_lib_x.tar.gz xxxxx"),
        ("${N:-${M:-$V}}${S:+${V%.c}}", "a.b.ca.b"), ("${STAR%\\**} ${STAR##*\\*}", "a b"),
        ("'$V'\"$V\"\\$V", "$Va.b.c$V"), (r'"a\b\"\$\\" \a\b', r'a\b"$\ ab'), ("${N:-'a b'} ${N:-\"$S\"}", "a b s"),
        ("${V//*/all} ${V/*/once} ${E//*/x} ${V//b*/-}", "all once x a.-"),
        ("$", "$"), ("a$ b", "a$ b"), ("$1x$S2", "x"), ("${P##*/}", "x.tar.gz"), ("${S:?no}${E?no}", "s"),
    ],
)  # fmt: skip
def test_variables_are_replaced_as_docker_replaces_them(word: str, expected: str) -> None:
    assert expand(word, VARIABLES) == expected


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("${V", "bad substitution"), ("${V:-a", "'}' is missing"), ("${}", "bad substitution"), ("${V^^}", "not known"),
        ("${V:#a}", "not known"), ("'a", "closing '"), ('"a', 'closing "'), ("${E:?is bad}", "E: is bad"),
        ("${N?}", "not allowed to be unset"), ("${V/a}", "'/' is missing"), ("${V#\\a}", "invalid escape"),
    ],
)  # fmt: skip
def test_what_docker_refuses_is_refused(word: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        expand(word, VARIABLES)


def test_a_document_keeps_its_quotes_and_another_escape_is_one() -> None:
    assert expand("'$S' \"$S\" \\$S \\n \\\\", VARIABLES, is_document=True) == "'s' \"s\" $S n \\"
    assert expand("`$S \\$S", VARIABLES, escape="`") == "$S \\s"
    assert split_words("a=1 b=\"2 3\" c='4 5' d=6\\ 7 e") == ["a=1", 'b="2 3"', "c='4 5'", "d=6\\ 7", "e"]


@pytest.mark.parametrize(
    ("lines", "kept", "left"),
    [
        (["*", "!src/**/*.py"], ["src/a.py", "src/b/c.py"], ["x", "src", "src/b", "src/b/c.txt"]),
        (["**/a", "!sub/a"], ["sub/a", "b"], ["a", "x/a", "x/y/a"]),
        (["/a/", "./b", "c/../d"], ["c", "x/a"], ["a", "a/x", "b", "d"]),
        (["a/**", "!a/b"], ["a", "a/b", "a/b/c"], ["a/c"]),
        (["**", "!**/*.md"], ["x.md", "a/b.md"], ["a", "x"]),
        (["a?", "[b-d]", "e[^f]", "\\*"], ["a", "ef", "x"], ["ab", "c", "ee", "*"]),
        ([" # word", "#no", "", "  x  ", "! x "], ["x", "no"], ["# word"]),
        (["**log"], ["logs"], ["log", "xlog", "a/xlog"]),
        (["**.bak", "!end"], ["end", "end/x"], ["end/x.bak", "x.bak"]),
    ],
)  # fmt: skip
def test_the_last_pattern_that_matches_decides(lines: list[str], kept: list[str], left: list[str]) -> None:
    patterns = read_patterns(lines)
    assert {path: patterns.match(path) for path in (*kept, *left)} == {
        **dict.fromkeys(kept, False),
        **dict.fromkeys(left, True),
    }


@pytest.mark.parametrize("line", ["!", "[", "a[b"])
def test_a_line_that_is_no_pattern_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"pattern"):
        read_patterns([line])


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("u+x,go-w", 0o666, 0o744), ("+x", 0o644, 0o755), ("a=rX", 0o640, 0o444), ("a=rX", 0o740, 0o555),
        ("g=u,o=", 0o741, 0o770),
        ("u=rwxs,g=u,o=,+t", 0o644, 0o5770), ("ug+s", 0o755, 0o6755), ("u=rw,u-w", 0o777, 0o477),
        ("g-s", 0o2755, 0o755), ("+w", 0o444, 0o666), ("=r", 0o1755, 0o1444), ("o=r", 0o1755, 0o1754),
        ("o+ts", 0o755, 0o755),
        ("u=g", 0o4750, 0o4550), ("a-x,+X", 0o755, 0o755),
        ("4755", 0o600, 0o4755), ("", 0o640, 0o640), ("0", 0o777, 0),
    ],
)  # fmt: skip
def test_modes_are_changed_as_chmod_changes_them(mode: str, old: int, new: int) -> None:
    assert changed_mode(mode)(old, False) == new


@pytest.mark.parametrize("mode", ["u", "rwx", "999", "77777", "u+z", "u+x,"])
def test_what_is_no_mode_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="is no mode"):
        changed_mode(mode)


def test_what_is_below_an_ignored_directory_is_not_read(tmp_path: Path) -> None:
    for number, exceptions in enumerate(["", "!large/b/kept\n"]):
        directory, folder = tmp_path / f"environment-{number}", tmp_path / f"folder-{number}"
        (directory / "large" / "b").mkdir(parents=True)
        (directory / "large" / "b" / "kept").write_text("x")
        folder.mkdir()
        (directory / ".dockerignore").write_text(f"large\n{exceptions}.dockerignore\n")
        context = Context(directory, folder)
        assert [path.name for path in context.directory.rglob("*")] == (["large", "b", "kept"] if exceptions else [])


def test_a_context_is_without_the_ignored_files_and_never_leaves_itself(tmp_path: Path) -> None:
    directory, folder = tmp_path / "environment", tmp_path / "folder"
    (directory / "a" / "b").mkdir(parents=True)
    folder.mkdir()
    for name in ("a/x.py", "a/b/y.py", "a/z.txt", "top"):
        (directory / name).write_text(name)
    (directory / "out").symlink_to("../../../etc/passwd")
    (directory / "in").symlink_to("/a/b")
    (directory / "loop").symlink_to("loop")
    (directory / ".dockerignore").write_text("*\n!a/**/*.py\n!out\n!in\n!loop\n")
    os.utime(directory / "a/x.py", (1000, 1000))
    (directory / "a").chmod(0o555)
    try:
        context = Context(directory, folder)
    finally:
        (directory / "a").chmod(0o755)
    found = sorted(str(path.relative_to(context.directory)) for path in context.directory.rglob("*"))
    assert found == ["a", "a/b", "a/b/y.py", "a/x.py", "in", "loop", "out"]
    assert (context.directory / "a/x.py").stat().st_mtime == 1000  # make would build anew what depends on a newer file
    assert context.find("a/*") == ["a/b", "a/x.py"]
    assert context.find("*/**/y.py") == ["a/b/y.py"]
    assert context.find("in/*") == ["in/y.py"]
    assert context.find("i*/y.py") == []
    assert context.resolve("in") == context.directory / "a" / "b"
    assert context.resolve("out") is None
    assert context.resolve("loop") is None
    assert context.find("top") == ["top"]
    assert context.resolve("top") is None
