"""Which program serves the overlay of an Apptainer sandbox: by the user and the kernel."""

import platform

import pytest

from harbor_gym._runtime import rootless
from harbor_gym.errors import MissingDependencyError
from harbor_gym.sandboxes.apptainer.programs import Programs, overlay_program

BOTH = Programs("/usr/bin/squashfuse_ll", "/usr/bin/fuse-overlayfs")
FUSE = ("/usr/bin/fuse-overlayfs", "-f")


@pytest.mark.parametrize(
    ("release", "is_rootless", "expected"),
    [("5.14.0-503.el9", True, FUSE), ("5.14.0-503.el9", False, ()), ("6.6.1", True, ()), ("6.18.44", False, ())],
)
def test_an_ordinary_users_overlay_is_fuses_before_linux_6_6(
    release: str, is_rootless: bool, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    monkeypatch.setattr(rootless, "is_rootless", lambda: is_rootless)
    assert overlay_program(BOTH, "auto") == expected
    assert overlay_program(BOTH, "kernel") == ()
    assert overlay_program(BOTH, "fuse") == FUSE


def test_a_missing_overlay_program_is_named() -> None:
    with pytest.raises(MissingDependencyError, match="fuse-overlayfs: apt-get install fuse-overlayfs"):
        overlay_program(Programs("/usr/bin/squashfuse_ll", None), "fuse")
