"""Options that several commands have, each with one name and one help."""

from pathlib import Path
from typing import Annotated

import typer

from harbor_gym.cli import completion

Env = Annotated[
    str,
    typer.Option(
        "--env",
        autocompletion=completion.sandboxes,
        help="Sandbox: local, docker, any Harbor environment type, or module.path:Class.",
    ),
]
SandboxOptions = Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the sandbox's class; may be repeated.")]
RegistryPath = Annotated[Path | None, typer.Option(help="registry.json to look names up in.")]
Forge = Annotated[bool, typer.Option(help="Also try to forge the reward.")]
RewardKey = Annotated[str | None, typer.Option(help="Which of the verifier's rewards counts.")]
RewardFunctionName = Annotated[
    str | None, typer.Option(help="Or all of them: mean, min, max, sum, or module.path:function.")
]
