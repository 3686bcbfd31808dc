"""Copies of a running episode with its processes: their state, their grading, and the refusals."""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym._runtime.procfs import descendants, text_or_empty
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import SandboxError, SandboxLostError, UsageError
from harbor_gym.sandboxes.local.environment import SandboxDump
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.terminal import TmuxTerminal, open_terminal
from harbor_gym.types import Command, StepResult
from tests.helpers.copies import config_of, copied, typed
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, running
from tests.helpers.tasks import BASE, DONE, UNDONE, write_steps, write_task

pytestmark = [
    pytest.mark.local,
    pytest.mark.criu,
    pytest.mark.usefixtures("nothing_left"),
]

DEV = f"FROM {BASE}\nRUN useradd --create-home --uid 1234 dev && mkdir /app && chown dev /app\nWORKDIR /srv\n"
VERDICT = "#!/bin/bash\nif {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


# --- what a copy goes on with ----------------------------------------------------------------------------------------


async def test_what_no_replay_repeats_is_in_each_copy(task_dir: Path) -> None:
    async with copied(config_of(task_dir), "x=$RANDOM$RANDOM; date +%N >/tmp/n\n", "sleep 1000 &\n", n=2) as envs:
        seen = {await typed(env, "clear; echo $x $(cat /tmp/n) $! $(pgrep -x sleep)\n") for env in envs}
        assert len(seen) == 1


async def test_a_server_and_200_mib_go_on_in_the_copy(task_dir: Path) -> None:
    lines = (
        "python3 -m http.server 8123 >/dev/null 2>&1 &\n",
        "until (: </dev/tcp/127.0.0.1/8123) 2>/dev/null; do sleep 0.1; done; sleep 1; python3 -q\n",
        "import random, urllib.request as r; random.seed(7); b = bytearray(range(256)) * 4096 * 200\n",
        "f = open('/tmp/w', 'w'); f.write('abc'); f.flush()\n",
    )
    ask = "print(r.urlopen('http://127.0.0.1:8123/').status, len(b), sum(b[:512]), f.tell(), random.random())\n"
    async with copied(config_of(task_dir), *lines) as envs:
        answers = [(await typed(env, ask)).splitlines()[-2] for env in envs]
        assert answers == ["200 209715200 65280 3 0.32383276483316237"] * 2


async def test_a_pager_stays_where_it_is(task_dir: Path) -> None:
    async with copied(config_of(task_dir), "seq 1000 >/tmp/n; less /tmp/n\n", "20j") as (parent, copy):
        assert "1000" in await typed(copy, "G", 2.0)
        assert "\n21\n" in await typed(parent, "k", 2.0)


async def test_the_copys_episode_is_the_parents_so_far(tmp_path: Path) -> None:
    config = config_of(write_task(tmp_path / "task"), trials_dir=tmp_path / "trials", time_limit_sec=900, max_turns=9)
    async with copied(config, "echo common\n", n=2) as (parent, first, second):
        assert first.remaining == second.remaining == parent.remaining
        observation, info = await first.reset()
        assert "common" in observation
        assert (info["turn"], info.get("fork_mode"), info["instruction"]) == (
            1,
            "exact",
            "Write the word done into /srv/answer.\n",
        )
        assert (await first.snapshot()).turns == (await parent.snapshot()).turns
        ends = [await finished(env, line) for env, line in ((first, DONE), (parent, UNDONE), (second, UNDONE))]
    assert [end.reward for end in ends] == [1.0, 0.0, 0.0]
    assert [end.info.get("fork_mode") for end in ends] == ["exact", None, "exact"]
    folders = {end.info.get("trial_dir") for end in ends}
    assert len(folders) == 3
    for folder in folders:
        assert folder is not None
        recording = (folder / "recording.cast").read_text()
        assert recording.count('"1: echo common') == 1
        assert recording.count('"2: echo') == 1
        assert (folder / "agent/trajectory.json").read_text().count("echo common") == 2, "as typed, and as seen"


async def finished(env: AsyncTerminalGymEnv, line: str) -> StepResult:
    await typed(env, line)
    return await env.finish()


async def test_a_copys_memory_has_the_limit(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml="[environment]\nmemory_mb = 256\nstorage_mb = 64\n")
    end = "Killed" if "memory" in cgroups.places() else "MemoryError"
    async with copied(config_of(task), "python3 -q\n", "b = bytearray(b'x') * (100 << 20)\n") as (parent, copy):
        assert end not in await typed(copy, "c = bytearray(b'x') * (90 << 20); len(b)\n", 60.0)
        assert end in await typed(copy, "d = bytearray(b'x') * (120 << 20)\n", 60.0), "it holds what was restored"
        assert "\n104857600\n" in await typed(parent, "len(b)\n")


async def test_the_first_step_of_a_task_with_steps_goes_on_to_the_next(tmp_path: Path) -> None:
    task = write_steps(tmp_path / "task")
    (task / "steps/step-1/workdir").mkdir()
    (task / "steps/step-1/workdir/setup.sh").write_text("echo set up >>/srv/log\n")
    async with copied(config_of(task, step_rewards=True), DONE) as (parent, copy):
        assert (await typed(copy, "clear; cat log\n")).count("set up\n") == 1
        opened = await copy.finish()
        assert (opened.done, opened.reward) == (False, 0.5)
        with pytest.raises(UsageError, match="finish was called"):
            await copy.fork(1, mode="exact")
        await typed(copy, "rm answer\n")
        assert (await copy.finish()).info.get("episode_reward") == 0.5
        assert not (await parent.finish()).done


# --- what was before the policy is the parent's ----------------------------------------------------------------------

AS_VERIFIER = '[verifier]\nuser = "dev"\n'
IDS = VERDICT.format("[ $(id -u) = 1234 ]")
OWNER = VERDICT.format('[ "$(stat -c %U /app)" = dev ]')
FIRST: dict[str, tuple[dict[str, Any], str, float]] = {
    "accounts": ({"toml": AS_VERIFIER, "test_sh": IDS}, "sed -i s/:1234:/:4321:/ /etc/passwd\n", 1.0),
    "no accounts": ({"toml": AS_VERIFIER, "test_sh": IDS}, "mv /etc/passwd /etc/group /root\n", 1.0),
    "a directory of another owner is gone": (
        {"dockerfile": f"{DEV}VOLUME /app\n", "test_sh": OWNER},
        "rm -rf /app\n",
        1.0,
    ),
    "id": (
        {"toml": '[agent]\nuser = "root"\n', "dockerfile": f"{DEV}USER dev\n", "test_sh": IDS},
        "printf '#!/bin/sh\\necho none\\n' >/usr/local/bin/id; chmod 755 /usr/local/bin/id; echo PATH=/usr/bin:/bin\n",
        0.0,
    ),
    "the verifier's shell": ({"toml": AS_VERIFIER}, "chmod 700 /usr/bin/bash /usr/bin/dash\n", 0.0),
    "a link in place of logs": (
        {"test_sh": VERDICT.format("[ $(stat -c %a /root) = 700 ]")},
        "rm -rf /logs; mkdir /logs; ln -s /root /logs/agent\n",
        1.0,
    ),
}


@pytest.mark.parametrize("change", FIRST)
async def test_a_copy_of_what_the_policy_changed_is_graded_as_the_parent(tmp_path: Path, change: str) -> None:
    task, line, reward = FIRST[change]
    config = config_of(write_task(tmp_path / "task", **{"dockerfile": DEV, **task}))
    async with copied(config, line) as envs:
        ends = [await env.finish() for env in envs]
    assert [(end.reward, end.info.get("breakage")) for end in ends] == [(reward, ends[0].info.get("breakage"))] * 2


async def test_what_the_policy_makes_a_skill_is_not_in_the_copys_instruction(tmp_path: Path) -> None:
    skill = (
        "RUN mkdir -p /skills/own && printf -- '---\\nname: own\\ndescription: tidy\\n---\\n' >/skills/own/SKILL.md\n"
    )
    task = write_task(tmp_path / "task", dockerfile=DEV + skill, toml='[environment]\nskills_dir = "/skills"\n')
    line = "mkdir /skills/x; sed s/own/planted/ /skills/own/SKILL.md >/skills/x/SKILL.md; rm -r /skills/own\n"
    async with copied(config_of(task), line) as (_, copy):
        _, info = await copy.reset()
        assert "tidy" in info["instruction"]
        assert "planted" not in info["instruction"]


async def test_a_copys_commands_have_the_policys_rank(task_dir: Path) -> None:
    async with copied(config_of(task_dir), "true\n") as (parent, copy):
        ask = "grep CapPrm /proc/self/status"
        seen = [await typed(env, f"clear; {ask}\n") for env in (parent, copy)]
        assert seen[0] == seen[1]
        assert (await copy.exec(ask, timeout_sec=PATIENCE_SEC)).output.split()[1] in seen[0]


async def test_a_separate_verifiers_sandbox_is_no_copy(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "task",
        toml='artifacts = ["/srv/answer"]\n[verifier]\nenvironment_mode = "separate"\n',
        test_sh=VERDICT.format("[ -e /srv/planted ]"),
    )
    async with copied(config_of(task), f"touch /srv/planted; {DONE}") as envs:
        assert [(await env.finish()).reward for env in envs] == [0.0, 0.0]


async def test_a_copy_stands_on_the_parents_image(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", dockerfile=f"{DEV}RUN echo first >/first\n")
    async with AsyncTerminalGymEnv(config_of(task)) as parent:
        await parent.reset()
        (task / "environment/Dockerfile").write_text(f"{DEV}RUN echo second >/second\n")
        (copy,) = await parent.fork(1, mode="exact")
        async with copy:
            assert "\nfirst\n" in await typed(copy, "clear; cat /first /second\n")


# --- refusals, and failures in the middle ----------------------------------------------------------------------------

REFUSED = {
    "a TCP connection": (
        "exec 9<>/dev/tcp/127.0.0.1/99\n",
        "perl -MSocket -e 'socket S,2,1,0;bind S,sockaddr_in(99,INADDR_ANY);listen S,9;sleep 999' &\n",
        "Connected TCP socket",
    ),
    "a System V object": ("ipcmk -M 100 >/dev/null\n", "", "which CRIU would leave out: shm"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_dumped_is_refused_and_replayed(task_dir: Path, what: str) -> None:
    line, before, words = REFUSED[what]
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        for each in filter(None, (before, "sleep 1\n", line, "x=5; clear\n")):
            await typed(parent, each)
        with pytest.raises(SandboxError, match=words):
            await parent.fork(1, mode="exact")
        assert "\n6\n" in await typed(parent, "echo $((x+1))\n")
        for copy in await parent.fork(2):
            async with copy:
                assert (await copy.reset())[1].get("fork_mode") == "replay"
        await typed(parent, "true\n")


async def test_without_criu_it_is_refused_by_name(task_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        places = [place for place in os.environ["PATH"].split(os.pathsep) if not (Path(place) / "criu").exists()]
        monkeypatch.setenv("PATH", os.pathsep.join(places))
        with pytest.raises(SandboxError, match="CRIU, which is not there: install"):
            await parent.fork(1, mode="exact")
        await typed(parent, "true\n")


async def test_a_sandbox_without_the_option_is_refused_by_name(task_dir: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir, sandbox_options={})) as parent:
        await parent.reset()
        with pytest.raises(UsageError, match="the option forkable"):
            await parent.fork(1, mode="exact")
        (copy,) = await parent.fork(1)
        async with copy:
            assert (await copy.reset())[1].get("fork_mode") == "replay"


def handles() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def criu(at: str, work: asyncio.Future[Any]) -> list[int]:
    """Return the processes of CRIU that do one of its works, as soon as there are any; none where ``work`` is done."""
    while not work.done():
        if found := [pid for pid in descendants(os.getpid()) if at in text_or_empty(Path(f"/proc/{pid}/cmdline"))]:
            return found
        await asyncio.sleep(0.001)
    return []


def send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def test_who_kills_criu_in_a_dump_harms_no_process_or_ends_the_episode_by_name(task_dir: Path) -> None:
    """A process that ended with it would be taken for the policy's act: a dead shell, and a reward."""
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        await typed(parent, "python3 -q\n", 2.0)
        await typed(parent, "b = bytearray(range(256)) * 4096 * 100; x = 5\n")
        lost: object = None
        while not isinstance(lost, SandboxLostError):
            forking = asyncio.ensure_future(parent.fork(1, mode="exact"))
            if found := await criu("swrk", forking):
                await asyncio.sleep(random.random() / 2)
                send(signal.SIGKILL, found)
            (lost,) = await asyncio.gather(forking, return_exceptions=True)
            if isinstance(lost, list):
                for copy in lost:
                    await copy.close()
            if not isinstance(lost, SandboxLostError):
                assert "\n6 65280\n" in await typed(parent, "print(x + 1, sum(b[:512]))\n")
        assert "its processes may be damaged (CRIU ended in the dump" in str(lost)
        with pytest.raises(SandboxLostError, match="may be damaged"):
            await parent.step([("print(x)\n", 5.0)])


async def test_a_criu_killed_in_a_restore_leaves_the_episode_and_no_copy(task_dir: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        await typed(parent, "python3 -q\n", 2.0)
        await typed(parent, "b = bytearray(range(256)) * 4096 * 100; x = 5\n")
        forking = asyncio.ensure_future(parent.fork(2, mode="exact"))
        while not (found := await criu("--restore-detached", forking)):  # it was too fast
            for copy in forking.result():
                await copy.close()
            forking = asyncio.ensure_future(parent.fork(2, mode="exact"))
        await asyncio.sleep(0.02)
        send(signal.SIGKILL, found)
        with pytest.raises(SandboxError):
            await forking
        assert "\n6 65280\n" in await typed(parent, "print(x + 1, sum(b[:512]))\n")
        before = handles()
        for copy in await parent.fork(1, mode="exact"):
            async with copy:
                assert "\n6 65280\n" in await typed(copy, "print(x + 1, sum(b[:512]))\n")
        assert handles() <= before


async def test_what_begins_in_the_middle_of_a_dump_is_refused(tmp_path: Path) -> None:
    sandbox = make_sandbox(tmp_path, dockerfile=f"FROM {BASE}\n", forkable=True)
    async with running(sandbox):
        terminal = cast("TmuxTerminal", await open_terminal(sandbox, TerminalConfig()))
        for line in ("python3 -q\n", "b = bytearray(range(256)) * 4096 * 100; x = 5\n"):
            await terminal.run([Command(line, 5.0)])
        refusal: object = None
        while not isinstance(refusal, SandboxError):  # else CRIU was too fast
            dumping = asyncio.ensure_future(sandbox.dump(await terminal.stand_still()))
            found = await criu("swrk", dumping)
            send(signal.SIGSTOP, found)
            late = await sandbox.exec_pipes("echo up; exec sleep 100")
            assert late.stdout is not None
            assert await late.stdout.readline() == b"up\n"
            send(signal.SIGCONT, found)
            (refusal,) = await asyncio.gather(dumping, return_exceptions=True)
            late.kill()
            await late.wait()
            if isinstance(refusal, SandboxDump):
                refusal.close()
        assert "(sleep) is not below the terminal's first one" in str(refusal)
        assert "\n6 65280\n" in (await terminal.run([Command("print(x + 1, sum(b[:512]))\n", 60.0)])).text
        await terminal.close()


async def test_the_parent_takes_no_step_while_it_is_copied(task_dir: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        forking = asyncio.ensure_future(parent.fork(1, mode="exact"))
        refusal = ""
        while not refusal:
            await asyncio.sleep(0)
            try:
                await parent.snapshot()
            except UsageError as exc:
                refusal = str(exc)
        assert "being copied; wait" in refusal
        with pytest.raises(UsageError, match="being copied; wait"):
            await parent.step([("true\n", 1.0)])
        for copy in await forking:
            await copy.close()
        await typed(parent, "true\n")


async def test_an_open_question_the_seed_and_the_steps_pay_are_in_the_copy(tmp_path: Path) -> None:
    task = write_steps(tmp_path / "task")
    config = config_of(task, step_rewards=True, confirm_task_complete=True)
    complete = json.dumps({"analysis": "", "plan": "", "commands": [], "task_complete": True})
    async with AsyncTerminalGymEnv(config) as parent:
        await parent.reset(seed=7)
        await typed(parent, DONE)
        assert (await parent.step(complete)).info.get("confirmation_pending") is True
        (copy,) = await parent.fork(1, mode="exact")
        async with copy:
            await copy.reset()
            assert (await copy.snapshot()).seed == 7
            opened = await copy.step(complete)
            assert (opened.done, opened.reward, opened.info.get("confirmation_pending")) == (False, 0.5, False)
