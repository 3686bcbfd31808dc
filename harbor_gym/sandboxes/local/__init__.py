"""A sandbox without a daemon: namespaces and an overlay for each, run by a supervisor process."""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.sandboxes.local.environment import LocalEnvironment as LocalEnvironment

__getattr__, __dir__ = lazy_names(__name__, __file__)
