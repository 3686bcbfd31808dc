"""Dockerfiles as they are read before a builder sees them: which images they stand on, where their text is no text."""

import pytest

from harbor_gym.sandboxes import dockerfile

EMBEDDED = "from redis import Redis\nFROM inside:1\nCOPY --from=inside:2 /a /b\n# remark\nRUN x \\\n"
"""A program in a here-document, with lines that look like instructions."""


def test_bases_are_found_behind_arguments_stages_and_copies() -> None:
    text = """\
ARG TAG=12
ARG NAME="debian"
FROM --platform=linux/amd64 ${NAME}:${TAG} AS Build
ARG TAG=ignored-here
FROM scratch AS none
FROM build
COPY --from=build /a /a
COPY --from=0 /a /a
COPY --chown=1:1 --from=ghcr.io/astral-sh/uv:1 /uv /uv
from ${MISSING:-ubuntu}:24.04
FROM debian:12
"""
    assert dockerfile.base_references(text) == ["debian:12", "ghcr.io/astral-sh/uv:1", "ubuntu:24.04"]
    replaced = dockerfile.replace_references(
        text, {"debian:12": "localhost/x", "ghcr.io/astral-sh/uv:1": "localhost/y"}
    )
    assert "FROM --platform=linux/amd64 localhost/x AS Build\n" in replaced
    assert "COPY --chown=1:1 --from=localhost/y /uv /uv\n" in replaced
    assert replaced.endswith("FROM localhost/x\n")
    assert replaced.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ARG A\nFROM ${A:-x}:1", ["x:1"]),
        ("ARG A=\nFROM x${A:-1}${A-2}", ["x1"]),
        ("ARG A=1\nFROM x${A:+yes}${B:+no}${B-2}", ["xyes2"]),
        ("ARG A=a B='$A' C=\"$A:1\"\nFROM $C", ["a:1"]),
        ("ARG A='$B' B=b\nFROM x:$A", ["x:$B"]),
        ("FROM x AS a\nARG T=2\nFROM y:$T", ["x", "y:"]),
        ("FROM x AS a\nFROM y AS b\nCOPY --from=1 a b\nCOPY --from=A a b", ["x", "y"]),
        ("FROM x\nCOPY --from=3 a b\nCOPY a --from=c b", ["x", "3"]),
        ("FROM 0\nFROM 0 AS last", ["0"]),
        ("FROM x\nRUN --mount=type=bind,from=y:1,target=/y --mount=from=z:1 ls --mount=from=no", ["x", "y:1", "z:1"]),
        ("FROM x\nCOPY --from=$STAGE a b", ["x"]),
        ("\ufeffFROM x\r\nFROM y\r\n", ["x", "y"]),
        ("# FROM no\n  FROM x", ["x"]),
        ("FROM x\nENV A=<<EOF\nFROM y\nEOF", ["x", "y"]),
        ("FROM", []),
        ("", []),
    ],
)
def test_references_are_read_as_a_builder_reads_them(text: str, expected: list[str]) -> None:
    assert dockerfile.base_references(text) == expected


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("RUN <<EOF", "EOF"),
        ("RUN cat << 'EOF' > /x.py", "EOF"),
        ('RUN cat <<"EOF" > /x.py && true', "EOF"),
        ("RUN <<-EOF", "\t\tEOF"),
        ("run python3 3<<eo'f'", "eof"),
        ("RUN <<'one two'", "one two"),
        ("COPY <<x.py /dest/", "x.py"),
        ("COPY --chown=1 <<A <<-'B' /dest/", "FROM first:1\nA\nFROM second:1\n\tB"),
        ("RUN ls \\\n  # remark\n\n  && cat <<EOF", "EOF"),
        ("ONBUILD RUN <<EOF", "EOF"),
        ("ADD <<EOF /x", " EOF\nEOFX\nEOF"),
    ],
)
def test_the_body_of_a_heredoc_is_no_instruction(opening: str, closing: str) -> None:
    text = f"FROM x\n{opening}\n{EMBEDDED}{closing}\nFROM y\nCOPY --from=z a b\n"
    assert dockerfile.base_references(text) == ["x", "y", "z"]
    assert dockerfile.has_heredoc(text)
    replaced = dockerfile.replace_references(text, {"inside:1": "no", "inside:2": "no", "y": "new"})
    assert replaced == text.replace("FROM y", "FROM new")
    assert dockerfile.base_references(text.replace("\n", "\r\n")) == ["x", "y", "z"]


@pytest.mark.parametrize(
    "line",
    [
        "RUN cat <<< word",
        "RUN echo $((1<<3))",
        "RUN echo $(( 1 << 3 ))",
        "# RUN <<EOF",
        'RUN echo "<<EOF"',
        "RUN echo '<<EOF'",
        'RUN ["cat", "<<EOF"]',
        "RUN cat<<EOF",
        "USER <<EOF",
        "RUN echo \\<<EOF",
    ],
)
def test_what_only_looks_like_a_heredoc_hides_nothing(line: str) -> None:
    text = f"FROM x\n{line}\nFROM y\nRUN EOF\nEOF\n"
    assert dockerfile.base_references(text) == ["x", "y"]
    assert not dockerfile.has_heredoc(text)


def test_continued_lines_are_one_instruction_and_keep_their_places() -> None:
    text = "FROM --platform=linux/amd64 \\\n  # remark\n\n  debian:12 \\  \n  AS one\nRUN echo \\\nFROM two\nFROM one\n"
    assert dockerfile.base_references(text) == ["debian:12"]
    assert dockerfile.replace_references(text, {"debian:12": "x"}) == text.replace("debian:12", "x")
    assert dockerfile.base_references("FROM a\nRUN x \\\\\nFROM b\n# c \\\nFROM d") == ["a", "b", "d"]
    split = "FROM deb\\\nian:12 AS a\nRUN x\n"
    assert dockerfile.replace_references(split, {"debian:12": "y"}) == "FROM y\\\n AS a\nRUN x\n"


def test_the_escape_directive_changes_what_continues_a_line() -> None:
    text = "# syntax=docker/dockerfile:1\n# escape=`\nFROM a `\n  AS one\nRUN dir C:\\\nFROM b\nFROM one\n"
    assert dockerfile.base_references(text) == ["a", "b"]
    assert dockerfile.base_references("\n# escape=`\nFROM a\nRUN x \\\nFROM b\n") == ["a"], "too late"
