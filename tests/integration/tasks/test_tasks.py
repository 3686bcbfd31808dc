"""The shipped tasks: their declarations, that they can be done in a terminal, and that half an answer is half."""

import filecmp
import hashlib
import re
from collections.abc import Sequence

import pytest
from harbor.models.task.task import Task

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.episode.task import declared_verify_paths, grades_in_shared_sandbox
from harbor_gym.types import EndReason, EpisodeInfo
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT

TASKS = ROOT / "tasks"
NAMES = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))


# --- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_harbor_reads_the_task_and_its_name_is_its_directorys(name: str) -> None:
    task = Task(TASKS / name)
    assert task.name == f"harbor-gym/{name.replace('_', '-')}"
    assert task.config.task is not None
    assert task.config.task.description
    instructions = [path.read_text() for path in TASKS.glob(f"{name}/**/instruction.md")]
    assert len(instructions) == max(1, len(task.config.steps or []))
    assert all(len(text.split()) <= 130 for text in instructions)


def test_the_readme_lists_every_task() -> None:
    assert re.findall(r"^\| `(\w+)`", (TASKS / "README.md").read_text(), re.MULTILINE) != []
    assert sorted(re.findall(r"^\| `(\w+)`", (TASKS / "README.md").read_text(), re.MULTILINE)) == NAMES


def test_together_they_use_what_a_task_can_declare() -> None:
    configs = [Task(TASKS / name).config for name in NAMES]
    steps = [step for config in configs for step in config.steps or []]
    assert {type(step.min_reward) for step in steps} == {float, dict, type(None)}
    assert any(config.verifier.environment is not None and config.artifacts for config in configs)
    assert any(config.verifier.collect for config in configs)
    assert any(config.agent.user and config.environment.healthcheck for config in configs)
    assert any(config.environment.skills_dir and config.environment.mcp_servers for config in configs)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_graded_where_the_policy_was_declares_what_its_verifier_sees(name: str) -> None:
    task = Task(TASKS / name)
    is_shared = any(grades_in_shared_sandbox(task, step) for step in task.config.steps or [None])
    assert (declared_verify_paths(task) is not None) is is_shared


def test_copies_are_copies() -> None:
    """A task directory stands alone: a file that two need is in both."""
    first, *others = sorted(TASKS.glob("*/tests/verdict.py"))
    assert len(others) >= 3
    assert all(filecmp.cmp(first, other, shallow=False) for other in others)
    for name, file in (("ledger_separate_verifier", "ledger.csv"), ("vim_swap_recovery", "unsaved.md")):
        (shown,) = (TASKS / name / "environment").rglob(file)
        assert filecmp.cmp(shown, TASKS / name / "tests" / file, shallow=False)


def test_the_log_verifiers_know_the_original_logs() -> None:
    task = TASKS / "log_rotation_steps"
    logs = task / "environment" / "logs"
    originals = (task / "tests" / "originals.py").read_text()
    traffic = task / "steps" / "compress" / "workdir" / "new_traffic.txt"
    files = {"LIVE": logs / "shop.log", "FIRST": logs / "shop.log.1", "SECOND": logs / "shop.log.2", "TRAFFIC": traffic}
    for constant, file in files.items():
        assert f'{constant} = "{hashlib.sha256(file.read_bytes()).hexdigest()}"\n' in originals


# --- done by hand ----------------------------------------------------------------------------------------------------


def env_for(name: str) -> AsyncTerminalGymEnv:
    require_engine("local")
    return AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=TASKS / name, sandbox="local", confirm_task_complete=False))


async def finish(env: AsyncTerminalGymEnv) -> tuple[float, bool, EpisodeInfo]:
    """Declare the task, or the step, complete."""
    done = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'
    _, reward, is_over, info = await env.step(done)
    return reward, is_over, info


async def grade(name: str, command: str) -> float:
    """Type a command into the task's terminal, declare the task complete, and return the reward."""
    async with env_for(name) as env:
        await env.reset()
        await env.step([(f"{command}\n", 10.0)])
        reward, _, _ = await finish(env)
        return reward


@pytest.mark.local
async def test_vim_swap_recovery_is_solved_with_keystrokes_in_vim() -> None:
    async with env_for("vim_swap_recovery") as env:
        screen, _ = await env.reset()
        screen, _, _, _ = await env.step([("vim -r incident.md\n", 10.0)])
        assert "Recovery completed" in screen
        screen, _, _, _ = await env.step([("\n", 10.0)])
        assert "nightly export" in screen
        await env.step([("/Owner\n", 10.0), ("f?s", 10.0), ("dana", 10.0), ("Escape", 10.0)])
        screen, _, _, info = await env.step([(":%s/owner: ?$/owner: dana/\n", 10.0)])
        assert screen.count("wner: dana") == 4
        assert "fullscreen" in info.get("waits", ())
        await env.step([(":wq\n", 30.0), ("rm .incident.md.swp\n", 30.0)])
        reward, is_over, info = await finish(env)
        assert (reward, is_over) == (1.0, True)
        assert info.get("rewards") == {"reward": 1.0, "recovered": 1.0, "edited": 1.0, "tidy": 1.0}


@pytest.mark.local
async def test_sensor_console_is_solved_by_reading_each_answer() -> None:
    async with env_for("sensor_console") as env:
        await env.reset()
        screen, _, _, info = await env.step([("station\n", 30.0)])
        assert "station>" in screen
        assert info.get("waits", ()) == ("tty_read",)
        for sensor in "ABC":
            low, high = 0, 99
            while "locked" not in screen:
                middle = (low + high) // 2
                screen, _, _, _ = await env.step([(f"try {sensor} {middle}\n", 30.0)])
                low, high = (middle + 1, high) if "too low" in screen else (low, middle - 1)
            screen = ""
        screen, _, _, _ = await env.step([("commit\n", 30.0), ("quit\n", 30.0)])
        assert "committed, 3 of 3 locked" in screen
        reward, is_over, _ = await finish(env)
        assert (reward, is_over) == (1.0, True)


@pytest.mark.local
async def test_sealed_archive_is_opened_by_the_code_that_was_shown_first() -> None:
    async with env_for("sealed_archive") as env:
        await env.reset()
        screen, _, _, _ = await env.step([("archive code\n", 30.0)])
        code = screen.split("code: ")[1].split()[0]
        for page in range(1, 5):
            screen, _, _, _ = await env.step([("archive next\n", 30.0)])
            assert f"page {page} of 4\n" in screen
        screen, _, _, _ = await env.step([("archive code\n", 30.0), ("archive next\n", 30.0)])
        assert "the code was shown" in screen
        assert "no more pages" in screen
        screen, _, _, _ = await env.step([(f"archive open {code}\n", 30.0)])
        assert "opened" in screen
        reward, is_over, _ = await finish(env)
        assert (reward, is_over) == (1.0, True)


ROTATE = "cd /var/log/shop; mv shop.log.2 shop.log.3; mv shop.log.1 shop.log.2; mv shop.log shop.log.1"
COUNT = "awk '{ print $2, $1; sum += $1 } END { print \"total\", sum }'"
REPORT = f"zcat -f shop.log* | grep ERROR | cut -c12-13 | sort | uniq -c | {COUNT}"


@pytest.mark.local
async def test_log_rotation_is_graded_step_by_step() -> None:
    async with env_for("log_rotation_steps") as env:
        _, info = await env.reset()
        assert "never rotated" in info.get("instruction", "")
        await env.step([(f"{ROTATE}\n", 30.0)])
        reward, is_over, info = await finish(env)
        assert (reward, is_over) == (0.0, False)
        assert "gzip" in info.get("instruction", "")
        await env.step([("cd /var/log/shop; gzip shop.log.2 shop.log.3\n", 30.0)])
        reward, is_over, info = await finish(env)
        assert (reward, is_over) == (0.0, False)
        assert list(info.get("step_rewards", ()))[1:] == [{"reward": 1.0, "kept": 1.0}]
        await env.step([(f"cd /var/log/shop; {REPORT} > ~/report.txt\n", 30.0)])
        reward, is_over, info = await finish(env)
        assert (reward, is_over) == (info.get("episode_reward"), True)
        assert reward == pytest.approx((0.75 + 1 + 1) / 3)


@pytest.mark.local
@pytest.mark.parametrize(
    ("steps", "rewards", "combined"),
    [
        (["mv /var/log/shop/shop.log.2 /var/log/shop/shop.log.3"], [0.25], 0.25),
        ([f"{ROTATE}; install -m 640 /dev/null shop.log", "rm /var/log/shop/shop.log.1"], [1.0, 0.0], 0.5),
    ],
    ids=["min_reward is a number", "min_reward is a table"],
)
async def test_log_rotation_ends_at_a_gate(steps: Sequence[str], rewards: Sequence[float], combined: float) -> None:
    async with env_for("log_rotation_steps") as env:
        await env.reset()
        outcomes: list[bool] = []
        info = EpisodeInfo(turn=0, metrics={})
        for command in steps:
            await env.step([(f"{command}\n", 30.0)])
            _, is_over, info = await finish(env)
            outcomes.append(is_over)
        assert outcomes == [number == len(rewards) for number in range(1, len(rewards) + 1)]
        assert [item["reward"] for item in info.get("step_rewards", ())] == rewards
        assert info.get("end_reason") is EndReason.STEP_GATE
        assert info.get("episode_reward") == combined


RECOVER = "cd ~/notes; vi -u NONE -es -r incident.md -c 'wq!'"
HALF = "cash,7855.06 fees,3166.44 rent,-2084.23"
BALANCES = f"{HALF} sales,-3818.80 stock,-3515.77 wages,-1602.70"
PARTS = {
    "recovered, nothing else": ("vim_swap_recovery", RECOVER, 0.5),
    "recovered and tidy, not edited": ("vim_swap_recovery", f"{RECOVER}; rm .*.swp", 0.75),
    "swap file thrown away": ("vim_swap_recovery", "rm ~/notes/.*.swp", 0.0),
    "answers reached through a link": ("vim_swap_recovery", "cd ~/notes; ln -sf /tests/unsaved.md incident.md", 0.0),
    "nothing locked": ("sensor_console", "printf 'try A 100\\ncommit\\n' | script -qc station /dev/null", 0.0),
    "console without a terminal": ("sensor_console", "printf 'commit\\n' | station", 0.0),
    "record out of reach": ("sensor_console", "echo '{\"locked\": [1, 2, 3]}' > /var/lib/station/record.json", 0.0),
    "pages not read": ("sealed_archive", "archive open $(archive code | cut -c 7-)", 0.0),
    "a wrong code, then the right one": (
        "sealed_archive",
        "for i in 1 2 3 4; do archive next >x; done; archive open x; archive open $(archive code | cut -c 7-)",
        0.0,
    ),
    "the archive's record out of reach": (
        "sealed_archive",
        "echo '{\"opened\": true}' > /var/lib/archive/record.json",
        0.0,
    ),
    "balances without a header": ("ledger_separate_verifier", f"printf '%s\\n' {BALANCES} > balances.csv", 0.9),
    "half of the balances": ("ledger_separate_verifier", f"printf '%s\\n' x {HALF} > balances.csv", 0.45),
    "input changed": ("ledger_separate_verifier", "echo >> ledger.csv; echo account,balance > balances.csv", 0.0),
    "version only": ("release_notes_skill", "echo '## 3.0.0' > NOTES.md", 0.2),
    "notes are a link": ("release_notes_skill", "ln -s /tests/expected.md NOTES.md", 0.0),
}


@pytest.mark.local
@pytest.mark.parametrize(("name", "command", "reward"), PARTS.values(), ids=PARTS.keys())
async def test_part_of_an_answer_is_part_of_the_reward(name: str, command: str, reward: float) -> None:
    assert await grade(name, command) == pytest.approx(reward)
