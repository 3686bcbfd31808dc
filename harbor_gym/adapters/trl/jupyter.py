"""The ``jupyter`` harness: cells of a notebook in one kernel."""

import base64
import shlex
from pathlib import Path
from typing import ClassVar

from harbor_gym.adapters.trl.harness import ToolHarness
from harbor_gym.adapters.trl.notes import require_text
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.slots import Preparation

JUPYTER_TOOL_VERSION = "1"
"""Version of the tools as the prompt shows them, see ``BASH_TOOL_VERSION``."""

MAX_CELL_BYTES = 60_000
"""Longest code of one cell, as UTF-8: it is an argument on a command line."""

_DIRECTORY = "/tmp/.harbor-gym-notebook"  # in the sandbox
_SCRIPT = Path(__file__).parent / "scripts/notebook.py"
_CELL_TIMEOUT_SEC = 60.0
_START_TIMEOUT_SEC = 90.0
_GRACE_SEC = 20.0
"""Time beyond a cell's own limit, in seconds, in which the client starts or the kernel restarts."""
_SHOWN_CHARACTERS = 1000


async def start_kernel(env: AsyncTerminalGymEnv) -> None:
    """Start the notebook's kernel in a sandbox, before the policy acts.

    Raises:
        TaskError: The image has no Python with ipykernel.
        SandboxError: The sandbox failed.
    """
    code = base64.b64encode(_SCRIPT.read_bytes()).decode()
    install = "import base64, os, sys; os.makedirs(sys.argv[1], 0o700, True); " + (
        "open(sys.argv[1] + '/notebook.py', 'wb').write(base64.b64decode(sys.argv[2]))"
    )
    command = (
        f"python3 -c {shlex.quote(install)} {_DIRECTORY} {code} && "
        f"exec python3 {_DIRECTORY}/notebook.py start {_DIRECTORY} 2>&1"
    )
    result = await env.exec(command, timeout_sec=_START_TIMEOUT_SEC)
    if result.return_code != 0:
        reason = result.output.strip()[-_SHOWN_CHARACTERS:] or "it did not start in time"
        raise TaskError(
            f"{env.config.task_dir}: agent='jupyter' needs python3 with ipykernel in the sandbox, which did not start; "
            "add `RUN pip install ipykernel` (or apt-get install python3-ipykernel) to environment/Dockerfile, or pass "
            f"setup_command='pip install ipykernel'. Output: {reason}"
        )


class JupyterHarness(ToolHarness):
    """Tools ``run_cell`` and ``restart_kernel``: Python cells that share their variables.

    The sandbox needs ``python3`` with ``ipykernel``; without it the episode's start raises ``TaskError``. The kernel
    runs outside the terminal as the task's user, in the image's working directory. A cell is a turn of the episode, and
    its time counts for the episode's time limit.
    """

    _preparation: ClassVar[Preparation | None] = staticmethod(start_kernel)

    def run_cell(self, code: str) -> str:
        """Execute Python code in the notebook's kernel, where variables, imports and functions of earlier cells remain.

        Args:
            code: The cell. Lines that begin with ! run in a shell. Empty code waits for a cell that still runs.

        Returns:
            What the cell printed and the value of its last line, errors with their traceback, an image as its size. A
            cell that still runs after a minute goes on.
        """
        source = require_text("code", code)
        if (size := len(source.encode())) > MAX_CELL_BYTES:
            raise UsageError(f"a cell holds {MAX_CELL_BYTES} bytes of code at most, this one has {size}: write a file")
        encoded = base64.b64encode(source.encode()).decode()
        return self._call(f"run {_DIRECTORY} {_CELL_TIMEOUT_SEC:g} '{encoded}'")

    def restart_kernel(self) -> str:
        """Replace the kernel by a fresh one: every variable is gone, files stay, and a cell that runs ends.

        Returns:
            That it was restarted.
        """
        return self._call(f"restart {_DIRECTORY}")

    def _call(self, arguments: str) -> str:
        command = f"exec python3 {_DIRECTORY}/notebook.py {arguments} 2>&1"
        return self._exec(command, timeout_sec=_CELL_TIMEOUT_SEC + _GRACE_SEC)
