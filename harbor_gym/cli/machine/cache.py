"""``harbor-gym cache``: the files kept between runs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.cli.plain_help import PlainGroup
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError

if TYPE_CHECKING:
    from harbor_gym._runtime.cache import CacheEntry


cache = typer.Typer(cls=PlainGroup, help="List and prune the files that are kept between runs.", no_args_is_help=True)


@cache.command("list")
def cache_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per entry.")] = False,
) -> None:
    """Show what the cache holds, the least recently used first, and the size of buildah's store beside it."""
    from harbor_gym._runtime.cache import cache_dir, entries
    from harbor_gym.sandboxes.images.store import measure_store

    with one_line_errors():
        found = entries()
    if as_json:
        echo(json.dumps([{**dataclasses.asdict(item), "path": str(item.path)} for item in found], indent=2))
        return
    _show(found, f"in {cache_dir()}")
    if (store := asyncio.run(measure_store())) is not None:
        echo(f"{_megabytes(store[1])} in buildah's store {store[0]}: `cache prune` removes its images with those above")


@cache.command("prune")
def cache_prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="<age>", help="Remove what was not used for this time: 30m, 12h, 7d.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="<size>", help="Remove the least recently used images until they take this much: 500M, 10G."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every image and base that nothing uses.")] = False,
) -> None:
    """Remove images and bases that no running sandbox stands on, from buildah's store too; built again when needed."""
    from harbor_gym._runtime.cache import prune
    from harbor_gym.sandboxes.images.store import remove_images

    with one_line_errors():
        if not (everything or older_than or max_size):
            raise UsageError("nothing to prune: give --older-than AGE, --max-size SIZE or --all")
        gone = prune(
            older_than_sec=_quantity(older_than, {"m": 60, "h": 3600, "d": 86_400}, "--older-than")
            if older_than
            else None,
            max_bytes=_quantity(max_size, {"M": 1 << 20, "G": 1 << 30}, "--max-size") if max_size else None,
            everything=everything,
        )
        asyncio.run(remove_images([item.built for item in gone if item.built]))
    _show(gone, "removed")


def _show(entries: Sequence[CacheEntry], what: str) -> None:
    """Print a row for each entry, and their total size."""
    if entries:
        echo(plain_table((), [_cells(item) for item in entries], right=[0]))
    echo(f"{_megabytes(sum(item.size_bytes for item in entries))} {what}")


def _cells(item: CacheEntry) -> tuple[str, ...]:
    used = datetime.fromtimestamp(item.last_used).isoformat(sep=" ", timespec="minutes")
    state = "in use" if item.in_use else ""
    return _megabytes(item.size_bytes), used, state, item.kind, item.path.name[:12], item.what


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _quantity(text: str, units: dict[str, int], option: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.isdecimal():
        raise UsageError(f"{option} takes a whole number and one of {', '.join(units)}, got {text!r}")
    return int(number) * units[unit]
