"""The changes to a Dockerfile before buildah reads it."""

import pytest

from harbor_gym.errors import TaskError
from harbor_gym.sandboxes.images.recipe import StageStart, adapted, volumes_of


def made(owner: str, place: str) -> str:
    return f'COPY --chown={owner} --from=harbor-gym-empty ["/", "{place}"]\n'


@pytest.mark.parametrize(
    "text",
    [
        "FROM a\nWORKDIR /app\nRUN x\n",
        "FROM a\nWORKDIR /app\nENV A=b\nCOPY x .\n",
        "FROM a\nRUN x\nWORKDIR /app\nCMD x\n",
        "FROM a\nUSER dev\nRUN x\n",
        "FROM a AS b\nRUN x\nFROM b\nCOPY --from=b --chmod=700 x y\nRUN --mount=type=cache,target=/var/x x\n",
        "FROM a\nRUN <<EOF\nWORKDIR /no\nVOLUME /no\nEOF\n",
    ],
)
def test_what_buildah_does_right_is_left(text: str) -> None:
    assert adapted(text, {}) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a\nWORKDIR /b\nWORKDIR c\n", f"FROM a\n{made('0:0', '/b/')}WORKDIR /b\nWORKDIR c\n"),
        ("FROM a\nUSER d:e\nWORKDIR /b c\n", f"FROM a\nUSER d:e\n{made('d:e', '/b c/')}WORKDIR /b c\n"),
        ("FROM a\nWORKDIR /b\nUSER d\nRUN x\n", f"FROM a\n{made('0:0', '/b/')}WORKDIR /b\nUSER d\nRUN x\n"),
        ("FROM a AS s\nWORKDIR /b\nFROM c\n", f"FROM a AS s\n{made('0:0', '/b/')}WORKDIR /b\nFROM c\n"),
        ("FROM a AS s\nUSER d\nFROM s\nWORKDIR /b\n", f"FROM a AS s\nUSER d\nFROM s\n{made('d', '/b/')}WORKDIR /b\n"),
    ],
)
def test_a_workdir_that_buildah_would_not_make_so_is_made_before(text: str, expected: str) -> None:
    assert adapted(text, {}) == expected


def test_a_base_counts_with_its_user_and_workdir() -> None:
    bases = {"a": StageStart("dev", "/base")}
    assert adapted("FROM a\nWORKDIR /b\nRUN x\n", bases) == f"FROM a\n{made('dev', '/b/')}WORKDIR /b\nRUN x\n"
    text = "FROM a\nRUN --mount=type=bind,target=c,source=d x\n"
    assert adapted(text, bases) == "FROM a\nRUN --mount=type=bind,target=/base/c,source=d x\n"


def test_volumes_are_noted_where_they_are_written() -> None:
    text = 'FROM a AS s\nVOLUME $x\nRUN x\nFROM s\nVOLUME /y \\\n  /z\nVOLUME ["/a b"]\nRUN y\n'
    label = "LABEL harbor-gym.volume."
    assert adapted(text, {}) == (
        f'FROM a AS s\n{label}0=$x\nRUN x\nFROM s\n{label}1=/y harbor-gym.volume.2=/z\n{label}3="/a b"\nRUN y\n'
    )
    labels = {"harbor-gym.volume.0": "/x", "harbor-gym.volume.1": "", "harbor-gym.volume.2": "/b", "other": "/o"}
    assert volumes_of({"Volumes": {"/b": {}}, "Labels": labels}) == ("/b", "/x")


def test_what_a_base_does_on_build_holds_in_the_next_stage_alone() -> None:
    text = 'FROM a AS s\nONBUILD USER d\nONBUILD SHELL ["/bin/bash", "-c"]\nFROM s AS t\nWORKDIR /b\nCMD x\nFROM t\n'
    expected = text.replace("WORKDIR", f"{made('d', '/b/')}WORKDIR").replace("CMD x", 'CMD ["/bin/bash", "-c", "x"]')
    assert adapted(text, {}) == expected
    assert adapted("FROM a\nCOPY b c\n", {"a": StageStart(triggers=("WORKDIR /c",))}) == "FROM a\nCOPY b c\n"


@pytest.mark.parametrize(
    ("triggers", "named"),
    [
        (("USER d", "WORKDIR /b"), "a has ONBUILD WORKDIR /b"),
        (("WORKDIR /c",), "a has ONBUILD WORKDIR /c"),
        (('SHELL ["/bin/bash", "-c"]', "CMD x"), "a has ONBUILD CMD x"),
    ],
)
def test_what_a_base_would_do_otherwise_on_build_is_refused(triggers: tuple[str, ...], named: str) -> None:
    with pytest.raises(TaskError, match=named):
        adapted("FROM a\nUSER e\n", {"a": StageStart(triggers=triggers)})


def test_a_stage_knows_the_arguments_of_the_one_that_it_is_built_on() -> None:
    text = "ARG g=1\nFROM a AS s\nARG g\nARG h=$g i\nFROM s AS t\nARG j\nFROM t\nRUN x\nFROM a\nRUN y\n"
    above = "\nARG g\nARG h=$g i"
    expected = text.replace("s AS t", f"s AS t{above}").replace("FROM t", f"FROM t{above}\nARG j")
    assert adapted(text, {}) == expected


def test_stages_are_known_in_any_letters() -> None:
    text = "FROM a AS Build\nFROM build\nCOPY --from=BUILD x y\nRUN --mount=from=Build,target=/z x\n"
    assert adapted(text, {}) == text.replace("Build", "build").replace("BUILD", "build")


def test_link_is_dropped() -> None:
    text = "FROM a\nCOPY --link --chown=b c d\nADD --link=true e f\nRUN --link\n"
    assert adapted(text, {}) == "FROM a\nCOPY  --chown=b c d\nADD  e f\nRUN --link\n"


def test_a_relative_target_below_a_variable_is_refused() -> None:
    with pytest.raises(TaskError, match="--env docker"):
        adapted("FROM a\nWORKDIR $HOME\nRUN --mount=target=here x\n", {})


def test_commands_as_text_are_for_the_shell_that_is_set() -> None:
    text = 'FROM a AS s\nCMD x\nSHELL ["bash", "-c"]\nFROM s\nCMD echo "$A" \\\n  b\nENTRYPOINT ["c"]\n'
    commands = 'CMD ["bash", "-c", "echo \\"$A\\"   b"]\nENTRYPOINT ["c"]\n'
    assert adapted(text, {}) == f'FROM a AS s\nCMD x\nSHELL ["bash", "-c"]\nFROM s\n{commands}'
