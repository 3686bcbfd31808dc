"""How terminal RL fails in the field, row by row: each failure that public issue threads report is made to happen here.

Rows that are not here, and why:

| row | failure | why not here |
|---|---|---|
| 8 | a lost response makes a second sandbox | this machine's kernel or daemon makes the sandboxes, under the trial's |
|   |   | name; a cloud provider's lost responses are Harbor's and the provider's affair                       |
| 12 | Docker runs out of networks at about 30 | needs more containers at once than a test machine holds; a pool |
|    |   | bounds starts (test_pool.py), and local sandboxes use no Docker network |

The parts of rows that are not done, and why:

| row | part | why not |
|---|---|---|
| 3 | a metric of programs that changed since the policy began | a root policy of the verifier's sandbox also   |
|   |   | answers for what is seen there, tasks that have packages installed change the same directories, and two |
|   |   | passes of stat cost 2.2 ms of processor time an episode. Open tasks are found before training:         |
|   |   | `harbor-gym check` plays these tricks and names those that pay (test_checking.py) |
| 5 | logs of what goes out to the network | where a task restricts it, an allowlist does: local's own               |
|   |   | (test_allowlist.py), Harbor's on Docker (test_fidelity_allowlist.py) |

Many rows have more tests than the one here, in their own rooms: 2, 3 and 6 in test_honest_grading.py; 5 in
test_sandbox_network.py and test_fidelity_network.py; 7 in test_local_sandbox.py, test_owners.py and
test_terminal_channel.py; 10 in test_pool.py; 14 and 24 in test_outcomes.py and test_tinker_env.py; 16 in test_tools.py;
18 and 19 in test_keys.py, test_oracle.py and test_observation.py; 21 and 22 in test_tinker_codec.py and
test_tinker_env.py; 25 in test_sandbox_limits.py, test_bench.py (lag of the event loop) and test_outcomes.py (memory).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason, TerminalConfig
from harbor_gym._runtime.owners import owner_label
from harbor_gym._runtime.procfs import read_stat
from harbor_gym.errors import (
    SandboxError,
    SandboxStartError,
    SandboxThrottledError,
    SandboxTimeoutError,
    UsageError,
    VerifierError,
)
from harbor_gym.rollout import Sample, run_episode
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import TokenStep
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.patience import PATIENCE_SEC, wait_until
from tests.helpers.sandboxes import failing
from tests.helpers.sandboxes.local import make_env
from tests.helpers.tasks import BASE, DONE, write_task
from tests.integration.episode.test_rollout import CharacterCodec

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

SLOW_NO = "#!/bin/bash\necho 0 > /logs/verifier/reward.txt\nsleep 0.3\n"


async def reward_of(task_dir: Path, *keystrokes: str, **settings: Any) -> float:
    """Type the keystrokes, declare the task complete, and return the reward."""
    async with make_env(task_dir, **settings) as env:
        await env.reset()
        for keys in keystrokes:
            await env.step([(keys, 10.0)])
        return (await env.step(COMPLETE))[1]


async def test_row_01_a_forged_reward_file_is_not_a_verdict(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "forged", test_sh="#!/bin/bash\nexit 1\n")
    async with make_env(task_dir) as env:
        await env.reset()
        for file, verdict in (("reward.txt", "1"), ("reward.json", '{"reward": 1}')):
            await env.step([(f"mkdir -p /logs/verifier; echo '{verdict}' > /logs/verifier/{file}\n", 30.0)])
        with pytest.raises(VerifierError, match=r"reward\.txt"):
            await env.step(COMPLETE)
        with pytest.raises(UsageError, match="reset"):
            await env.step(COMPLETE)


async def test_row_02_a_process_that_outlives_the_policy_rewrites_nothing(tmp_path: Path) -> None:
    loop = "while sleep 0.01; do echo 1 > /logs/verifier/reward.txt; done"
    task_dir = write_task(tmp_path / "rewritten", test_sh=SLOW_NO)
    assert await reward_of(task_dir, f"(setsid env -i bash -c '{loop}' >/dev/null 2>&1 &)\n") == 0.0


async def test_row_03_the_verifiers_shell_reads_nothing_of_the_policys(tmp_path: Path) -> None:
    """Search path, start-up files and functions of the policy's, where it is an ordinary user or stays in its shell."""
    test_sh = '#!/bin/bash\necho "$(date +%Y | grep -c "^20")" > /logs/verifier/reward.txt\n'
    plants = [
        "mkdir -p ~/bin .; printf '#!/bin/sh\\necho 1999\\n' > ~/bin/date; chmod +x ~/bin/date; cp ~/bin/date .\n",
        "export PATH=~/bin:.:$PATH BASH_ENV=~/.bashrc ENV=~/.bashrc; date() { echo 1999; }; export -f date\n",
        "echo 'date() { echo 1999; }; export PATH=~/bin:$PATH' | tee -a ~/.bashrc ~/.bash_profile ~/.profile\n",
        "date\n",
    ]
    assert await reward_of(write_task(tmp_path / "shadowed", test_sh=test_sh), *plants) == 1.0


async def test_row_04_a_later_step_finds_no_tests_of_an_earlier_one(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "steps", toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    for name in ("one", "two"):
        (task_dir / "steps" / name).mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Look.\n")
    async with make_env(task_dir) as env:
        await env.reset()
        await env.step(COMPLETE)
        observation, *_ = await env.step([("ls -A /tests /logs/verifier | grep -c '[a-z]*[.]'\n", 30.0)])
    assert "0" in observation.splitlines()


async def test_row_05_neither_the_solution_nor_the_network_is_in_reach(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "offline", toml='[environment]\nnetwork_mode = "no-network"\n')
    async with make_env(task_dir) as env:
        await env.reset()
        look = "ls -d /solution /tests 2>/dev/null | wc -l; grep -vc lo: /proc/net/dev; grep -c . /proc/net/route\n"
        observation, *_ = await env.step([(look, 30.0)])
    assert observation.splitlines()[1:4] == ["0", "2", "1"], "two and one are the tables' own headings"


async def test_row_06_work_after_the_time_limit_does_not_count(tmp_path: Path) -> None:
    wait = "while grep -qs 'sleep 2[0];' /proc/[0-9]*/cmdline; do sleep 0.1; done"
    test_sh = f"#!/bin/bash\n{wait}\n[ -e /srv/answer ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    late = f"(setsid env -i sh -c 'sleep 20; {DONE.strip()}' &)"
    task = write_task(tmp_path / "late", test_sh=test_sh)
    async with make_env(task, time_limit_sec=0.2, keep_agent_processes=False) as env:
        await env.reset()
        _, reward, done, info = await env.step([(f"{late}; sleep 0.3\n", 30.0)])
    assert (reward, done) == (0.0, True)
    assert info.get("end_reason") is EndReason.TIME_LIMIT
    assert info["metrics"]["stopped_processes"] >= 1


KILLED_WORKER = """\
import asyncio, sys
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
async def main():
    env = AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=sys.argv[1], sandbox="local"))
    await env.reset()
    await env.step([(f"sleep {sys.argv[2]} &\\n", 10.0)])
    print("up", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def is_running(command: str) -> bool:
    return subprocess.run(["pgrep", "-f", f"^{command}$"], check=False, capture_output=True).returncode == 0


def test_row_07_a_killed_worker_leaves_no_sandbox(task_dir: Path) -> None:
    mark = str(time.time_ns())
    command = [sys.executable, "-c", KILLED_WORKER, str(task_dir), mark]
    environment = {**os.environ, "TMPDIR": str(task_dir)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        wait_until(lambda: is_running(f"sleep {mark}"))
        worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(f"sleep {mark}"))


async def test_row_09_a_failed_stop_is_reported_and_a_failed_start_leaves_nothing(
    task_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_env(task_dir, sandbox="tests.helpers.sandboxes.failing:BrokenStart") as env:
        with pytest.raises(SandboxStartError, match="created but not started"):
            await env.reset()
    released = asyncio.Event()
    monkeypatch.setattr(failing.DeafStop, "released", released, raising=False)
    env = make_env(task_dir, sandbox="tests.helpers.sandboxes.failing:DeafStop", stop_timeout_sec=0.3)
    await env.reset()
    with pytest.raises(SandboxTimeoutError, match="did not stop"):
        await env.close()
    released.set()
    await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name().startswith("harbor-trial")])


async def test_row_10_a_rate_limit_is_no_reward_and_reports_how_long_to_wait(task_dir: Path) -> None:
    async with make_env(task_dir, sandbox="tests.helpers.sandboxes.failing:ThrottledStart") as env:
        with pytest.raises(SandboxThrottledError) as caught:
            await env.reset()
    assert (caught.value.retry_after_sec, caught.value.is_infrastructure) == (7.0, True)


async def test_row_11_a_start_that_wedges_has_a_deadline(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "wedged")
    await reward_of(task_dir)  # builds the image, which the second's deadline is not about
    write_task(task_dir, toml="[environment]\nbuild_timeout_sec = 1\n")
    async with make_env(task_dir, sandbox="tests.helpers.sandboxes.failing:WedgedStart") as env:
        with pytest.raises(SandboxTimeoutError, match="timed out"):
            await env.reset()


async def test_row_13_a_verifier_that_can_not_install_itself_is_no_zero(tmp_path: Path) -> None:
    test_sh = "#!/bin/bash\nset -e\nexec 3<>/dev/tcp/192.0.2.1/80\necho 0 > /logs/verifier/reward.txt\n"
    toml = '[environment]\nnetwork_mode = "no-network"\n'
    with pytest.raises(VerifierError) as caught:
        await reward_of(write_task(tmp_path / "unbootstrapped", test_sh=test_sh, toml=toml))
    assert "unreachable" in caught.value.diagnostics["verifier_output"]


@pytest.mark.parametrize(
    ("test_sh", "complaint"),
    [
        ("#!/bin/bash\ntrue\n", "must write"),
        ("#!/bin/bash\necho nan > /logs/verifier/reward.txt\n", "finite"),
        ("#!/bin/bash\n: > /logs/verifier/reward.txt\n", "empty"),
        ('#!/bin/bash\necho \'{"a":1,"b":0}\' > /logs/verifier/reward.json\n', "reward_key"),
    ],
)
async def test_row_14_no_verdict_is_an_error_and_not_a_zero(tmp_path: Path, test_sh: str, complaint: str) -> None:
    with pytest.raises(VerifierError, match=complaint) as caught:
        await reward_of(write_task(tmp_path / "mute", test_sh=test_sh))
    assert caught.value.is_infrastructure


async def test_row_15_the_verifiers_time_is_its_own(tmp_path: Path) -> None:
    """Neither the policy's budget nor the ceiling on one wait cuts it; the task's own limit does."""
    long = "#!/bin/bash\nsleep 1.2\necho 1 > /logs/verifier/reward.txt\n"
    task_dir = write_task(tmp_path / "long", test_sh=long, toml="[agent]\ntimeout_sec = 0.4\n")
    assert await reward_of(task_dir, terminal=TerminalConfig(max_wait_sec=0.5)) == 1.0
    task_dir = write_task(tmp_path / "longer", test_sh=long, toml="[verifier]\ntimeout_sec = 0.4\n")
    assert await reward_of(task_dir) == 0.0, "what the tests load may be the policy's"
    with pytest.raises(VerifierError, match=r"timed out after 0\.4 seconds.*timeout_sec"):
        await reward_of(task_dir, ambiguous_failures="infrastructure")


async def test_row_16_an_image_without_tmux_is_given_one(tmp_path: Path) -> None:
    dockerfile = f"FROM {BASE}\nRUN rm -f /usr/bin/tmux\nWORKDIR /srv\n"
    async with make_env(write_task(tmp_path / "bare", dockerfile=dockerfile)) as env:
        await env.reset()
        observation, *_ = await env.step([("command -v tmux || echo none here\n", 30.0)])
        assert "none here" in observation, "what was brought along is not the policy's"
        await env.step([(DONE, 30.0)])
        _, reward, *_ = await env.step(COMPLETE)
    assert reward == 1.0


BLOWS = ["exit\n", "kill -9 $$\n", "pkill -9 tmux\n", "rm -rf /tmp/* /run/.[!.]* /run/*; exit\n"]


@pytest.mark.parametrize("blow", BLOWS)
async def test_row_17_whoever_breaks_the_terminal_is_graded(task_dir: Path, blow: str) -> None:
    async with make_env(task_dir) as env:
        await env.reset()
        _, reward, done, info = await env.step([(DONE + blow, 30.0)])
        if not done:
            _, reward, done, info = await env.step([("true\n", 30.0)])
    assert (reward, done) == (1.0, True)
    assert info.get("end_reason") is EndReason.SESSION_ENDED


async def test_row_18_keystrokes_arrive_whole_and_an_interrupt_is_not_queued_behind_them(task_dir: Path) -> None:
    async with make_env(task_dir) as env:
        await env.reset()
        text = "".join(f"{n} -1 ; 'quoted' \\ $HOME\n" for n in range(500))
        await env.step([(f"cat > heredoc <<'END'\n{text}END\n", 10.0)])
        observation, *_ = await env.step([("echo sum $(wc -c < heredoc) -1 ;\n", 30.0)])
        assert f"sum {len(text)} -1" in observation
        await env.step([("cat > /dev/null\n" + text, 0.1)])
        observation, *_ = await env.step([("C-c", 1.0), ("echo back again\n", 30.0)])
    assert "back again" in observation.splitlines()


async def test_row_19_output_is_new_and_reports_what_is_left_out(task_dir: Path) -> None:
    async with make_env(task_dir, terminal=TerminalConfig(max_observation_bytes=2000)) as env:
        await env.reset()
        await env.step([("echo before\n", 30.0)])
        observation, _, _, info = await env.step([("seq 20000; printf 'torn \\xff\\xfe text\\n'\n", 20.0)])
        assert "before" not in observation
        assert "torn" in observation
        assert "20000" in observation
        assert "omitted" in observation
        assert len(observation.encode()) <= 2000 < (info.get("omitted_bytes") or 0)
        observation, *_ = await env.step([("echo after\n", 30.0)])
    assert "torn" not in observation


async def test_row_20_a_verifiers_child_that_holds_its_output_delays_nothing(tmp_path: Path) -> None:
    test_sh = "#!/bin/bash\nsleep 600 &\nyes | head -c 3000000\necho 1 > /logs/verifier/reward.txt\n"
    task_dir = write_task(tmp_path / "held", test_sh=test_sh, toml="[verifier]\ntimeout_sec = 60\n")
    assert await reward_of(task_dir) == 1.0


def token_env(task_dir: Path, *, max_context_tokens: int | None = None, **settings: Any) -> TokenTerminalEnv:
    env = make_env(task_dir, **settings)
    return TokenTerminalEnv(env, CharacterCodec(), max_tokens=200, max_context_tokens=max_context_tokens)


async def play(env: TokenTerminalEnv, *messages: str) -> list[TokenStep]:
    """Reset and send each message, to the end of the episode."""
    try:
        steps = [await env.reset()]
        for message in messages:
            steps.append(await env.step([*map(ord, message), 0]))
            if steps[-1].done:
                break
        return steps
    finally:
        await env.close()


def typed(keys: str) -> str:
    return json.dumps({"analysis": "", "plan": "", "commands": [{"keystrokes": keys, "duration": 30.0}]})


async def test_row_21_every_prompt_extends_the_one_before(task_dir: Path) -> None:
    output = [typed("echo '<think>no</think>'\n"), "  not JSON \u200b {", typed("ls -la /\n")]
    steps = await play(token_env(task_dir), *output)
    prompts = [list(step.observation) for step in steps]
    for (shorter, longer), message in zip(pairwise(prompts), output, strict=True):
        sampled = [*map(ord, message), 0]
        assert longer[: len(shorter) + len(sampled)] == shorter + sampled


async def test_row_22_a_full_context_ends_the_episode_and_is_graded(task_dir: Path) -> None:
    first = (await play(token_env(task_dir)))[0]
    limit = len(first.observation) + 1500
    env = token_env(task_dir, max_context_tokens=limit)
    *_, last = await play(env, typed(DONE), typed("seq 2000\n"), typed("true\n"))
    assert (last.done, last.reward) == (True, 1.0)
    assert last.info.get("end_reason") is EndReason.CONTEXT_OVERFLOW
    assert last.info.get("truncated") is True
    assert len(env.transcript.turns) == 2, "earlier turns stay"


async def test_row_23_unreadable_messages_execute_nothing_and_end_the_episode_in_the_end(task_dir: Path) -> None:
    async with make_env(task_dir, max_consecutive_parse_failures=2) as env:
        await env.reset()
        observation, reward, done, info = await env.step("rm -rf / # not JSON")
        assert info.get("parse_error")
        assert "JSON" in observation
        assert (reward, done) == (0.0, False)
        await env.step(typed("true\n"))
        await env.step("{")
        _, reward, done, info = await env.step("]")
    assert (reward, done) == (0.0, True)
    assert info.get("end_reason") is EndReason.PARSE_FAILURES
    assert info.get("rewards") == {"reward": 0.0}


async def test_row_24_a_failed_rollout_fails_alone_and_has_no_reward(tmp_path: Path) -> None:
    good = write_task(tmp_path / "good")

    async def solve(prompt: Sequence[int]) -> Sample:
        asked = list(prompt).count(1)
        return Sample([*map(ord, typed(DONE) if asked == 1 else COMPLETE), 0])

    environments = [
        token_env(good),
        token_env(good, sandbox="tests.helpers.sandboxes.failing:LostAtGrading"),
        token_env(good, sandbox="tests.helpers.sandboxes.failing:BrokenStart"),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_episode(env, solve)) for env in environments]
    rollouts = [task.result() for task in tasks]
    assert [rollout.reward for rollout in rollouts] == [1.0, None, None]
    assert [rollout.end_reason for rollout in rollouts][1:] == [EndReason.INFRASTRUCTURE_ERROR] * 2
    assert isinstance(rollouts[1].error, SandboxError | VerifierError)


async def test_row_25_a_full_disk_is_the_sandboxs_own(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "full", toml="[environment]\nstorage_mb = 64\n")
    async with make_env(task_dir) as env:
        await env.reset()
        await env.step([(DONE, 30.0)])
        observation, *_ = await env.step([("head -c 200M /dev/zero > /srv/big\n", 20.0)])
        assert "No space left on device" in observation
        observation, *_ = await env.step([("rm /srv/big; echo on we go\n", 20.0)])
        assert "on we go" in observation
        _, reward, *_ = await env.step(COMPLETE)
    assert reward == 1.0


def _processor_sec(group: Path) -> float:
    """Return the processor time, user's and kernel's, of the processes that a control group holds now."""
    pids = map(int, (group / "cgroup.procs").read_text().split())
    return sum(stat.cpu_sec for stat in map(read_stat, pids) if stat is not None)


async def test_row_25_a_busy_policy_leaves_the_other_processors_free(tmp_path: Path) -> None:
    """Four loops get no more than the one processor of task.toml, and the kernel reports that it held them back."""
    if "cpu" not in cgroups.places() or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors, and control groups: start the container with --privileged --cgroupns=host")
    task_dir = write_task(tmp_path / "busy", toml="[environment]\ncpus = 1\n")
    # A processor of its own could not give them more.
    async with make_env(task_dir, sandbox_options={"processor_set": False}) as env:
        await env.reset()
        place = cgroups.places()["cpu"]
        (group,) = place.directory.glob(f"harbor-gym-{owner_label()}-*")
        # Before all the rest of the machine: then nothing but the limit holds it back, however busy the machine is.
        weight = ("cpu.shares", "262144") if place.version == 1 else ("cpu.weight", "10000")
        (group / weight[0]).write_text(weight[1])
        await env.step([("for i in 1 2 3 4; do (while :; do :; done) & done\n", 30.0)])
        began, used = time.monotonic(), _processor_sec(group)
        deadline, throttled = began + PATIENCE_SEC, 0
        while throttled < 3:
            assert time.monotonic() < deadline, "the sandbox was never held back"
            await asyncio.sleep(0.1)
            counted = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            throttled = int(counted["nr_throttled"])
        used = _processor_sec(group) - used
        assert used <= (time.monotonic() - began) * 1.05 + 0.2
        await env.step([("kill $(jobs -p)\n", 30.0), (DONE, 30.0)])
        _, reward, *_ = await env.step(COMPLETE)
    assert reward == 1.0


async def test_row_25_episodes_leave_nothing_open_in_the_process_that_plays_them(task_dir: Path) -> None:
    async def held() -> tuple[int, int]:
        return await asyncio.to_thread(lambda: len(list(Path("/proc/self/fd").iterdir()))), len(asyncio.all_tasks())

    for _ in range(2):
        await reward_of(task_dir, DONE)
    files, tasks = await held()
    for _ in range(4):
        assert await reward_of(task_dir, DONE) == 1.0
    deadline = time.monotonic() + PATIENCE_SEC
    while (now := await held()) > (files, tasks) or now[1] > tasks:
        assert time.monotonic() < deadline, f"open files and tasks grew from {(files, tasks)} to {now}"
        await asyncio.sleep(0.1)
