"""Sandboxes by name, and the abilities of each kind. The package imports nothing that stands above it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.sandboxes.registry import LOCAL as LOCAL
    from harbor_gym.sandboxes.registry import environment_config as environment_config
    from harbor_gym.sandboxes.registry import has_passed as has_passed
    from harbor_gym.sandboxes.registry import parse_options as parse_options
    from harbor_gym.sandboxes.registry import preflight as preflight
    from harbor_gym.sandboxes.registry import sandbox_names as sandbox_names
    from harbor_gym.sandboxes.registry import shares_setup as shares_setup
    from harbor_gym.sandboxes.registry import takes_setup as takes_setup
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".registry": (
                "LOCAL environment_config has_passed parse_options preflight sandbox_names shares_setup takes_setup"
            ),
        },
    )
