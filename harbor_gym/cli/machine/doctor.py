"""``harbor-gym doctor``: a diagnosis of this machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.cli import completion
from harbor_gym.cli.shared import FAILED, announced, echo, one_line_errors, quiet_harbor

if TYPE_CHECKING:
    from harbor_gym.checking.doctor import Finding


def doctor(
    env: Annotated[
        str | None,
        typer.Option(
            "--env", autocompletion=completion.sandboxes, help="Check only the needs of this kind of sandbox."
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Check only the needs of `train --backend local`, beside a sandbox.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print everything that was looked at, in a table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
    sandboxes: Annotated[
        bool, typer.Option("--sandboxes", help="Print only the number of sandboxes that fit here at once, for Ray.")
    ] = False,
    memory_mb: Annotated[int, typer.Option(min=1, help="With --sandboxes: the largest task's memory.")] = 2048,
) -> None:
    """Show what can be used on this machine, and what would get the rest.

    Exit code 0: a sandbox can be started; with --train: a training on this machine, too.
    """
    if sandboxes:
        from harbor_gym.checking.capacity import sandboxes_at_once

        echo(sandboxes_at_once(memory_mb))
        return
    # Harbor's environments, and the packages that each of them imports, take seconds.
    with one_line_errors(), quiet_harbor(), announced("looking at this machine"):
        from harbor_gym.checking.doctor import examine, usable
        from harbor_gym.embedded.needs import AREA, examine_training

        findings = [] if train and env is None else examine(env)
        if train or env is None:
            findings += examine_training()
    kinds = usable(findings)
    trains = kinds.pop(AREA, True)
    if as_json:
        document = {"usable": kinds, "trains": trains, "findings": [dataclasses.asdict(item) for item in findings]}
        echo(json.dumps(document, indent=2))
    elif everything or train or env is not None:
        echo(plain_table((), [_row(item) for item in findings]))
        for kind, is_usable in kinds.items():
            echo(f"--env {kind} {'can' if is_usable else 'can NOT'} be used")
        if train or env is None:
            echo(f"train --backend local {'can' if trains else 'can NOT'} be used")
    else:
        for line in _summary(findings, kinds):
            echo(line)
    if not (trains or not train) or (kinds and not any(kinds.values())):
        raise typer.Exit(FAILED)


def _row(item: Finding) -> tuple[str, ...]:
    state = "ok" if item.ok else "MISSING" if item.is_needed else "missing"
    return item.area, item.what, state, f"{item.note} -> {item.fix}" if item.fix else item.note


def _summary(findings: Sequence[Finding], kinds: Mapping[str, bool]) -> Iterator[str]:
    """Yield what can be done here, the first step towards each other thing, and what is limited."""
    from harbor_gym.checking.doctor import TINKER
    from harbor_gym.embedded.needs import AREA

    first = {item.area: item for item in reversed(findings) if item.is_needed and not item.ok}
    others = {item.what: item for item in findings if item.area == "other"}
    there = [kind for kind in kinds if kind not in first]
    there += [what.removeprefix("--env ") for what, item in others.items() if item.ok and what.startswith("--env ")]
    yield f"you can play, check and evaluate tasks on {', '.join(there) or 'no sandbox yet'}"
    for kind in (kind for kind in kinds if kind in first):
        yield f"to use --env {kind}: {_step(first[kind])}"
    yield f"to train here: {_step(first[AREA])}" if AREA in first else "you can train here: train --backend local"
    lacking = [_step(others[name]) for name in TINKER if name in others and not others[name].ok]
    yield (
        f"to train with the Tinker service: {'; '.join(lacking)}"
        if lacking
        else "you can train with the Tinker service"
    )
    limits = [item.what for item in findings if item.area in kinds and not item.ok and not item.is_needed]
    limited = f"not complete: {', '.join(limits)}; " if limits else ""
    yield f"{limited}harbor-gym doctor --all shows everything, --train what training here needs"


def _step(item: Finding) -> str:
    return f"{item.fix or item.note}" + (f" ({item.what}: {item.note})" if item.fix else "")
