"""The connection to a cluster: its end, and the contents of its deployment files."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harbor_gym.cluster import ClusterLimits
from harbor_gym.cluster.executor import RESOURCE
from harbor_gym.cluster.session import drain_on_sigterm
from harbor_gym.errors import UsageError
from tests.helpers.paths import ROOT

DEPLOY = ROOT / "docs" / "deploy"


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Start with a process that SIGTERM ends, after any earlier tests."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def of_ray(number: int, frame: Any) -> None:
    """Exit as the handler does that Ray's connection sets."""
    sys.exit(number)


of_ray.__module__ = "ray._private.worker"


@pytest.mark.usefixtures("sigterm")
@pytest.mark.parametrize("handler", [signal.SIG_DFL, of_ray])
def test_sigterm_unwinds_an_event_loop(handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    closed: list[str] = []

    async def run() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("sandbox")

    with pytest.raises(KeyboardInterrupt), drain_on_sigterm():
        asyncio.run(run())
    assert closed == ["sandbox"]
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.usefixtures("sigterm")
def test_somebody_elses_handler_stays() -> None:
    def own(number: int, frame: Any) -> None: ...

    signal.signal(signal.SIGTERM, own)
    with drain_on_sigterm():
        assert signal.getsignal(signal.SIGTERM) is own


@pytest.mark.parametrize("name", ["max_workers", "sandboxes_per_worker", "burst", "max_attempts"])
def test_limits_are_checked(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        ClusterLimits(**{name: 0})


def test_the_kubernetes_manifest_names_our_resource() -> None:
    document: Any = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayCluster")
    (workers,) = document["spec"]["workerGroupSpecs"]
    # KubeRay passes the value on to a shell, which removes one layer of quotes.
    value = workers["rayStartParams"]["resources"]
    shown = subprocess.run(["bash", "-c", f"echo {value}"], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown).keys() == {RESOURCE}
    grace = workers["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > ClusterLimits().interrupt_timeout_sec


def test_the_slurm_script_can_be_read_and_names_our_resource(tmp_path: Path) -> None:
    script = DEPLOY / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    for name in ("scontrol", "srun", "sbatch"):
        assert name in script.read_text()
    assert f'\\"{RESOURCE}\\"' in script.read_text()
