"""Dockerfiles as BuildKit's parser reads them: instructions, options, here-documents."""

import pytest

from harbor_gym.sandboxes.dockerfile import Instruction, instructions

EMBEDDED = "from redis import Redis\nFROM inside:1\nCOPY --from=inside:2 /a /b\n# remark\nRUN x \\\n"
"""A program in a here-document, with lines that look like instructions."""


def texts(text: str) -> list[str]:
    return [instruction.text for instruction in instructions(text)]


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
    for written in (text, text.replace("\n", "\r\n")):
        found = list(instructions(written))
        assert [instruction.name for instruction in found][-2:] == ["FROM", "COPY"]
        assert len(found) == 4
        content = found[1].documents[0].content
        assert content.splitlines()[:2] == ["from redis import Redis", "FROM inside:1"]
        assert ("\r" in content) == ("\r" in written)
        assert found[2].line == text[: text.index("FROM y")].count("\n") + 1


def test_a_document_keeps_its_words_and_whether_it_is_expanded() -> None:
    text = "COPY <<a <<-'b' <<\"c\" <<d\\e /\n $x \\y\na\n\t\tone\n\t  two\n\tb\nc\nde\n"
    (instruction,) = instructions(text)
    found = [(document.name, document.content, document.is_expanded) for document in instruction.documents]
    assert found == [("a", " $x \\y\n", True), ("b", "one\n  two\n", False), ("c", "", False), ("de", "", False)]
    assert instruction.documents[1].source == "\t\tone\n\t  two\n\tb"
    (instruction,) = instructions("RUN <<-a\r\n\tone\r\n\ta\r\n")
    assert instruction.documents[0].content == "one\r\n"


@pytest.mark.parametrize(
    "line",
    [
        "RUN cat <<< word",
        "RUN echo $((1<<3))",
        "RUN echo $(( 1 << 3 ))",
        'RUN echo "<<EOF"',
        "RUN echo '<<EOF'",
        'RUN ["cat", "<<EOF"]',
        "RUN cat<<EOF",
        "USER <<EOF",
        "RUN echo \\<<EOF",
    ],
)
def test_what_only_looks_like_a_heredoc_hides_nothing(line: str) -> None:
    assert texts(f"FROM x\n# RUN <<EOF\n{line}\nFROM y\nRUN EOF\nEOF\n") == ["FROM x", line, "FROM y", "RUN EOF", "EOF"]


def test_continued_lines_are_one_instruction_and_keep_their_line() -> None:
    text = "FROM --platform=linux/amd64 \\\n  # remark\n\n  debian:12 \\  \n  AS one\nRUN echo \\\nFROM two\nFROM one\n"
    found = list(instructions(text))
    assert [(instruction.name, instruction.line) for instruction in found] == [("FROM", 1), ("RUN", 6), ("FROM", 8)]
    assert found[0].rest == "debian:12   AS one"
    assert texts("FROM a\nRUN x \\\\\nFROM b\n# c \\\nFROM d") == ["FROM a", "RUN x \\\\", "FROM b", "FROM d"]
    assert texts("FROM deb\\\nian:12 AS a\n") == ["FROM debian:12 AS a"]


def test_the_escape_directive_changes_what_continues_a_line() -> None:
    text = "\ufeff# syntax=docker/dockerfile:1\n# escape=`\nFROM a `\n  AS one\nRUN dir C:\\\nFROM b\n"
    assert texts(text) == ["FROM a   AS one", "RUN dir C:\\", "FROM b"]
    assert texts("\n# escape=`\nFROM a\nRUN x \\\nFROM b\n") == ["FROM a", "RUN x FROM b"], "too late"


@pytest.mark.parametrize(
    ("text", "flags", "rest"),
    [
        ("COPY --from=a --chown=1:1 b c", [("from", "a"), ("chown", "1:1")], "b c"),
        ("COPY --link b --from=a", [("link", "")], "b --from=a"),
        ('RUN --mount=type=bind,target="/a b" x', [("mount", "type=bind,target=/a b")], "x"),
        ("RUN --mount='type=x,target=/a' --net=none -x", [("mount", "type=x,target=/a"), ("net", "none")], "-x"),
        ("ONBUILD COPY --from=a b c", [], "COPY --from=a b c"),
        ("run x", [], "x"),
        ("RUN", [], ""),
    ],
)  # fmt: skip
def test_options_are_apart_from_the_rest(text: str, flags: list[tuple[str, str]], rest: str) -> None:
    instruction = Instruction(text, 1)
    assert (instruction.flags, instruction.rest) == (flags, rest)


@pytest.mark.parametrize(
    ("rest", "words"),
    [('["a", "b c"]', ["a", "b c"]), ("[]", []), ("[ -f x ]", None), ("[1]", None), ('"a"', None), ("['a']", None)],
)
def test_only_a_list_of_words_is_json(rest: str, words: list[str] | None) -> None:
    assert Instruction(f"CMD {rest}", 1).json == words
