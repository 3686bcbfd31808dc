"""Base images of a Dockerfile: the meaning of ARG, FROM … AS and COPY --from, to the letter."""

import pytest

from harbor_gym.errors import TaskError
from harbor_gym.sandboxes.images import official_images
from harbor_gym.sandboxes.images.recipe import read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ARG TAG=12\nFROM debian:$TAG", ["debian:12"]),
        ("ARG TAG=12\nFROM debian:${TAG}-slim", ["debian:12-slim"]),
        ("arg TAG='12'\nfrom debian:$TAG", ["debian:12"]),
        ('ARG BASE="debian:12"\nFROM ${BASE}', ["debian:12"]),
        ('FROM "debian:12"', ["debian:12"]),
        ("ARG TAG\nFROM debian:${TAG:-13}", ["debian:13"]),
        ("ARG TAG=\nFROM debian:${TAG:-13}", ["debian:13"]),
        ("ARG TAG=12\nFROM debian:${TAG:-13}", ["debian:12"]),
        ("FROM debian:${TAG-13}", ["debian:13"]),
        ("ARG TAG=12\nFROM debian:${TAG:+13}", ["debian:13"]),
        ("ARG TAG\nFROM debian${TAG:+:13}", ["debian"]),
        ("ARG A=1\nARG B=${A}2\nFROM debian:$B", ["debian:12"]),
        ("ARG A=1\nARG A=2\nFROM debian:$A", ["debian:2"]),
        ("ARG A=a B='$A' C=\"$A:1\"\nFROM $C", ["a:1"]),
        ("ARG D=debian REL=12\nFROM ${NOPE:-$D}:${REL}${V:+-$V}", ["debian:12"]),
        ("ARG D=debian REL=12 V=slim\nFROM ${NOPE:-${D}}:${REL%2}3${V:+-$V}", ["debian:13-slim"]),
        ("FROM --platform=$BUILDPLATFORM debian:${TARGETOS}", ["debian:linux"]),
        # An ARG behind the first FROM belongs to its stage, not to the FROM of the next.
        ("ARG T=12\nFROM debian:$T AS a\nARG T=13\nFROM ubuntu:$T\nCOPY --from=a /a /a", ["debian:12", "ubuntu:12"]),
        ("\ufeff# remark\r\nFROM x\r\n", ["x"]),
    ],
)  # fmt: skip
def test_arguments_before_the_first_stage_are_put_in(text: str, expected: list[str]) -> None:
    assert read(text).images == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM debian:12 AS build\nFROM build", ["debian:12"]),
        ("FROM debian:12 as Build\nFROM BUILD AS two\nFROM two", ["debian:12"]),
        ("FROM debian:12\nFROM ubuntu\nCOPY --from=0 /a /a\nCOPY --from=1 /a /a", ["debian:12", "ubuntu", "1"]),
        ("FROM debian:12\nCOPY --from=1 /a /a", ["debian:12", "1"]),
        ("FROM debian:12\nFROM ubuntu\nFROM fedora\nCOPY --from=0 /a /a", ["debian:12", "fedora"]),
        ("FROM scratch\nCOPY --from=SCRATCH /a /a", ["SCRATCH"]),
        # A name counts from its stage on: before, the same word is an image.
        ("FROM build AS build\nFROM build", ["build"]),
        ("FROM a AS x\nFROM b AS x\nFROM x", ["b"]),
        ("FROM debian:12 AS a\nCOPY --from=later /a /a\nFROM a AS later", ["debian:12", "later"]),
        ("FROM --platform=linux/amd64 --x=y debian:12 AS a\nFROM a", ["debian:12"]),
        ("FROM 0\nFROM 0 AS last", ["0"]),
        ("FROM x\nRUN --mount=type=bind,from=y:1,target=/y --mount=from=z:1 ls --mount=from=no", ["x", "y:1", "z:1"]),
        ("FROM debian:12 AS a\nADD --chown=1:1 --from=b /a /a", ["debian:12", "b"]),
        ("# FROM ubuntu\n  FROM debian:12\nRUN echo FROM ubuntu", ["debian:12"]),
    ],
)  # fmt: skip
def test_stages_are_no_images(text: str, expected: list[str]) -> None:
    assert read(text).images == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM nowhere/x AS unused\nFROM debian:12", ["debian:12"]),
        ("FROM a AS one\nFROM b AS two\nCOPY --from=one x y\nFROM c\nCOPY --from=d x y", ["c", "d"]),
        (
            "FROM a AS one\nFROM b AS two\nCOPY --from=one x y\nFROM c\nRUN --mount=from=TWO,target=/x y",
            ["a", "b", "c"],
        ),
        ("FROM a AS one\nCOPY --from=e x y\nFROM one\nFROM b", ["b"]),
    ],
)
def test_stages_that_are_not_reached_need_no_image(text: str, expected: list[str]) -> None:
    assert read(text).images == expected


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("FROM", "line 1, column 1", "FROM takes an image"),
        ("# remark\n\nFROM a b", "line 3, column 1", "FROM takes an image"),
        ("ARG A\nFROM ${A}", "line 2, column 6", "the image's name is empty"),
        ("FROM x:${A", "line 1, column 6", "'}' is missing|bad substitution"),
        ("FROM x:${A^}", "line 1, column 6", "not known"),
        ("FROM ${A?give-one}", "line 1, column 6", "A: give-one"),
        ("RUN x\nFROM y", "line 1, column 1", "no FROM is before it"),
        ("FROM a\nCOPY --from=$STAGE a b", "line 2, column 13", "takes no variable"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(text: str, place: str, why: str) -> None:
    with pytest.raises(TaskError, match=rf"{place}: .*({why}).*--env docker"):
        assert read(text).images


def test_a_dockerfile_without_a_stage_is_refused() -> None:
    with pytest.raises(TaskError, match="no FROM"):
        read("# nothing\n")


@pytest.mark.parametrize("reference", ["ghcr.io/org/x:1", "registry:5000/x", "localhost/x", "localhost:5000/org/x:1"])
def test_a_reference_with_a_domain_is_whole(reference: str) -> None:
    assert official_images.full_reference(reference) == reference


@pytest.mark.parametrize("reference", ["org/x.y:1", "org/x:1", "org/deeper/x.y"])
def test_a_dot_or_a_colon_further_on_makes_no_domain(reference: str) -> None:
    assert official_images.full_reference(reference) == f"docker.io/{reference}"
