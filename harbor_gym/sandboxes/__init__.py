"""Sandboxes by name, and what each kind of them can do."""

from harbor_gym.sandboxes.registry import (
    LOCAL,
    environment_config,
    image_substitutions,
    parse_options,
    preflight,
    sandbox_names,
    shares_setup,
    takes_setup,
)

__all__ = [
    "LOCAL",
    "environment_config",
    "image_substitutions",
    "parse_options",
    "preflight",
    "sandbox_names",
    "shares_setup",
    "takes_setup",
]
