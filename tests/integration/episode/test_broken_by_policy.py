"""A policy that breaks its own sandbox has failed: it is graded, or gets 0; never an error that voids the episode."""

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalConfig, TerminalEnvConfig
from harbor_gym.episode.grading import breakage, cleanup
from harbor_gym.errors import VerifierError
from harbor_gym.types import EpisodeInfo
from tests.helpers.bases import ensure_base_tar
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.rootless import rootless_user, run_as
from tests.helpers.tasks import BASE, DONE, PASS_IF_DONE, write_task

pytestmark = [pytest.mark.usefixtures("nothing_left")]


async def play(
    task_dir: Path, *keystrokes: str, sandbox: str = "local", terminal: TerminalConfig | None = None, **settings: Any
) -> tuple[float, EpisodeInfo]:
    """Type the keystrokes, declare the task complete unless the episode is over before, and return how it ended."""
    config = TerminalEnvConfig(
        task_dir=task_dir,
        sandbox=sandbox,
        confirm_task_complete=False,
        terminal=terminal or TerminalConfig(max_wait_sec=30.0),
        **settings,
    )
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for keys in keystrokes:
            _, reward, done, info = await env.step([(keys, 2.0 if keys in BLOWS.values() else 30.0)])
            if done:
                return reward, info
            if keys in BLOWS.values():
                await asyncio.sleep(2)  # as long as a model's next answer takes, in which the processes become many
        _, reward, done, info = await env.step(COMPLETE)
        assert done
        return reward, info


BLOWS = {
    "stops everybody": "kill -STOP -1\n",
    "forks without end": "bomb() { bomb | bomb & }; bomb\n",
    "stops and forks": "(while :; do kill -STOP -1; done) & bomb() { bomb | bomb & }; bomb\n",
    "kills everybody": "kill -KILL -1\n",
}
"""Attacks that leave the files as they were: the host can still enter, and the task is graded."""

APART = {name: keys for name, keys in BLOWS.items() if name != "stops and forks"}
"""Without the one of two attacks at once, which takes all of the machine's processors until the host gives up."""

RUINS = {
    "a shell that does nothing": "cp /bin/true /tmp/t; cp -f /tmp/t /usr/bin/bash\n",
    "a shell that answers wrongly": "echo '#!/bin/echo fine' > /tmp/t; chmod +x /tmp/t; mv /tmp/t /usr/bin/bash\n",
    "a shell that answers with one long line": (
        "printf '#!/usr/bin/perl\\n$| = 1; print \"x\" x 300000;\\n' > /tmp/t; chmod +x /tmp/t\n"
        "cp /tmp/t /tmp/u; mv -f /tmp/t /usr/bin/sh; mv -f /tmp/u /usr/bin/bash\n"
    ),
    "no shell": "rm -f /usr/bin/bash /usr/bin/dash /usr/bin/sh\n",
    "a renamed shell": "mv /usr/bin/bash /usr/bin/hidden\n",
    "no programs": "rm -rf /usr /bin\n",
}
"""Attacks that leave no program to run the tests with."""


_IMAGE = f"""\
FROM {BASE}
RUN useradd -m dev && useradd -m grader && install -d -o dev /app && chmod 777 /srv
WORKDIR /app
"""
_SOLVED = "mkdir -p /srv && echo done > /srv/answer\n"


@dataclass(frozen=True)
class Deed:
    """Something in the policy's power, and the task that it is done to."""

    keys: str
    reward: float | None = 1.0
    """The reward of the task, solved before; None where there is no verdict: then it counts as 0."""

    toml: str = ""
    as_user: bool = True
    """Whether an ordinary user of the sandbox can do it, too."""


DEEDS = {
    "its workdir removed": Deed("cd /; rm -rf /app\n", as_user=False),
    "a file in place of its workdir": Deed("cd /; rm -rf /app; echo > /app\n", as_user=False),
    "a link to itself in place of its workdir": Deed("cd /; rm -rf /app; ln -s app /app\n", as_user=False),
    "a file in place of the agent's logs": Deed("rm -rf /logs/agent; echo > /logs/agent\n", as_user=False),
    "a file in place of all logs": Deed("rm -rf /logs; echo > /logs\n", as_user=False),
    "the verifier's user renamed": Deed(
        "sed -i s/^grader:/other:/ /etc/passwd\n", toml='[verifier]\nuser = "grader"\n', as_user=False
    ),
    "the verifier's user out of range": Deed(
        "sed -i 's/^grader:x:[0-9]*/grader:x:99999999999/' /etc/passwd\n",
        toml='[verifier]\nuser = "grader"\n',
        as_user=False,
    ),
    "no accounts": Deed("rm /etc/passwd /etc/group\n", toml='[verifier]\nuser = "grader"\n', as_user=False),
    "no bytes left": Deed(
        "cat /dev/zero > /tmp/z; while echo >> /tmp/y; do :; done\n", toml="[environment]\nstorage_mb = 64\n"
    ),
    "no inodes left": Deed(
        "cd /tmp; mkdir many; cd many; i=0; while : > $((i+=1)); do :; done 2>/dev/null; cd /\n",
        toml="[environment]\nstorage_mb = 64\n",
    ),
    "a directory in place of the resolver": Deed(
        "rm -rf /etc/resolv.conf; mkdir -p /etc/resolv.conf/x\n",
        toml='[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n',
        as_user=False,
    ),
    "a file in place of /etc": Deed(
        "mv /etc /gone; echo > /etc\n",
        toml='[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n',
        as_user=False,
    ),
    "tests without an end": Deed("touch /srv/endless\n", None, "[verifier]\ntimeout_sec = 3.0\n"),
}
"""Deeds of any user that end neither the episode nor its grading; each was an infrastructure error once."""

_AS_GRADER = '[verifier]\nuser = "grader"\n'
_AT_ONCE = (
    ("the verifier's user renamed", "its workdir removed"),
    ("the verifier's user out of range", "a file in place of its workdir", "a file in place of the agent's logs"),
    ("no accounts", "a link to itself in place of its workdir", "a file in place of all logs"),
)
TOGETHER = {
    **{" + ".join(names): Deed("".join(DEEDS[name].keys for name in names), toml=_AS_GRADER) for names in _AT_ONCE},
    **{name: deed for name, deed in DEEDS.items() if name not in {name for names in _AT_ONCE for name in names}},
}
"""All deeds in fewer episodes, for sandboxes that cost more: each disturbs another part of the grading."""

_LOADS_WHAT_THE_POLICY_MADE = f"{PASS_IF_DONE}if [ -e /srv/endless ]; then sleep 1000; fi\n"


def write_deed_task(task_dir: Path, deed: Deed, *, has_view: bool, user: str | None) -> Path:
    """Write a task with its answer outside its workdir."""
    root = 'verify_paths = ["/srv", "/app"]\n' if has_view else ""
    owner = f'[agent]\nuser = "{user}"\n' if user is not None else ""
    return write_task(
        task_dir,
        dockerfile=_IMAGE,
        test_sh=_LOADS_WHAT_THE_POLICY_MADE,
        toml=f"{deed.toml}{owner}[metadata]\n{root}",
    )


async def check_deed(task_dir: Path, deed: Deed, *, has_view: bool, user: str | None, **settings: Any) -> None:
    """Solve a task, do the deed, and expect a verdict on it."""
    write_deed_task(task_dir, deed, has_view=has_view, user=user)
    reward, info = await play(task_dir, _SOLVED, deed.keys, **settings)
    if deed.reward is None:
        assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)
        assert "ran out of time" in info.get("breakage", "")
    else:
        assert (reward, info.get("rewards"), info.get("breakage")) == (deed.reward, {"reward": deed.reward}, None)


@pytest.mark.local
@pytest.mark.parametrize("has_view", [False, True], ids=["plain", "view"])
@pytest.mark.parametrize("deed", DEEDS)
async def test_what_root_can_do_is_graded(tmp_path: Path, deed: str, has_view: bool) -> None:
    await check_deed(tmp_path / "task", DEEDS[deed], has_view=has_view, user=None)


@pytest.mark.local
@pytest.mark.parametrize("has_view", [False, True], ids=["plain", "view"])
@pytest.mark.parametrize("deed", [name for name, deed in DEEDS.items() if deed.as_user])
async def test_what_a_user_can_do_is_graded(tmp_path: Path, deed: str, has_view: bool) -> None:
    await check_deed(tmp_path / "task", DEEDS[deed], has_view=has_view, user="dev")


@pytest.mark.local
@pytest.mark.slow
async def test_accounts_that_block_their_readers_are_removed_before_grading(tmp_path: Path) -> None:
    """Shells wait for the FIFO, the verifier's too: without the removal it would run out of time."""
    keys = "ln -sf /run/pipe /etc/nsswitch.conf; rm -f /etc/passwd; mkfifo /run/pipe /etc/passwd\n"
    task_dir = write_task(tmp_path / "task", toml="[verifier]\ntimeout_sec = 20.0\n")
    reward, info = await play(task_dir, DONE, keys)
    assert (reward, info.get("rewards")) == (1.0, {"reward": 1.0})


@pytest.mark.local
@pytest.mark.parametrize("blow", BLOWS)
async def test_who_breaks_the_terminal_is_graded(tmp_path: Path, blow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakage, "_PROBE_TIMEOUT_SEC", 5)  # the forks take all of the machine's processors meanwhile
    task_dir = write_task(tmp_path / "task")
    reward, info = await play(task_dir, DONE, BLOWS[blow], sandbox_options={"max_processes": 200})
    assert (reward, info.get("rewards")) == (1.0, {"reward": 1.0})
    assert info.get("end_reason") in (EndReason.SESSION_ENDED, EndReason.COMPLETED)


FIFO = "rm -f /etc/passwd; mkfifo /etc/passwd\n"
SLEEPING_SHELL = (
    "printf '#!/usr/bin/perl\\nsleep 100000;\\n' > /tmp/t; chmod +x /tmp/t\n"
    "cp /tmp/t /tmp/u; mv -f /tmp/t /usr/bin/sh; mv -f /tmp/u /usr/bin/bash; exec /usr/bin/bash\n"
)


@pytest.fixture
def without_long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no probe and no script of the clean-up end by its long limit."""
    monkeypatch.setattr(breakage, "_PROBE_TIMEOUT_SEC", 100_000.0)
    monkeypatch.setattr(cleanup, "_TIMEOUT_SEC", 100_000)


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("without_long_limits")
async def test_a_step_without_an_answer_ends_by_one_short_probe(tmp_path: Path) -> None:
    """Each command that begins waits for the FIFO, until it is removed before grading."""
    terminal = TerminalConfig(max_wait_sec=1.0)
    async with asyncio.timeout(PATIENCE_SEC):
        reward, info = await play(write_task(tmp_path / "task"), DONE, FIFO, terminal=terminal)
    assert (reward, info.get("waits")) == (1.0, ("ended",))


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.usefixtures("without_long_limits")
@pytest.mark.parametrize("keys", [FIFO, "rm /etc/passwd; mkfifo /run/pipe; ln -s /run/pipe /etc/passwd\n"])
async def test_on_docker_no_fifo_holds_up_the_daemon(tmp_path: Path, keys: str) -> None:
    """The daemon would wait for it at the next command, and would not remove the container either."""
    task_dir = write_task(tmp_path / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    async with asyncio.timeout(PATIENCE_SEC):
        terminal = TerminalConfig(max_wait_sec=1.0)
        reward, info = await play(task_dir, DONE, keys, sandbox="docker", terminal=terminal)
    assert (reward, info.get("breakage")) == (1.0, None)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.usefixtures("without_long_limits")
async def test_on_docker_a_sandbox_without_an_answer_is_probed_once_more(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    terminal = TerminalConfig(max_wait_sec=1.0)
    async with asyncio.timeout(PATIENCE_SEC):
        reward, info = await play(task_dir, DONE, SLEEPING_SHELL, sandbox="docker", terminal=terminal)
    assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)
    assert info.get("breakage")


@pytest.mark.local
@pytest.mark.parametrize("ruin", RUINS)
async def test_who_leaves_nothing_to_grade_with_has_failed(tmp_path: Path, ruin: str) -> None:
    reward, info = await play(write_task(tmp_path / "task"), DONE, RUINS[ruin])
    assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)
    assert (info.get("rewards"), info.get("episode_reward"), info.get("truncated")) == ({}, 0.0, False)
    assert info.get("breakage")


@pytest.mark.local
async def test_a_verifier_that_is_mute_by_itself_is_not_the_policys_doing(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="must write"):
        await play(write_task(tmp_path / "mute", test_sh="#!/bin/bash\ntrue\n"), "rm /usr/bin/ls\n")


@pytest.mark.local
@pytest.mark.parametrize("mark", ["printf() { echo X; }\n", "PROMPT_COMMAND=\"echo 'A B'\"\n", "echo() { :; }\n"])
async def test_who_forges_what_the_terminal_shows_is_graded(tmp_path: Path, mark: str) -> None:
    reward, _ = await play(write_task(tmp_path / "task"), DONE, mark, "true\n")
    assert reward == 1.0


@pytest.mark.local
async def test_what_is_left_of_a_multi_step_task_counts_as_nothing(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "steps", toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    for name in ("one", "two"):
        (task_dir / "steps" / name).mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Do it.\n")
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(DONE, 30.0)])
        _, reward, done, _ = await env.step(COMPLETE)
        assert (reward, done) == (0.0, False)
        _, reward, done, info = await env.step([(RUINS["no shell"], 5.0)])
        if not done:
            _, reward, done, info = await env.step(COMPLETE)
    assert (reward, done, info.get("end_reason")) == (0.5, True, EndReason.SANDBOX_BROKEN)
    assert (info.get("rewards"), info.get("step_rewards")) == ({"reward": 0.5}, ({"reward": 1.0}, {}))


@pytest.mark.local
@pytest.mark.slow
async def test_an_ordinary_users_policy_fares_no_better(tmp_path: Path) -> None:
    base = await ensure_base_tar()

    def run() -> str:
        with rootless_user() as (user, home):
            done = run_as(user, home, sys.executable, "-m", __name__, base=base)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

    output = json.loads((await asyncio.to_thread(run)).splitlines()[-1])
    assert {name: tuple(output[name]) for name in RUINS} == dict.fromkeys(RUINS, (0.0, "sandbox_broken"))
    assert {name: output[name][0] for name in APART} == dict.fromkeys(APART, 1.0)
    expected = {name: deed.reward or 0.0 for name, deed in TOGETHER.items()}
    assert {name: output[name][0] for name in TOGETHER} == expected


@pytest.mark.docker
@pytest.mark.slow
async def test_on_docker_the_same_holds(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    reward, info = await play(task_dir, DONE, BLOWS["stops everybody"], sandbox="docker")
    assert (reward, info.get("end_reason")) == (1.0, EndReason.SESSION_ENDED)
    for ruin, reason in (("no shell", ""), ("a shell that answers with one long line", "answers with one long line")):
        reward, info = await play(task_dir, DONE, RUINS[ruin], sandbox="docker")
        assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)
        assert reason in info.get("breakage", "")


@pytest.mark.local
@pytest.mark.parametrize("transport", ["portable", "persistent"])
async def test_who_removes_its_workdir_goes_on(tmp_path: Path, transport: Literal["portable", "persistent"]) -> None:
    task_dir = write_deed_task(tmp_path / "task", DEEDS["its workdir removed"], has_view=False, user=None)
    settings: dict[str, Any] = {"terminal": TerminalConfig(transport=transport), "capture_screen": True}
    keys = [DEEDS["its workdir removed"].keys, _SOLVED, f"true {'x' * 100_000}\n"]
    config = TerminalEnvConfig(task_dir=task_dir, sandbox="local", confirm_task_complete=False, **settings)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for typed in keys:
            await env.step([(typed, 10.0)])
        _, reward, _, info = await env.step(COMPLETE)
    assert (reward, info.get("breakage")) == (1.0, None)


@pytest.mark.apptainer
@pytest.mark.slow
@pytest.mark.parametrize("deed", [name for name in TOGETHER if "network_mode" not in TOGETHER[name].toml])
async def test_in_apptainer_what_root_can_do_is_graded(tmp_path: Path, deed: str) -> None:
    has_view = deed != "tests without an end"
    await check_deed(tmp_path / "task", TOGETHER[deed], has_view=has_view, user=None, sandbox="apptainer")


_ON_DOCKER = {
    "its workdir removed": 1.0,
    "a file in place of its workdir": 1.0,
    "a link to itself in place of its workdir": 1.0,
    "no accounts": None,
    "tests without an end": None,
}
"""Containers have no accounts but their own. Their logs are mounted, their storage is the machine's."""


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("deed", _ON_DOCKER)
async def test_on_docker_what_root_can_do_is_graded(tmp_path: Path, deed: str) -> None:
    task_dir = write_deed_task(tmp_path / "task", DEEDS[deed], has_view=False, user=None)
    reward, info = await play(task_dir, _SOLVED, DEEDS[deed].keys, sandbox="docker")
    if (expected := _ON_DOCKER[deed]) is None:
        assert (reward, info.get("end_reason")) == (0.0, EndReason.SANDBOX_BROKEN)
        assert info.get("breakage")
    else:
        assert (reward, info.get("rewards"), info.get("breakage")) == (expected, {"reward": expected}, None)


async def _play_all() -> None:
    """Play them four at once: most of them wait. An ordinary user's sandboxes share one limit of processes."""
    ends: dict[str, tuple[float, str]] = {}
    gate = asyncio.Semaphore(4)

    async def attack(name: str, task_dir: Path, *keystrokes: str, **settings: Any) -> None:
        async with gate:
            reward, info = await play(task_dir, *keystrokes, **settings)
        ends[name] = (reward, info["end_reason"].value if "end_reason" in info else "")

    async with asyncio.TaskGroup() as group:
        for name, keys in {**APART, **RUINS}.items():
            task_dir = write_task(Path.home() / name.replace(" ", "-"))
            group.create_task(attack(name, task_dir, DONE, keys, sandbox_options={"max_processes": 400}))
        for number, (name, deed) in enumerate(TOGETHER.items()):
            task_dir = write_deed_task(Path.home() / f"deed-{number}", deed, has_view=number % 2 == 0, user=None)
            group.create_task(attack(name, task_dir, _SOLVED, deed.keys))
    sys.stdout.write(f"{json.dumps(ends)}\n")


if __name__ == "__main__":
    asyncio.run(_play_all())
