"""``harbor-gym check-engine``: check which promises an engine keeps that training relies on."""

import asyncio
import json
from typing import Annotated, Literal

import typer

from harbor_gym.cli.shared import FAILED, echo, one_line_errors


def check_engine(
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine's address, with or without /v1.")],
    api: Annotated[
        Literal["completions", "sglang", "chat"],
        typer.Option(
            help="Its endpoint: completions with token ids (vLLM), SGLang's generate, or chat with return_token_ids."
        ),
    ] = "completions",
    model: Annotated[str | None, typer.Option(help="Name of the model, if the engine lists several.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Directory or name of the model's tokenizer, to compare text with ids.")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the engine's key.")] = None,
    timeout_sec: Annotated[float, typer.Option(min=0.1, help="Longest wait for one answer, in seconds.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with every promise.")] = False,
) -> None:
    """Check which promises an engine or a gateway keeps that training on exact tokens relies on."""
    from harbor_gym.checking import engine

    with one_line_errors():
        decoder = None if tokenizer is None else engine.load_decoder(tokenizer)
        report = asyncio.run(
            engine.check_engine(
                url, api=api, model=model, tokenizer=decoder, api_key_env=api_key_env, timeout_sec=timeout_sec
            )
        )
    echo(json.dumps(report.as_object(), indent=2) if as_json else str(report))
    if not report.ok:
        raise typer.Exit(FAILED)
