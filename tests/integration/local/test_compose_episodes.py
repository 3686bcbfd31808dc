"""Episodes of tasks with a Compose file on the local sandbox, the main ones on Apptainer's too."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.checking import CheckPlan, Verdict, check_tasks
from harbor_gym.errors import UsageError
from harbor_gym.sandboxes import environment_config
from harbor_gym.testing import check_sandbox
from tests.helpers.keyboard import KeyboardUser
from tests.helpers.sandboxes.local import make_env
from tests.helpers.tasks import write_task
from tests.integration.adapters.test_guarded_grading import play

pytestmark = [pytest.mark.local, pytest.mark.compose, pytest.mark.usefixtures("nothing_left")]

ASK = "exec 3<>/dev/tcp/web/8000 && printf 'GET %s HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
"""Shell text with a path for its ``%s``."""

SERVER = """\
use IO::Socket::INET;
my $listening = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die;
my $stored = "nothing";
$| = 1;
print "ready\n";
while (my $client = $listening->accept) {
    my ($path) = <$client> =~ m{^GET /(\\S*)};
    while (<$client> =~ /\\S/) {}
    print "asked for $stored\n" if $path and $stored = $path;
    print $client "HTTP/1.0 200 OK\\r\\n\\r\\nstored $stored\\n";
}
"""

COMPOSE = """\
services:
  main:
    depends_on:
      web:
        condition: service_healthy
    volumes: ["results:/results"]
  web:
    build: web
    healthcheck:
      test: ["CMD", "bash", "-c", ": </dev/tcp/127.0.0.1/8000"]
      interval: 1s
    volumes: ["results:/results", "./note.txt:/note.txt:ro"]
volumes:
  results:
"""

TEST_SH = f"""\
#!/bin/bash
answer=$({ASK.replace("%s", "/")} | tail -n 1)
[ "$answer" = "stored done" ] && [ "$(cat /results/made)" = here ]
echo $((1 - $?)) >/logs/verifier/reward.txt
"""

AT_ONCE = 16

KINDS = ["local", pytest.param("apptainer", marks=pytest.mark.apptainer)]

SOLVE = [(f"{ASK.replace('%s', '/done')}\n", 5.0), ("echo here >/results/made\n", 5.0)]
END = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'


def write_web_task(task_dir: Path) -> Path:
    """Write a task whose service keeps what is asked of it, and whose verifier asks that service."""
    write_task(task_dir, test_sh=TEST_SH)
    web = task_dir / "environment/web"
    web.mkdir()
    (web / "Dockerfile").write_text("FROM debian:bookworm-slim\nCOPY server.pl /\nCMD perl /server.pl\n")
    (web / "server.pl").write_text(SERVER)
    (task_dir / "environment/note.txt").write_text("a note\n")
    (task_dir / "environment/docker-compose.yaml").write_text(COMPOSE)
    return task_dir


def composed(sandbox: str, task: Path, **settings: Any) -> AsyncTerminalGymEnv:
    """Return an environment whose services have networks."""
    return make_env(task, sandbox=sandbox, sandbox_options={"network": "task"}, **settings)


async def solved(env: AsyncTerminalGymEnv) -> float:
    """Play an episode that solves the task, and return its reward."""
    async with env:
        await env.reset()
        result = await env.step(SOLVE)
        assert "stored done" in result.observation
        end = await env.step(END)
        assert end.info.get("service_output") == {"web": "ready\nasked for done"}
        return end.reward


@pytest.mark.parametrize("sandbox", KINDS)
async def test_the_verifier_asks_a_service_that_the_policy_has_used(sandbox: str, tmp_path: Path) -> None:
    task = write_web_task(tmp_path / "task")
    assert await solved(composed(sandbox, task)) == 1.0
    async with composed(sandbox, task) as env:
        await env.reset()
        assert (await env.step(END)).reward == 0.0  # each episode has services of its own


async def test_what_services_print_is_in_an_agents_record(tmp_path: Path) -> None:
    rollout = await play("terminus-2", write_web_task(tmp_path / "task"), *(keys for keys, _ in SOLVE))
    assert rollout.reward == 1.0
    assert rollout.transcript.infos[-1].get("service_output") == {"web": "ready\nasked for done"}


@pytest.mark.docker
@pytest.mark.slow
async def test_what_services_print_is_kept_with_docker_too(tmp_path: Path) -> None:
    assert await solved(make_env(write_web_task(tmp_path / "task"), sandbox="docker")) == 1.0


async def test_a_replayed_copy_has_services_of_its_own(tmp_path: Path) -> None:
    async with make_env(write_web_task(tmp_path / "task")) as env:
        await env.reset()
        await env.step(SOLVE)
        (copy,) = await env.fork(1, mode="replay")
        async with copy:
            await copy.reset()
            await copy.step([(f"{ASK.replace('%s', '/other')}\n", 5.0)])
            assert (await copy.step(END)).reward == 0.0
        assert (await env.step(END)).reward == 1.0


@pytest.mark.parametrize("sandbox", KINDS)
async def test_a_command_in_a_service_and_in_one_that_is_not_there(sandbox: str, tmp_path: Path) -> None:
    async with composed(sandbox, write_web_task(tmp_path / "task")) as env:
        await env.reset()
        done = await env.exec("cat /note.txt; pwd; echo x >&2; exit 3", timeout_sec=20, service="web")
        assert (done.return_code, sorted(done.output.split())) == (3, ["/", "a", "note", "x"])
        assert (await env.exec("sleep 30", timeout_sec=1, service="web")).return_code is None
        with pytest.raises(UsageError, match="no service 'absent' beside main: there are web"):
            await env.exec("true", timeout_sec=20, service="absent")
        await env.step(SOLVE)
        assert (await env.step(END)).reward == 1.0


def test_a_player_runs_commands_in_services(tmp_path: Path) -> None:
    task = write_web_task(tmp_path / "task")
    player = KeyboardUser([sys.executable, "-m", "harbor_gym", "play", str(task), "--env", "local"])
    player.wait_for("C-^ runs a command in a service. Enter starts")
    player.type("\n")
    player.wait_for("srv#")
    for line, shown in (("web cat /note.txt; false", "a note\n\nstatus 1. Any"), ("wev true", "there are web. Any")):
        player.type("\x1e")
        player.wait_for("SERVICE COMMAND")
        player.type(f"{line}\n")
        player.wait_for(shown)
        player.type(" ")
        player.wait_for("srv#")
    player.type("\x1d")
    player.wait_for("completed, reward 0.0\n")
    assert player.end() == 0


@pytest.mark.slow
async def test_sixteen_episodes_at_once(tmp_path: Path) -> None:
    task, all_are_here = write_web_task(tmp_path / "task"), asyncio.Barrier(AT_ONCE)

    async def play_one(word: str) -> float:
        async with make_env(task) as env:
            await env.reset()
            await all_are_here.wait()
            await env.step([(f"{ASK.replace('%s', f'/{word}')}\n", 30.0)])
            await all_are_here.wait()
            assert f"stored {word}\n" in (await env.step([(f"{ASK.replace('%s', '/')}\n", 30.0)])).observation
            await env.step([(keys, 30.0) for keys, _ in SOLVE])
            return (await env.step(END)).reward

    async with asyncio.TaskGroup() as group:
        played = [group.create_task(play_one(f"word-{number}")) for number in range(AT_ONCE)]
    assert [one.result() for one in played] == [1.0] * AT_ONCE


@pytest.mark.parametrize("sandbox", KINDS)
async def test_a_pristine_view_has_of_the_volumes_what_the_task_has_verified(sandbox: str, tmp_path: Path) -> None:
    task = write_web_task(tmp_path / "task")
    assert await solved(composed(sandbox, task, verify_paths=("/results",))) == 1.0
    assert await solved(composed(sandbox, task, verify_paths=("/results/made",))) == 1.0
    assert await solved(composed(sandbox, task, verify_paths=("/srv",))) == 0.0


async def test_a_task_with_services_is_checked(tmp_path: Path) -> None:
    task = write_web_task(tmp_path / "task")
    (task / "solution").mkdir(exist_ok=True)
    (task / "solution/solve.sh").write_text("#!/bin/bash\n" + "".join(keys for keys, _ in SOLVE))
    plan = CheckPlan(environment_config("local"), str(tmp_path), repeat=1, try_exploits=False)
    (check,) = await check_tasks([task], plan)
    assert (check.verdict, check.oracle, check.nop, check.plain) == (Verdict.OK, (1.0,), (0.0,), 1.0), check.reason


@pytest.mark.parametrize("sandbox", KINDS)
async def test_the_sandbox_shows_the_behaviours_of_services(sandbox: str) -> None:
    report = await check_sandbox(environment_config(sandbox, options={"network": "task"}), only=["services"])
    assert {outcome.verdict.value for outcome in report.outcomes} == {"passed"}, str(report)
