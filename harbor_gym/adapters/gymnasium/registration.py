"""Makes Gymnasium know the environment, in whichever order the two are imported, without importing Gymnasium.

Gymnasium before 1.0 looked for the entry point ``gymnasium.envs``; since then the importer of a package registers what
it provides, so ``import harbor_gym`` does, now or as soon as gymnasium is there.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
    """Sees the import of gymnasium coming, and has it end with the registration."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _GYMNASIUM:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec


class _RegisteringLoader(Loader):
    def __init__(self, loader: Loader, finder: _AfterImport) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # for callers that inspect a spec and import nothing

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # as if we had never been here
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        register()
