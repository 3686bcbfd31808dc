"""Sandboxes by name, and the abilities of each kind."""

from harbor_gym.sandboxes.registry import (
    LOCAL,
    environment_config,
    has_passed,
    parse_options,
    preflight,
    sandbox_names,
    shares_setup,
    takes_setup,
)

__all__ = [
    "LOCAL",
    "environment_config",
    "has_passed",
    "parse_options",
    "preflight",
    "sandbox_names",
    "shares_setup",
    "takes_setup",
]
