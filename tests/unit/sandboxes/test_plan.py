"""The Dockerfile that buildah gets in a task's place."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from harbor_gym.errors import TaskError, TaskUnsupportedError
from harbor_gym.sandboxes.images.context import Context, pick
from harbor_gym.sandboxes.images.plan import LookNeeded, Plan, StageStart, planned, unknown_name
from harbor_gym.sandboxes.images.recipe import read

ENV = ("PATH=/bin",)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    directory = tmp_path / "environment"
    (directory / "dir").mkdir(parents=True)
    for name in ("one", "two", "dir/x", "x[1]$y"):
        (directory / name).write_text(name)
    (tmp_path / "folder").mkdir()
    return Context(directory, tmp_path / "folder")


def plan(text: str, context: Context, bases: Mapping[str, StageStart] | None = None) -> Plan:
    recipe = read(text)
    return planned(recipe, bases or dict.fromkeys(recipe.images, StageStart(env=ENV)), {"a": "local/a"}, context)


def lines(text: str, context: Context, bases: Mapping[str, StageStart] | None = None) -> list[str]:
    """Return what is written after FROM."""
    return [line for line in plan(text, context, bases).text.splitlines() if not line.startswith("FROM")]


def made(owner: str, place: str) -> str:
    return f'COPY --chown={owner} --from=harbor-gym-empty ["/", "{place}/"]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WORKDIR /b\nWORKDIR c", [made("0:0", "/b"), "WORKDIR /b", "WORKDIR /b/c"]),
        ("WORKDIR /b\nRUN x", ["WORKDIR /b", "RUN x"]),
        ("USER d:e\nWORKDIR /b c", ["USER d:e", made("d:e", "/b c"), "WORKDIR /b c"]),
        ("WORKDIR /b\nUSER d\nRUN x", [made("0:0", "/b"), "WORKDIR /b", "USER d", "RUN x"]),
        ("ENV B=/b\nWORKDIR $B\nRUN x", ['ENV B="/b"', "WORKDIR /b", "RUN x"]),
        ("WORKDIR /", ["WORKDIR /"]),
    ],
)
def test_a_workdir_that_buildah_would_not_make_so_is_made_before(
    text: str, expected: list[str], context: Context
) -> None:
    assert lines(f"FROM a\n{text}\n", context) == expected


def test_a_base_counts_with_its_settings(context: Context) -> None:
    bases = {"a": StageStart("dev", "/base", ("bash", "-c"), env=(*ENV, "V=v"))}
    text = "FROM a\nWORKDIR b\nRUN --mount=target=c,source=$V x\nCMD $V\nUSER ${V}\n"
    assert lines(text, context, bases) == [
        made("dev", "/base/b"),
        "WORKDIR /base/b",
        "RUN --mount=target=/base/b/c,source=v,type=bind x",
        'CMD ["bash", "-c", "$V"]',
        "USER v",
    ]


def test_volumes_are_kept_from_buildah(context: Context) -> None:
    text = 'FROM a AS s\nENV V=/v\nVOLUME $V\nFROM s\nVOLUME /y \\\n  /z\nVOLUME ["/a b"]\n'
    assert plan(text, context).volumes == ("/v", "/y", "/z", "/a b")
    assert "VOLUME" not in plan(text, context).text


def test_stages_go_by_number_and_the_unreached_are_gone(context: Context) -> None:
    text = "FROM b AS no\nRUN no\nFROM a AS Yes\nRUN y\nFROM yes\n"
    text += "COPY --from=YES /x /y\nRUN --mount=from=Yes,target=/z z\n"
    assert plan(text, context).text == (
        'FROM local/a AS s1\nRUN y\nFROM s1 AS s2\nCOPY --from=s1 ["/x", "/y"]\n'
        "RUN --mount=from=s1,target=/z,type=bind z\n"
    )


def test_onbuild_of_a_stage_is_written_out(context: Context) -> None:
    shell = 'SHELL ["/bin/bash", "-c"]'
    text = f"FROM a AS s\nONBUILD USER d\nONBUILD {shell}\nFROM s AS t\nWORKDIR /b\nCMD x\nFROM t\nONBUILD RUN y\n"
    expected = ["USER d", shell, made("d", "/b"), "WORKDIR /b", 'CMD ["/bin/bash", "-c", "x"]', "ONBUILD RUN y"]
    assert lines(text, context) == expected


def test_onbuild_of_a_base_is_written_out(context: Context) -> None:
    shell = 'SHELL ["/bin/bash", "-c"]'
    triggers = ("ENV A=b", "USER d", "WORKDIR /w", shell, "CMD x", "RUN <<EOF\nz\nEOF")
    expected = ['ENV A="b"', "USER d", made("d", "/w"), "WORKDIR /w", shell, 'CMD ["/bin/bash", "-c", "x"]']
    assert lines("FROM a\nUSER $A\n", context, {"a": StageStart(triggers=triggers, env=ENV)}) == [
        *expected, 'RUN ["/bin/bash", "-c", "z\\n"]', "USER b",
    ]  # fmt: skip
    with pytest.raises(TaskError, match=r"line 2, .*BAD is no instruction"):
        plan("# a comment\nFROM a\n", context, {"a": StageStart(triggers=("BAD x",), env=ENV)})


def test_an_argument_hides_a_variable_for_a_run_alone(context: Context) -> None:
    text = (
        "ARG g=1\nFROM a AS s\nARG g h=$g.h i TARGETARCH\nENV h=env\nRUN x\nARG h=2\nRUN y\nFROM s\nRUN z\nENV h=$h$g\n"
    )
    hidden = ['ENV h="2"', "RUN y", 'ENV h="env"']
    assert lines(text, context) == [
        'ARG g="1"', 'ARG h="1.h"', "ARG TARGETARCH", 'ENV h="env"', "RUN x", *hidden,
        'ARG g="1"', "ARG TARGETARCH", "RUN z", 'ENV h="env1"',
    ]  # fmt: skip


def test_values_are_written_so_that_nothing_in_them_is_read_again(context: Context) -> None:
    text = r"""FROM a
ENV A='$x "y"' B=a\$b C="a\\b"
ENV D e  f
LABEL "k $A"=v
"""
    assert lines(text, context) == [
        r'ENV A="\$x \"y\"" B="a\$b" C="a\\b"', r'ENV D="e  f"', r'LABEL "k \$x \"y\""="v"',
    ]  # fmt: skip


def test_sources_are_paths_in_the_context(context: Context) -> None:
    text = r"""FROM a
WORKDIR /w
RUN x
COPY o* "two" sub/
COPY ["x[[]*", "."]
COPY nothing* /n/
ADD ../dir/./x /added
COPY --link --chown=5 dir/ ..
"""
    assert lines(text, context)[2:] == [
        'COPY --from=harbor-gym-context ["/one", "/two", "/w/sub/"]',
        r'COPY --from=harbor-gym-context ["/x\\\\[1]\\$y", "/w/"]',
        'COPY --from=harbor-gym-context ["/dir/x", "/added"]',
        'COPY --from=harbor-gym-context --chown=5 ["/dir", "/"]',
    ]


def test_documents_and_modes_are_made(context: Context) -> None:
    documents = "COPY --chmod=4700 <<x <<'y' /tmp/\n$A \\$A \\b 'c'\nx\n$A\ny\n"
    text = f"FROM a\nENV A=b\n{documents}COPY --chmod=u=rwx,go= dir one /tmp/\n"
    assert lines(text, context)[1:] == [
        'COPY --from=harbor-gym-made ["/1/x", "/1/y", "/tmp/"]', 'COPY --from=harbor-gym-made ["/2/", "/tmp/"]',
    ]  # fmt: skip
    assert (context.made / "1" / "x").read_text() == "b $A b 'c'\n"
    assert (context.made / "1" / "y").read_text() == "$A\n"
    modes = [(context.made / path).stat().st_mode & 0o7777 for path in ("1/x", "2/x", "2/one")]
    assert modes == [0o4700, 0o700, 0o700]


def test_documents_of_a_run_are_its_command(context: Context) -> None:
    text = "FROM a\nRUN <<x\necho <y\nx\nRUN <<x\n#!/bin/z\nx\nRUN cat <<x >/y\n$A\nx\n"
    assert lines(text, context) == [
        r'RUN ["/bin/sh", "-c", "echo \u003cy\n"]',
        'RUN --mount=type=bind,from=harbor-gym-made,source=/1,target=/dev/pipes ["/bin/sh", "-c", "/dev/pipes/x"]',
        r'RUN ["/bin/sh", "-c", "cat \u003c\u003cx >/y\n$A\nx"]',
    ]


def test_a_very_long_command_is_folded(context: Context) -> None:
    command = "echo " + "word " * 20_000
    text = plan(f"FROM a\nRUN {command}\n", context).text
    assert all(len(line) < 1 << 16 for line in text.splitlines())
    (instruction,) = read(text).stages[0].instructions
    assert instruction.rest == command.strip()


def test_directories_that_a_mode_is_for_are_looked_for_first(context: Context) -> None:
    text = "FROM a\nRUN x\nCOPY --chmod=700 one /p/q/\n"
    with pytest.raises(LookNeeded) as caught:
        plan(text, context)
    assert (caught.value.path, caught.value.plan.text) == ("/p/q", "FROM local/a AS s0\nRUN x\n")
    recipe, bases = read(text), {"a": StageStart(env=ENV)}
    found = planned(recipe, bases, {}, context, directories={caught.value.key: "/p"}).text.splitlines()
    assert found[-2:] == [
        'COPY --from=harbor-gym-made ["/1/", "/p/"]', 'COPY --from=harbor-gym-made ["/2/one", "/p/q/"]',
    ]  # fmt: skip
    assert (context.made / "1" / "q").stat().st_mode & 0o777 == 0o700


def test_whether_a_source_of_another_image_is_a_directory_is_asked_of_that_image(context: Context) -> None:
    text = "FROM a AS s\nRUN x\nFROM a\nRUN y\nCOPY --from={} --chmod=700 d /p/q\n"
    for name, of, built in (("s", 0, "FROM local/a AS s0\nRUN x\n"), ("local/b", "local/b", "")):
        with pytest.raises(LookNeeded) as caught:
            plan(text.format(name), context, {"a": StageStart(env=ENV)})
        assert (caught.value.of, caught.value.path, caught.value.plan.text) == (of, "/d", built)


@pytest.mark.parametrize("line", ["COPY one /b/.wh.c", "ADD one /.wh./", "WORKDIR /b/.wh..wh..opq/c"])
def test_a_target_that_a_layer_would_take_for_a_deletion_is_refused(line: str, context: Context) -> None:
    with pytest.raises(TaskUnsupportedError, match=r"line 2: /.*\.wh\. is a deletion"):
        plan(f"FROM a\n{line}\n", context)


def test_the_variable_of_a_secret_that_is_not_given_is_empty(context: Context) -> None:
    found = plan(
        "FROM a\nARG V=T\nRUN --mount=type=secret,id=x,env=S --mount=type=secret,id=y,env=$V echo $S\nRUN x\n", context
    )
    assert found.text.splitlines()[-2:] == ['RUN ["env", "S=", "T=", "/bin/sh", "-c", "echo $S"]', "RUN x"]


def test_a_pattern_without_files_makes_no_directory(context: Context) -> None:
    text = plan("FROM a\nCOPY --chmod=700 none* /x/y/\n", context).text  # it asks for no part of the path, either
    assert "/x" not in text


def test_names_that_the_image_does_not_know_are_roots(context: Context) -> None:
    said = 'looking up UID/GID for "nobody2:crew": determining run uid: user: unknown user'
    assert unknown_name(said) == "u:nobody2"
    assert unknown_name(said.replace("uid", "gid")) == "g:crew"
    assert unknown_name("looking up") == ""
    lines = "COPY --chown=u:g one /", "COPY --chown=v:g one /", "RUN adduser u", "COPY --chown=u:g one /"
    recipe, bases = read("\n".join(["FROM a", *lines, ""])), {"a": StageStart(env=ENV)}
    text = planned(recipe, bases, {}, context, unknown={(2, "u:u"), (2, "g:g")}).text
    assert re.findall(r"--chown=(\S+)", text) == ["0", "v", "u:g"]  # the RUN may have made both


@pytest.mark.parametrize(
    ("line", "place", "why"),
    [
        ("NOTHING x", "line 2, column 1", "NOTHING is no instruction"),
        ("COPY one", "line 2, column 1", "needs a source and a destination"),
        ("COPY --chmod=rwx one /tmp/", "line 2, column 1", "is no mode"),
        ("COPY --from=a --chmod=rwx one /tmp/", "line 2, column 15", "is no mode"),
        ("COPY --chmod=u=x none /tmp/", "line 2, column 1", "none is not in the build context"),
        ("ENV A=b c", "line 2, column 9", "c has no '='"),
        ("USER ${A", "line 2, column 6", "missing|bad"),
        ("RUN --mount=type=secret,id=x,required=true y", "line 2, column 18", "no secret is given"),
        ("RUN --mount=type=tmpfs,target=/x,size=big y", "line 2, column 39", "big is no size"),
        ("COPY [x /tmp/", "line 2, column 1", "a bracket is not closed"),
        ("SHELL x", "line 2, column 7", "takes a JSON list"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(line: str, place: str, why: str, context: Context) -> None:
    with pytest.raises(TaskError, match=rf"({place}): .*({why}).*--env docker"):
        plan(f"FROM a\n{line}\n", context)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("0/made/1/x[1]", ['COPY --from=harbor-gym-picked --chown=5 ["/0/made/1/x\\\\\\\\[1]", "/b"]']),
        ("0/made/1/", ['COPY --from=harbor-gym-picked --chown=5 ["/0/made/1/", "/b/"]']),
        ("", []),
    ],
)
def test_files_of_another_stage_with_a_symbolic_mode_are_picked_first(
    answer: str, expected: list[str], context: Context
) -> None:
    text = "FROM a AS s\nRUN x\nFROM a\nCOPY --from=s --chmod=u=x --chown=5 --exclude=*.o /a* /b\n"
    with pytest.raises(LookNeeded) as caught:
        plan(text, context)
    assert (caught.value.of, caught.value.plan.text) == (0, "FROM local/a AS s0\nRUN x\n")
    assert caught.value.pick == {"sources": ["/a*"], "mode": "u=x", "excluded": ["*.o"]}
    bases = {"a": StageStart(env=ENV)}
    found = planned(read(text), bases, {}, context, directories={caught.value.key: answer}).text.splitlines()
    assert found[3:] == expected


def test_of_an_image_its_own_files_are_picked(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / ".dockerignore").write_text("*")
    for name in ("bin/x", "bin/y.o"):
        (root / name).write_text(name)
        (root / name).chmod(0o644)
    (root / "sbin").symlink_to("/bin")
    (root / "tool").symlink_to("/sbin/x")
    for number, (sources, expected, modes) in enumerate([
        (["/tool"], "1/tool", {"tool": 0o755}),
        (["/sbin"], "1/", {"x": 0o755}),
        (["/*bin/?"], "1/x", {"x": 0o755}),
        (["/none*"], "", {}),
    ]):  # fmt: skip
        place = tmp_path / "picked" / str(number)
        assert pick(root, place, sources=sources, mode="+x", excluded=["*.o"]) == expected
        assert {path.name: path.stat().st_mode & 0o7777 for path in place.glob("made/1/*")} == modes
    with pytest.raises(FileNotFoundError, match="none is not in the image"):
        pick(root, tmp_path / "last", sources=["/none"], mode="+x", excluded=[])


def test_each_step_of_buildah_leads_to_the_tasks_instruction(context: Context) -> None:
    found = plan("FROM a AS s\nENV A=b\n\nRUN x\nFROM a\nCOPY --from=s /x /y\n", context)
    told = [found.origin(line) for line in ("[1/2] STEP 3/3: RUN x", "[2/2] STEP 2/2: COPY", "STEP 1/3: FROM", "x")]
    assert [origin.line if origin else None for origin in told] == [4, 6, 1, None]
