"""A signal inside ``train()``: the sandboxes of the batch stop, and nothing is left.

SIGTERM becomes Ctrl-C's own signal (``_runtime/interrupts.py``), so that Ctrl-C does the same.
"""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

PROGRAM = """\
import sys
from pathlib import Path

import trl
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from harbor_gym.adapters.trl import BashHarness, HarborSpec
from harbor_gym.embedded.policy import build_model, build_tokenizer

GROUP = 4


class Reporting(BashHarness):
    started = 0

    def reset(self, **row):
        super().reset(**row)
        Reporting.started += 1
        if Reporting.started == GROUP:
            self._type("true\\n")
            print("running", flush=True)


template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
tokenizer = build_tokenizer([template], 1024)
tokenizer.chat_template = template
args = GRPOConfig(
    output_dir=sys.argv[2],
    per_device_train_batch_size=GROUP,
    num_generations=GROUP,
    max_completion_length=4000,
    max_steps=1,
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)
with HarborSpec(sys.argv[1], agent=Reporting, sandbox="local") as spec:
    model = build_model(tokenizer, hidden_size=64, layers=2)
    GRPOTrainer(model=model, args=args, processing_class=tokenizer, **spec.trainer_arguments).train()
"""


def test_a_signal_inside_a_training_stops_its_sandboxes(tmp_path: Path, scratch: Path) -> None:
    task, file = write_task(tmp_path / "task"), tmp_path / "program.py"
    file.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(file), str(task), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert program.stdout is not None
        assert "running\n" in iter(program.stdout.readline, "")
        running = subprocess.run(["ps", "-o", "pid=", "--ppid", str(program.pid)], capture_output=True, check=True)
        assert running.stdout.split(), "the sandboxes are processes of its own"
        program.terminate()
        assert program.wait(60) in (128 + signal.SIGTERM, -signal.SIGTERM)
    finally:
        program.kill()
        program.communicate()
    assert [path.name for path in scratch.iterdir() if path.name.startswith("harbor-gym")] == []
