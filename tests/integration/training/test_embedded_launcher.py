"""The launcher touches private names of one SkyRL version: an upgrade must fail here, not in a training run."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym.embedded import launcher

pytestmark = [pytest.mark.server]

# One interpreter for all of it: importing the server takes seconds, and damage of these tests must stay here.
_PROBE = """
import contextlib, io, json, sys
from harbor_gym.embedded import launcher

def run(*argv):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        launcher.main(list(argv))
    return out.getvalue()

def refusal(*argv):
    try:
        launcher.main([*argv, "--base-model", "/nowhere", "--backend", "transformers"])
    except SystemExit as error:
        return str(error)

seen = {"help": run("--help", "--base-model", "x"), "server loads": [n for n in ("peft", "torch") if n in sys.modules]}
from skyrl.backends import renderer
seen["late torch"] = renderer.torch.ones(2).tolist()
seen["pinned"] = launcher.verify_skyrl()
import pathlib, tempfile
import skyrl.tinker.engine
status = pathlib.Path(tempfile.mkdtemp()) / "status"
class Engine:
    def __init__(self, config): seen["status"] = [status.read_text().partition(" ")[2]]
    def run(self): seen["status"].append(status.read_text().partition(" ")[2])
real, skyrl.tinker.engine.TinkerEngine = skyrl.tinker.engine.TinkerEngine, Engine
refusal("--engine", "--status-file", str(status))
skyrl.tinker.engine.TinkerEngine = real
import skyrl.tinker.api as api
routes = api.app.router.routes[:]
api.app.router.routes[:] = [route for route in routes if "asample" not in route.path]
seen["no route"] = launcher.verify_skyrl()
api.app.router.routes[:] = routes
del api.get_model, api.LoadWeightsRequest
seen["no name"] = launcher.verify_skyrl()
launcher.ENGINE_NAMES = ("skyrl.tinker.engine:TinkerEngine.gone",)
seen["engine refused"] = refusal("--engine")
launcher.SKYRL_VERSION = "0.3.9"
seen["refused"] = refusal()
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_the_contract_with_the_pinned_skyrl() -> None:
    assert importlib.metadata.version("skyrl") == launcher.SKYRL_VERSION
    result = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True)
    seen = json.loads(result.stdout)
    assert seen["pinned"] == []
    assert "--die-with-parent" in seen["help"]
    assert "--backend-config" in seen["help"]
    assert seen["no route"] == ["skyrl's server has no route /api/v1/asample"]
    assert [line.split(" (")[0] for line in seen["no name"]] == [
        "skyrl has no skyrl.tinker.api:get_model",
        "skyrl has no skyrl.tinker.api:LoadWeightsRequest.model_fields",
    ]
    assert seen["server loads"] == []
    assert seen["late torch"] == [1, 1]
    assert seen["status"] == ["loading the model", launcher.READY]
    assert "skyrl has no skyrl.tinker.engine:TinkerEngine.gone" in seen["engine refused"]
    assert "skyrl.tinker.api" not in seen["engine refused"], "those names are the server's"
    assert "skyrl 0.4.0 is installed; this launcher changes private names of 0.3.9 only" in seen["refused"]


def test_the_file_needs_nothing_of_harbor_gym() -> None:
    source = Path(launcher.__file__).read_text(encoding="utf-8")
    assert "import harbor_gym" not in source
    assert "from harbor_gym" not in source


def test_a_child_dies_with_its_parent() -> None:
    child = (
        "import os, time; from harbor_gym.embedded import launcher; launcher.die_with_parent(os.getppid()); "
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert os.getpgid(pid)
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == "", "end of file: the child, which holds the other end, is gone"


def test_a_parent_that_is_gone_already_stops_the_child() -> None:
    code = "from harbor_gym.embedded import launcher; launcher.die_with_parent(1 << 30)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "is gone; not starting" in result.stderr
