"""Registers the environment with Gymnasium, in whichever order the two are imported, without importing Gymnasium.

Since version 1.0 Gymnasium reads no entry points: a package registers its environments when it is imported. Ours may be
imported first, and most programs that do so use no Gymnasium, whose import (numpy with it) outweighs ours many times.
So a hook, of this file alone, registers right after gymnasium has been imported, and is gone then.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ENV_ID = "HarborTerminal-v0"
"""What ``gym.make`` and ``gym.make_vec`` take."""

_GYMNASIUM = "gymnasium"


def register() -> None:
    """Register the environment with Gymnasium, importing that. Idempotent."""
    gymnasium = importlib.import_module(_GYMNASIUM)
    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(
        id=ENV_ID,
        entry_point="harbor_gym.adapters.gymnasium.env:HarborTerminalEnv",
        vector_entry_point="harbor_gym.adapters.gymnasium.vector:HarborTerminalVectorEnv",
        nondeterministic=True,  # a terminal shows the time and process ids
    )


def register_when_imported() -> None:
    """Register now if gymnasium is imported already, else right after it will have been. Idempotent."""
    if hasattr(sys.modules.get(_GYMNASIUM), "make"):
        register()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Finds gymnasium where the other finders do, and has its loader register at the end of the import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _GYMNASIUM:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Loader) -> None:
        """Extend the loader, made for this import, by the registration. Who only looks at the spec runs nothing."""
        load = loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            del loader.exec_module  # as if we had never been here
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            load(module)
            register()

        loader.exec_module = load_and_register
