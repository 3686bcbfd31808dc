"""Where TRL's AsyncGRPO is: in the installed TRL, and in the layout that TRL 1.18 published, of stand-ins.

STAND-INS: no index that the tests use has TRL 1.18. The modules below have its published names and nothing behind them
(its release page and huggingface/trl#7841); replace them by the real TRL as soon as it can be installed.
"""

import json
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.adapters.trl import layout
from harbor_gym.testing import write_tiny_task
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import FAKE

STAND_INS = {
    "trl/__init__.py": "class AsyncGRPOConfig: ...\nclass AsyncGRPOTrainer: ...\n",
    "trl/trainer/__init__.py": "",
    "trl/trainer/async_grpo_trainer.py": "",
    "trl/generation/__init__.py": "",
    "trl/generation/async_vllm_client.py": "class AsyncVLLMClient: ...\n",
    "trl/experimental/__init__.py": "",
    "trl/experimental/async_grpo/__init__.py": "import warnings\nwarnings.warn('it moved', FutureWarning)\n",
}

PROGRAM = f"""
import json, sys

from harbor_gym.adapters.trl import HarborSpec, layout
from harbor_gym.errors import UsageError

said = {{"imports TRL": "trl" in sys.modules}}
said["classes"] = [layout.AsyncGRPOConfig.__module__, layout.AsyncGRPOTrainer.__module__]
said["loop"] = layout.async_grpo_trainer.__name__
for name in ("RolloutSample", "packing"):
    try:
        getattr(layout, name)
    except UsageError as exc:
        said[name] = str(exc)
with HarborSpec(sys.argv[1], agent="terminal", sandbox={FAKE!r}) as spec:
    try:
        spec.rollout_worker(layout.AsyncGRPOConfig(), None, model="policy")
    except UsageError as exc:
        said["rollout_worker"] = str(exc)
said["no such name"] = hasattr(layout, "no_such_name")
print(json.dumps(said))
"""


def run(folder: Path, version: str) -> dict[str, Any]:
    """Run the program with a TRL of this version, whose modules are in the folder."""
    (folder / f"trl-{version}.dist-info").mkdir()
    (folder / f"trl-{version}.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    for name, content in STAND_INS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    task = write_tiny_task(folder / "task")
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", PROGRAM, str(task)],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_trl_1_18_published_is_found_and_the_rest_is_refused_in_one_sentence(tmp_path: Path) -> None:
    said = run(tmp_path, "1.18.0")
    assert said["imports TRL"] is said["no such name"] is False
    assert said["classes"] == ["trl", "trl"]
    assert said["loop"] == "trl.trainer.async_grpo_trainer"
    for name in ("RolloutSample", "packing", "rollout_worker"):
        what = "settings of AsyncGRPOConfig" if name == "rollout_worker" else name
        assert said[name] == (
            f"TRL 1.18.0 is installed, whose {what} harbor_gym does not know (TRL 1.18 moved and renamed AsyncGRPO): "
            "it was run with TRL 1.16, pip install 'trl>=1.16,<1.17'"
        )


def test_a_name_that_a_layout_has_lost_is_refused_alike(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STAND_INS, "trl/__init__.py", "class AsyncGRPOTrainer: ...\n")
        with pytest.raises(AssertionError, match=r"TRL 2\.0\.0rc1 is installed, whose AsyncGRPOConfig"):
            run(tmp_path, "2.0.0rc1")


def test_the_installed_trl_has_every_name() -> None:
    from trl.experimental.async_grpo import async_grpo_trainer, packing
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    assert (layout.AsyncGRPOConfig, layout.RolloutSample) == (AsyncGRPOConfig, RolloutSample)
    assert layout.AsyncGRPOTrainer == async_grpo_trainer.AsyncGRPOTrainer
    assert (layout.async_grpo_trainer, layout.packing) == (async_grpo_trainer, packing)


def test_the_extra_takes_what_was_run() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert layout.RUN in extras["trl"]


def test_no_other_module_names_its_home() -> None:
    files = [file for folder in ("harbor_gym", "recipes") for file in (ROOT / folder).rglob("*.py")]
    naming = [str(file.relative_to(ROOT)) for file in files if "trl.experimental.async_grpo" in file.read_text()]
    assert naming == ["harbor_gym/adapters/trl/layout.py"]
