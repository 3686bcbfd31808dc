"""The tests' base images: ``.ci/bases.py`` makes them, a script outside of every package."""

import sys

from tests.helpers.paths import ROOT

_FOLDER = str(ROOT / ".ci")
sys.path.append(_FOLDER)

from bases import (  # noqa: E402
    DEBIAN,
    UBUNTU,
    Mirror,
    apt_mirrors,
    ensure_base_tar,
    is_whole_tar,
    main,
    make_base,
    offline_base,
    provide,
)

sys.path.remove(_FOLDER)  # its folders verl, verifiers and nemo_gym would be found as packages

__all__ = [
    "DEBIAN",
    "UBUNTU",
    "Mirror",
    "apt_mirrors",
    "ensure_base_tar",
    "is_whole_tar",
    "main",
    "make_base",
    "offline_base",
    "provide",
]
