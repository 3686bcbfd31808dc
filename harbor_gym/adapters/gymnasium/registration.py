"""Registers the environment with Gymnasium.

Since version 1.0 Gymnasium reads no entry points: a package registers its environments when it is imported. To import
Gymnasium takes ten times as long as ``import harbor_gym``, so the registration waits until something else does it. Why
this takes a finder: docs/decisions/imports.md.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

ENV_ID = "HarborTerminal-v0"
"""The environment's id for ``gym.make`` and ``gym.make_vec``."""


def register() -> None:
    """Register the environment with Gymnasium. Idempotent."""
    import gymnasium

    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(
        id=ENV_ID,
        entry_point="harbor_gym.adapters.gymnasium.env:HarborTerminalEnv",
        vector_entry_point="harbor_gym.adapters.gymnasium.vector:HarborTerminalVectorEnv",
        nondeterministic=True,  # a terminal shows the time and process ids
    )


def register_once_imported() -> None:
    """Register the environment as soon as this process has imported Gymnasium, as ``import harbor_gym`` does."""
    if "gymnasium" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _RegistersAtImport())


class _RegistersAtImport:
    """Finds Gymnasium as the other finders do. Once that has been imported, registers the environment and is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                register()

            loader.exec_module = execute_and_register
        return spec
