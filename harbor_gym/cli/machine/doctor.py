"""``harbor-gym doctor``: a diagnosis of this machine."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, quiet_harbor

if TYPE_CHECKING:
    from harbor_gym.checking.doctor import Finding


def doctor(
    env: Annotated[str | None, typer.Option("--env", help="Check only the needs of this kind of sandbox.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
    sandboxes: Annotated[
        bool, typer.Option("--sandboxes", help="Print only the number of sandboxes that fit here at once, for Ray.")
    ] = False,
    memory_mb: Annotated[int, typer.Option(min=1, help="With --sandboxes: the largest task's memory.")] = 2048,
) -> None:
    """Show what can be used on this machine, and what would get the rest. Exit code 0: a sandbox can be started."""
    from harbor_gym.checking.doctor import examine, usable

    if sandboxes:
        from harbor_gym.checking.capacity import sandboxes_at_once

        echo(sandboxes_at_once(memory_mb))
        return
    with one_line_errors(), quiet_harbor():
        findings = examine(env) if env is not None else [*examine(), _training_server()]
    kinds = usable(findings)
    if as_json:
        echo(json.dumps({"usable": kinds, "findings": [dataclasses.asdict(item) for item in findings]}, indent=2))
    else:
        rows = [
            (
                *(item.area, item.what, "ok" if item.ok else "MISSING" if item.is_needed else "missing"),
                f"{item.note} -> {item.fix}" if item.fix else item.note,
            )
            for item in findings
        ]
        echo(plain_table((), rows))
        for kind, is_usable in kinds.items():
            echo(f"--env {kind} {'can' if is_usable else 'can NOT'} be used")
    if not any(kinds.values()):
        raise typer.Exit(FAILED)


def _training_server() -> "Finding":
    """Return whether the server of ``train --backend local`` is installed."""
    from harbor_gym.checking.doctor import Finding
    from harbor_gym.embedded.interpreter import server_python
    from harbor_gym.errors import MissingDependencyError, UsageError

    try:
        return Finding("other", "training server", ok=True, note=server_python())
    except UsageError as exc:  # of the cache, in which it would lie
        why, _, fix = str(exc).partition(": ")
        return Finding("other", "training server", ok=False, note=why, fix=fix, is_needed=False)
    except MissingDependencyError:
        fix = 'pip install "harbor-gym[tinker,server]" && harbor-gym server install'
        return Finding("other", "training server", ok=False, note="not installed", fix=fix, is_needed=False)
