"""``harbor-gym sif``: make images as SIF files, for clusters."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, quiet_harbor
from harbor_gym.errors import UsageError

if TYPE_CHECKING:
    from harbor_gym.sandboxes.apptainer.sif.bulk import SifResult, SifTask

sif = typer.Typer(cls=PlainGroup, help="Make tasks' images as SIF files, for clusters.", no_args_is_help=True)


@sif.callback()
def _group() -> None:
    """Keep ``build`` a subcommand: without a callback, typer makes a single command the whole program."""


@sif.command()
def build(
    sources: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Directories, git+URL@COMMIT#path, or org/name@ref.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder for the files, which sandboxes take as image_cache_dir.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="<address>", help="Also push to oras://HOST/PATH (the option registry).")
    ] = None,
    registry_path: Annotated[Path | None, typer.Option(help="registry.json to look task names up in.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Images made at the same time.")] = 4,
    build_dockerfile: Annotated[
        bool, typer.Option("--build-dockerfile", help="Build Dockerfiles even if a task names a docker_image.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Make all files again, existing ones too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per task.")] = False,
) -> None:
    """Make the SIF file of every task's image; what is there is kept, so a run that was cut off can be repeated.

    Beside the files lies manifest.json: task, file, size, checksum. Exit status: 1 where one failed.
    """
    from harbor_gym.sandboxes.apptainer.options import default_image_dir
    from harbor_gym.sandboxes.apptainer.sif.bulk import build_all
    from harbor_gym.tasks import resolve_tasks

    with one_line_errors(), quiet_harbor():
        if push is not None and not push.startswith("oras://"):
            raise UsageError(f"--push takes oras://HOST/PATH, got {push!r}")
        tasks = asyncio.run(resolve_tasks(sources, registry_path=registry_path))
        wanted = [_sif_task(task.name, task.path, build_dockerfile=build_dockerfile) for task in tasks]
        results = asyncio.run(
            build_all(
                wanted,
                output or default_image_dir(),
                concurrency=concurrency,
                force=force,
                push_to=push,
                on_result=_print_nothing if as_json else _print_row,
            )
        )
    if as_json:
        echo(json.dumps([asdict(result) for result in results], indent=2))
    if any(result.error for result in results):
        raise typer.Exit(FAILED)


def _sif_task(name: str, path: Path, *, build_dockerfile: bool) -> SifTask:
    from harbor.environments.definition import should_use_prebuilt_docker_image
    from harbor.models.task.task import Task

    from harbor_gym.sandboxes.apptainer.sif.bulk import SifTask
    from harbor_gym.sandboxes.images.build import ImageSource
    from harbor_gym.tasks.links import require_own_files

    require_own_files(path)
    task = Task(path)
    environment, folder = task.config.environment, task.paths.environment_dir
    is_prebuilt = should_use_prebuilt_docker_image(
        folder, docker_image=environment.docker_image, force_build=build_dockerfile
    )
    source = ImageSource(folder, docker_image=environment.docker_image if is_prebuilt else None)
    return SifTask(name, source, environment.build_timeout_sec)


def _print_row(result: SifResult) -> None:
    if result.entry is None:
        echo(f"{result.task}: {result.error}", err=True)
        return
    state = "built" if result.is_new else "there"
    size = f"{result.entry.size_bytes / (1 << 20):.1f} MiB"
    pushed = f"  {result.entry.pushed}" if result.entry.pushed else ""
    echo(f"{result.task}  {state}  {size}  {result.seconds:.1f} s  {result.entry.file}{pushed}")
    if result.error:
        echo(f"{result.task}: {result.error}", err=True)


def _print_nothing(_: SifResult) -> None:
    pass
