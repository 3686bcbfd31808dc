"""Parts of the supervisor's own program, in the interpreter and with the modules that it has."""

import subprocess

from harbor_gym.sandboxes.supervisor.forkserver_client import supervisor_argv, supervisor_environment
from tests.helpers.patience import PATIENCE_SEC


def run_in_program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where the supervisor's modules are imported from; ``sys.argv[1:]`` are the arguments."""
    argv = supervisor_argv()
    boot = argv.index("-c") + 1
    argv[boot] = argv[boot].partition("import main")[0] + code
    return subprocess.run(
        [*argv, *arguments],
        env=supervisor_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SEC,
    )
