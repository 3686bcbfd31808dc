"""``make engines`` on machines that lack the settings which local sandboxes need beside programs."""

import subprocess

import pytest

from tests.helpers.paths import ROOT

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("local_engine")]
_REPOSITORY = ROOT
_LOOK = "stat -c '%t:%T %a' /dev/net/tun; : <>/dev/net/tun && echo opens"


def run(before: str, after: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script in a mount namespace of its own, between two pieces of shell text.

    The base images that it makes last are there and are left alone: only that takes seconds.
    """
    script = f"set -e\nmount --bind /dev/null .ci/bases.py\n{before}\n.ci/engines.sh local\n{after}"
    argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
    return subprocess.run(argv, cwd=_REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("node", ["", "mknod -m 600 /dev/net/tun c 10 200"], ids=["missing", "of root alone"])
def test_the_networks_device_is_made_and_opened_to_everybody_once(node: str) -> None:
    done = run(f"mount -t tmpfs tmpfs /dev/net\n{node}", f"{_LOOK}\n.ci/engines.sh local")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a:c8 666\nopens\n"
    assert done.stderr.count("/dev/net/tun is there, for every user") == 1, "the second run finds it as it should be"


def test_a_device_that_is_not_available_is_named_and_stops_nothing() -> None:
    done = run("mount -t tmpfs -o nodev tmpfs /dev/net")
    assert done.returncode == 0, done.stderr
    assert "/dev/net/tun is not available" in done.stderr
    assert "--device /dev/net/tun" in done.stderr


def test_what_ubuntu_takes_from_ordinary_users_is_named() -> None:
    switch = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
    hidden = "mount -t tmpfs tmpfs /dev/net; mount -t tmpfs tmpfs /proc/sys/kernel"
    assert "AppArmor" not in run(f"{hidden}; echo 0 > {switch}").stderr
    assert "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in run(f"{hidden}; echo 1 > {switch}").stderr
