"""Base images of a Dockerfile: the meaning of ARG, FROM … AS and COPY --from, to the letter."""

import pytest

from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.images import official_images


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
        # An ARG behind the first FROM belongs to its stage, not to the FROM of the next.
        ("ARG TAG=12\nFROM debian:$TAG\nARG TAG=13\nFROM ubuntu:$TAG", ["debian:12", "ubuntu:12"]),
    ],
)
def test_arguments_before_the_first_stage_are_put_in(text: str, expected: list[str]) -> None:
    assert dockerfile.base_references(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM debian:12 AS build\nFROM build", ["debian:12"]),
        ("FROM debian:12 as Build\nFROM BUILD AS two\nFROM two", ["debian:12"]),
        ("FROM debian:12\nFROM ubuntu\nCOPY --from=0 /a /a\nCOPY --from=1 /a /a", ["debian:12", "ubuntu"]),
        ("FROM debian:12\nCOPY --from=1 /a /a", ["debian:12", "1"]),
        ("FROM debian:12\nFROM ubuntu\nFROM fedora\nCOPY --from=2 /a /a", ["debian:12", "ubuntu", "fedora"]),
        ("FROM scratch\nCOPY --from=SCRATCH /a /a", ["SCRATCH"]),
        ("FROM Scratch", []),
        # A name counts from its stage on: before, the same word is an image.
        ("FROM build AS build\nFROM build", ["build"]),
        ("FROM debian:12 AS a\nCOPY --from=later /a /a\nFROM ubuntu AS later", ["debian:12", "later", "ubuntu"]),
        ("FROM --platform=linux/amd64 --x=y debian:12 AS a\nFROM a", ["debian:12"]),
        ("FROM debian:12 AS a # b\nFROM a", ["debian:12"]),
        ("FROM debian:12\nFROM debian:12\nCOPY --from=debian:12 /a /a", ["debian:12"]),
        ("FROM debian:12 AS a\nADD --chown=1:1 --from=A /a /a\nADD --from=b /a /a", ["debian:12", "b"]),
        ("# FROM ubuntu\n  FROM debian:12\nRUN echo FROM ubuntu", ["debian:12"]),
    ],
)
def test_stages_are_no_images(text: str, expected: list[str]) -> None:
    assert dockerfile.base_references(text) == expected


def test_every_mention_of_a_base_is_replaced_and_nothing_else() -> None:
    text = (
        "ARG TAG=12\nFROM --platform=linux/amd64 debian:$TAG AS debian\nRUN echo debian:12\n"
        "COPY --from=debian:12 --chown=1:1 /a /a\nCOPY --from=debian /a /b\nfrom debian:12\nFROM ubuntu as x\n"
    )
    assert dockerfile.replace_references(text, {"debian:12": "local/debian"}) == (
        "ARG TAG=12\nFROM --platform=linux/amd64 local/debian AS debian\nRUN echo debian:12\n"
        "COPY --from=local/debian --chown=1:1 /a /a\nCOPY --from=debian /a /b\nfrom local/debian\nFROM ubuntu as x\n"
    )


@pytest.mark.parametrize("reference", ["ghcr.io/org/x:1", "registry:5000/x", "localhost/x", "localhost:5000/org/x:1"])
def test_a_reference_with_a_domain_is_whole(reference: str) -> None:
    assert official_images.full_reference(reference) == reference


@pytest.mark.parametrize("reference", ["org/x.y:1", "org/x:1", "org/deeper/x.y"])
def test_a_dot_or_a_colon_further_on_makes_no_domain(reference: str) -> None:
    assert official_images.full_reference(reference) == f"docker.io/{reference}"
