"""SIGTERM inside ``train()``: the training ends as by an exit, and the sandboxes of the batch stop.

The exit itself, by every signal, is that of the programs in ``adapters/trl/test_harness.py``.
"""

import os
import signal
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, override

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.adapters.trl import BashHarness, HarborSpec
from tests.helpers.tasks import write_task

pytestmark = [
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:You are using .* experimental feature:UserWarning"),
]

GROUP = 4


class Ending(BashHarness):
    """Sends SIGTERM to this process while the model answers the first batch, whose sandboxes have started."""

    started: ClassVar = 0
    timer: ClassVar = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))

    @override
    def reset(self, *, task_index: int | None = None, **row: object) -> None:
        super().reset(task_index=task_index, **row)
        Ending.started += 1
        if Ending.started == GROUP:
            self._type("true\n")
            Ending.timer.start()


@pytest.fixture
def unheard() -> Iterator[None]:
    """Have no handler of SIGTERM, as a program of its own."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def train(folder: Path) -> None:
    import trl
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from harbor_gym.embedded.policy import build_model, build_tokenizer

    template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text(encoding="utf-8")
    tokenizer = build_tokenizer([template], 1024)
    tokenizer.chat_template = template
    args = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_completion_length=4000,
        max_steps=1,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    with HarborSpec(write_task(folder / "task"), agent=Ending, sandbox="local") as spec:
        model = build_model(tokenizer, hidden_size=64, layers=2)
        GRPOTrainer(model=model, args=args, processing_class=tokenizer, **spec.trainer_arguments).train()


@pytest.mark.usefixtures("unheard")
def test_a_signal_inside_a_training_stops_its_sandboxes(tmp_path: Path) -> None:
    try:
        with pytest.raises(SystemExit) as ended:
            train(tmp_path)
    finally:
        Ending.timer.cancel()  # of a training that failed before: the signal would end the test process
    assert ended.value.code == 128 + signal.SIGTERM
    assert Ending.started == GROUP
