"""``harbor-gym base``: base images where no image registry can be reached."""

import asyncio
from typing import Annotated

import typer

from harbor_gym.cli.shared import echo, one_line_errors


def base(
    docker: Annotated[
        str | None,
        typer.Option("--docker", metavar="REF", help="Give Docker the stand-in for this image."),
    ] = None,
) -> None:
    """Build a base image from packages of Debian or Ubuntu alone, for machines that reach no image registry.

    The base stands in for an image that can't be pulled. It is not that image: what it lacks, it lacks.
    """
    from harbor_gym.sandboxes.images import debian_base

    with one_line_errors():
        if docker is None:
            echo(asyncio.run(debian_base.ensure_base_tar()))
            return
        asyncio.run(debian_base.import_into_docker(docker))
    echo(
        f"Docker has {docker}. If it had none before, this one is a stand-in made from packages "
        "(label harbor_gym.substitute=mmdebstrap), not the real image.",
        err=True,
    )
