"""The shipped tasks through the tool ``bash``: their solutions by tool calls; and many resets that leave nothing."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor.models.task.task import Task

from harbor_gym.adapters.trl import HarborSpec, verified_reward
from harbor_gym.adapters.trl.slot import TASK_OVER
from harbor_gym.testing.leftovers import find_leftovers
from tests.helpers.paths import ROOT
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

TASKS = sorted(path.parent for path in (ROOT / "tasks").glob("*/task.toml"))
ANSWERED = [{"role": "assistant", "content": "done"}]
SOLUTION = "/tmp/solution.sh"
SLOTS, ROUNDS = 8, 4


def solve(environment: Any, script: Path) -> str:
    """Write a solution and run it, each by a tool call."""
    environment.bash(f"cat > {SOLUTION} <<'SOLUTION'\n{script.read_text(encoding='utf-8')}\nSOLUTION")
    return environment.bash(f"bash {SOLUTION}")


@pytest.mark.parametrize("task_dir", TASKS, ids=lambda path: path.name)
def test_the_solutions_commands_by_tool_calls(task_dir: Path) -> None:
    steps = Task(task_dir).config.steps or []
    with HarborSpec(task_dir, agent="bash", sandbox="local") as spec:
        solver, idler = (spec.environment_factory() for _ in range(2))
        for environment in (solver, idler):
            environment.reset(task_index=0)
        if not steps:
            solve(solver, task_dir / "solution/solve.sh")
        for number, step in enumerate(steps, start=1):
            solve(solver, task_dir / "steps" / step.name / "solution/solve.sh")
            output: str = solver.finish_step()  # pyright: ignore[reportAttributeAccessIssue]  # the tool for steps
            assert (output == TASK_OVER) is (number == len(steps))
        solved, idle = verified_reward([ANSWERED] * 2, [solver, idler])
    assert solved == 1.0
    assert idle is not None
    assert idle < 1.0


def test_a_tools_text_is_the_shells_and_an_exit_code_its_own(tmp_path: Path) -> None:
    script = "cc:\n\tgcc -o prog main.c\n\t@echo !! !cc\n"
    check = f"#!/bin/bash\ncmp /srv/Makefile <<'EOF' && [ -s /srv/run.sh ]\n{script}EOF\n"
    task = write_task(tmp_path / "task", test_sh=f"{check}echo $((! $?)) >/logs/verifier/reward.txt\n")
    with HarborSpec(task, agent="bash", sandbox="local") as spec:
        environment: Any = spec.environment_factory()
        environment.reset(task_index=0)
        environment.bash(f"cat > /srv/Makefile <<'EOF'\n{script}EOF")
        environment.bash('echo "#!/bin/bash" > /srv/run.sh')
        assert "exit code 3" in environment.bash("(exit 3)")
        assert "exit code" not in environment.bash("# not a command")
        assert "exit code" not in environment.bash("echo 'not yet closed")
        environment.bash("'")
        assert verified_reward([ANSWERED], [environment]) == [1.0]


def test_many_resets_leave_nothing(tmp_path: Path) -> None:
    before = find_leftovers(is_exempt=lambda pid: True)
    with HarborSpec(write_task(tmp_path / "task"), agent="bash", sandbox="local", pool_size=2) as spec:
        environments: list[Any] = [spec.environment_factory() for _ in range(SLOTS)]
        for _ in range(ROUNDS):
            for environment in environments:
                environment.reset(task_index=0)
            environments[0].bash("sleep 1000 &")
        assert environments[-1].bash("pwd")
    assert find_leftovers(is_exempt=lambda pid: True) <= before
