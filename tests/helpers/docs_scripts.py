"""The scripts that draw figures into pages, as modules."""

import importlib.util
import sys
from types import ModuleType

from tests.helpers.paths import ROOT

_FOLDER = ROOT / ".ci" / "docs"


def load_script(name: str) -> ModuleType:
    """Return a script of ``.ci/docs``, which imports from its own folder as when it is run."""
    sys.path.insert(0, str(_FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(_FOLDER))
