"""``harbor-gym base``: base images for machines that can't reach an image registry."""

import asyncio
from typing import Annotated

import typer

from harbor_gym._runtime.console.progress import ticking
from harbor_gym.cli.progress import ShowsProgress, progress
from harbor_gym.cli.shared import one_line_errors

_NEXT_LINE_SEC = 10.0
"""Seconds between the line that announces some work and the first line about its progress."""


def base(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Official images, as debian:bookworm-slim.")],
    docker: Annotated[
        bool, typer.Option("--docker", help="Give the base to Docker too, unless Docker has an image of this name.")
    ] = False,
    if_missing: Annotated[
        bool,
        typer.Option("--if-missing", help="Only if this machine has no such image and its registry gives no answer."),
    ] = False,
) -> None:
    """Make bases of packages of Debian or Ubuntu that take the place of official images, once.

    Sandboxes on local and apptainer use such a base where the image's registry is out of reach; a registry that
    answers comes first. A base is of the image's release, and not that image: what it lacks, it lacks.
    """
    from harbor_gym.sandboxes.images.official_images import offline_base

    with one_line_errors():
        for image in images:
            offline_base(image)
        for image in images:
            with progress() as shown:
                asyncio.run(_provide(image, shown, docker=docker, if_missing=if_missing))


async def _provide(image: str, shown: ShowsProgress, *, docker: bool, if_missing: bool) -> None:
    from harbor_gym.sandboxes.images import base_images, debian_base
    from harbor_gym.sandboxes.images.official_images import offline_base

    if if_missing and not docker:
        shown.line(f"{image}: looking for it here and in its registry")
        with ticking(image, delay_sec=_NEXT_LINE_SEC):
            found, _ = await base_images.find_base(image)
        if found is not None:
            shown.line(f"{image}: it is on this machine, no base is needed")
            return
    shown.line(f"{image}: a base of packages of {offline_base(image).description}, made now unless it is there (30 s)")
    if not docker:
        with ticking(image, delay_sec=_NEXT_LINE_SEC):
            made = await debian_base.make_base(image)
        shown.line(f"{image}: sandboxes use {made.description} where the registry is out of reach")
        return
    with ticking(image, delay_sec=_NEXT_LINE_SEC):
        given = await debian_base.import_into_docker(image)
    if given is None:
        shown.line(f"{image}: Docker has it")
    else:
        shown.line(f"{image}: Docker has {given.description} under this name, which is not the real image")
