"""The ``jupyter`` harness over a real kernel in a real sandbox."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.adapters.trl import HarborSpec, jupyter, verified_reward
from harbor_gym.adapters.trl.slot import EPISODE_OVER
from harbor_gym.errors import TaskError, UsageError
from tests.helpers.tasks import BASE, DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

ANSWERED = [{"role": "assistant", "content": "done"}]
DOCKERFILE = f"""\
FROM {BASE}
RUN python3 -c 'import ipykernel' 2>/dev/null \\
    || {{ apt-get update && apt-get install -y --no-install-recommends python3-ipykernel; }}
WORKDIR /srv
"""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAYAAACddGYaAAAADklEQVR4nGNgQAX/0RgAJAAD/eIM6vkAAAAASUVORK5CYII="
IMAGE = f"import base64\nfrom IPython.display import Image\nImage(base64.b64decode('{PNG}'))"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An environment with a kernel; each test resets it."""
    task = write_task(tmp_path_factory.mktemp("notebook") / "task", dockerfile=DOCKERFILE)
    with HarborSpec(task, agent="jupyter", sandbox="local", max_turns=12) as spec:
        yield spec.environment_factory()


def graded(environment: Any) -> float | None:
    return verified_reward([ANSWERED], [environment])[0]


def test_cells_share_a_kernel_until_it_is_restarted(notebook: Any) -> None:
    notebook.reset(task_index=0)
    assert notebook.run_cell("x = 20\ndef twice(n):\n    return 2 * n") == ""
    assert notebook.run_cell("print('ü')\ntwice(x) + 2") == "ü\n42"
    traceback = notebook.run_cell("1 / 0")
    assert "ZeroDivisionError: division by zero" in traceback
    assert "\x1b" not in traceback
    assert notebook.run_cell(IMAGE) == "[image/png, 3x2 pixels, 71 bytes] <IPython.core.display.Image object>"
    assert notebook.run_cell("import os; os.getcwd()") == "'/srv'"
    assert notebook.run_cell("input()").endswith("input requests.")
    assert "every variable is gone" in notebook.restart_kernel()
    assert "NameError: name 'x' is not defined" in notebook.run_cell("x")
    assert notebook.run_cell(f"!{DONE}") == ""
    assert graded(notebook) == 1.0


def test_episodes_do_not_share_a_kernel_and_cells_are_turns(notebook: Any) -> None:
    notebook.reset(task_index=0)
    assert "NameError" in notebook.run_cell("twice(1)")
    for _ in range(11):
        notebook.run_cell("1")
    assert notebook.run_cell("2") == EPISODE_OVER
    assert graded(notebook) == 0.0


def test_a_kernel_that_died_and_long_output(notebook: Any) -> None:
    notebook.reset(task_index=0)
    assert "[the kernel exited" in notebook.run_cell("print('last', flush=True)\nimport os\nos.kill(os.getpid(), 9)")
    notebook.restart_kernel()
    shown = notebook.run_cell("for n in range(100000): print(n)")
    assert shown.startswith("0\n1\n")
    assert shown.endswith("99998\n99999")
    assert "omitted" in shown
    assert len(shown.encode()) <= 10_000
    for wrong, message in ((1, "must be a string"), ("x" * 60_001, "60000 bytes"), ("\ud800", "surrogate")):
        with pytest.raises(UsageError, match=message):
            notebook.run_cell(wrong)
    assert notebook.run_cell("'ok'") == "'ok'"
    assert graded(notebook) == 0.0


def test_a_cell_that_runs_on(notebook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook.reset(task_index=0)
    with monkeypatch.context() as patch:
        patch.setattr(jupyter, "_CELL_TIMEOUT_SEC", 0.5)
        shown = notebook.run_cell("import time\nprint('begin', flush=True)\nwhile True: time.sleep(0.1)")
        assert "[still running; run_cell with empty code waits for it" in shown
        assert "[the last cell still runs: this one was not executed]" in notebook.run_cell("1")
        assert "[still running" in notebook.run_cell("")
    notebook.restart_kernel()
    assert notebook.run_cell("") == "[no cell runs]"
    assert notebook.run_cell("'again'") == "'again'"
    assert graded(notebook) == 0.0


def test_an_image_without_a_kernel_ends_the_training(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\nRUN rm -rf /usr/bin/python3*\n")
    with HarborSpec(task, agent="jupyter", sandbox="local") as spec:
        environment: Any = spec.environment_factory()
        environment.reset(task_index=0)
        with pytest.raises(TaskError, match="needs python3 with ipykernel"):
            graded(environment)
