"""Rollouts on Harbor's own server: its agents reach the gateway by its inference relay."""

import asyncio
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, override

import pytest
from aiohttp import web
from harbor.models.trial.config import AgentConfig, TaskConfig

from harbor_gym import AsyncTerminalGymEnv, EndReason, Rollout, Sample
from harbor_gym._runtime.harbor_versions import VERSION, server_client
from harbor_gym.adapters.harbor import HarborServer, RolloutInterface, server_player
from harbor_gym.adapters.harbor import server as harbor_server
from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.errors import AgentFailedError, SandboxLostError, SandboxStartError, TaskError, UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.stragglers import Stragglers
from tests.helpers.engines import find_agent
from tests.helpers.gateway.clients import THOUGHT, ThinkingCodec, TurnPolicy, tool_call
from tests.helpers.gateway.harbor_server import KEY, ServerProcess, cable, started
from tests.helpers.gateway.inner_agent import INNER_AGENT
from tests.helpers.loopback import on_loopback
from tests.helpers.paths import ROOT
from tests.helpers.patience import eventually
from tests.helpers.sandboxes.fake_episodes import FAKE, message
from tests.helpers.tasks import BASE, DONE, write_task
from tests.integration.adapters.test_harbor_stragglers import LONG_ENOUGH_SEC, Policy

pytestmark = pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a server since 0.26")

SOLVED = {"solved_when": {"/srv/answer": "done"}}
AGENTS = "tests.helpers.gateway.relayed_agent"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with started(tmp_path_factory.mktemp("server")) as process:
        yield process


def interface(url: str, own: str = "RelayedAgent", **settings: Any) -> RolloutInterface:
    given: dict[str, Any] = {
        "sampler": TurnPolicy(),
        "codec": ThinkingCodec(),
        "agent": AgentConfig(import_path=f"{AGENTS}:{own}"),
        "sandbox": FAKE,
        "sandbox_options": SOLVED,
        "server": HarborServer(url, KEY),
        "max_retries": 0,
        **settings,
    }
    return RolloutInterface(**given)


class BlockingPolicy(TurnPolicy):
    """Leave the second request of the first conversation without an answer, and answer every other."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.sampled = 0

    @override
    async def __call__(self, prompt: Sequence[int]) -> Sample:
        if THOUGHT in "".join(map(chr, prompt)) and not self.asked.is_set():
            self.asked.set()
            await asyncio.get_running_loop().create_future()
        self.sampled += 1
        return await super().__call__(prompt)


@pytest.fixture
def task(tmp_path: Path) -> TaskConfig:
    return TaskConfig(path=write_task(tmp_path / "task"))


def require_whole(rollout: Rollout, *, turns: int, answers: Sequence[str] = TurnPolicy().answers) -> None:
    assert (rollout.reward, rollout.end_reason, rollout.error) == (1.0, EndReason.COMPLETED, None)
    (segment,) = rollout.segments
    trained = [token for token, own in zip(segment.completion, segment.mask, strict=True) if own]
    assert "".join(map(chr, trained)) == "".join(f"{answer}\0" for answer in answers[:turns])


class CountingPolicy(TurnPolicy):
    """Answer the first requests when there are as many as expected; count the most at a time."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.most = self._now = 0
        self._begun = asyncio.Barrier(expected)

    @override
    async def __call__(self, prompt: Sequence[int]) -> Sample:
        self._now += 1
        self.most = max(self.most, self._now)
        if THOUGHT not in "".join(map(chr, prompt)):
            await self._begun.wait()
        self._now -= 1
        return await super().__call__(prompt)


async def test_64_rollouts_wait_for_the_policy_at_the_same_time(server: ServerProcess, task: TaskConfig) -> None:
    policy = CountingPolicy(64)
    rollouts = await interface(server.url, sampler=policy, n_concurrent=64).run([task] * 64)
    assert policy.most == 64
    assert len({rollout.trial_name for rollout in rollouts}) == 64
    for rollout in rollouts:
        require_whole(rollout, turns=2)
        assert rollout.missing_protections


async def test_no_more_rollouts_are_asked_for_than_the_relay_carries(
    server: ServerProcess, task: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harbor_server, "MAX_ROLLOUTS", 2)
    policy = CountingPolicy(2)
    both = [interface(server.url, sampler=policy, n_concurrent=4).run([task] * 4) for _ in range(2)]
    for rollouts in await asyncio.gather(*both):
        for rollout in rollouts:
            require_whole(rollout, turns=2)
    assert policy.most == 2


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    """A server that sandboxes reach."""
    with started(tmp_path_factory.mktemp("server"), is_open=True) as process:
        yield process


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.local),
        pytest.param("docker", marks=pytest.mark.docker),
    ]
)
def sandbox(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)
    return request.param


def require_equal(there: Rollout, here: Rollout) -> None:
    assert there.segments == here.segments
    assert (there.rewards, there.end_reason) == (here.rewards, here.end_reason)
    assert [(turn.observation, turn.action) for turn in there.turns] == [
        (turn.observation, turn.action) for turn in here.turns
    ]


@pytest.mark.local
async def test_terminus_2_is_recorded_as_in_a_trial_of_this_process(server: ServerProcess, tmp_path: Path) -> None:
    no_prompt = "RUN echo \"PS1=''\" >>/root/.bashrc\n"  # its first screen is read before the shell's prompt, or after
    task = TaskConfig(path=write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\nWORKDIR /srv\n{no_prompt}"))
    given: dict[str, Any] = {"agent": "terminus-2", "sandbox": "local", "sandbox_options": {}}
    (there,) = await interface(server.url, trials_dir=tmp_path / "trials", **given).run([task])
    (here,) = await interface("", server=None, **given).run([task])
    require_whole(there, turns=3)
    require_equal(there, here)
    assert (tmp_path / "trials" / there.trial_name / "verifier/reward.txt").read_text().strip() == "1"


async def test_an_agent_in_the_sandbox_is_recorded_as_in_a_trial_of_this_process(
    open_server: ServerProcess, task: TaskConfig, sandbox: str
) -> None:
    """It reaches the server over its sandbox's network; in this process, the gateway through a tunnel."""
    policy = TurnPolicy(tool_call(command="pwd; id -un"), tool_call(command=DONE.strip()), "done")
    reaching = {"private_network": True} if sandbox == "local" else {}
    inner = AgentConfig(import_path=INNER_AGENT, kwargs={"url": "{gateway_url}"})
    given: dict[str, Any] = {"sandbox": sandbox, "sampler": policy}
    (there,) = await interface(open_server.url, "RelayedInnerAgent", sandbox_options=reaching, **given).run([task])
    own: dict[str, Any] = {"server": None, "agent": inner, "agent_in_sandbox": True, "sandbox_options": {}}
    (here,) = await interface("", **own, **given).run([task])
    require_whole(there, turns=3, answers=policy.answers)
    require_equal(there, here)
    assert "/srv\nroot\n" in "".join(map(chr, there.main.token_ids))


@pytest.mark.local
async def test_claude_code_unmodified(open_server: ServerProcess, tmp_path: Path) -> None:
    """Its program is the machine's, which is one file."""
    program = find_agent("claude")
    policy = TurnPolicy(tool_call("Bash", command=DONE.strip(), description="write"), "Done.")
    dockerfile = f"FROM {BASE}\nCOPY claude /usr/local/bin/claude\nWORKDIR /srv\n"
    path = write_task(tmp_path / "task", dockerfile=dockerfile)
    shutil.copy(program, path / "environment/claude")
    given: dict[str, Any] = {"agent": "claude-code", "sandbox": "local", "sandbox_options": {"private_network": True}}
    (rollout,) = await interface(open_server.url, sampler=policy, **given).run([TaskConfig(path=path)])
    require_whole(rollout, turns=2, answers=policy.answers)


async def test_a_configuration_names_the_server_and_the_environment_its_key(
    server: ServerProcess, task: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARBOR_API_KEY", KEY)
    assert task.path is not None
    config = AgentEpisodeConfig(
        task_dir=task.path,
        sandbox=FAKE,
        sandbox_options=SOLVED,
        max_turns=9,
        agent=f"{AGENTS}:RelayedAgent",
        harbor_server=server.url,
    )
    playing = RolloutInterface(config, TurnPolicy(), ThinkingCodec())
    require_whole(await playing.run_one(task.path), turns=2)
    with pytest.raises(UsageError, match="plays in our own loop"):
        AsyncTerminalGymEnv(config)  # pyright: ignore[reportArgumentType]


SEPARATE = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\ndocker_image = "x"\n'
PATHS = '[metadata]\nverify_paths = ["/srv/answer"]\n'


@pytest.mark.parametrize(
    ("toml", "named", "warnings"),
    [
        ("", ["without a clean-up"], 0),
        (PATHS, ["without a clean-up", "without a pristine view: the task's verify_paths"], 1),
        (PATHS + SEPARATE, [], 0),
    ],
)
async def test_protections_that_a_server_has_not_are_named_and_a_missing_view_is_logged_once(
    server: ServerProcess,
    toml: str,
    named: list[str],
    warnings: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server_player.note_missing_view.cache_clear()
    task = TaskConfig(path=write_task(tmp_path / "task", toml=toml))
    for rollout in await interface(server.url).run([task, task]):
        assert len(rollout.missing_protections) == len(named)
        for words, sentence in zip(named, rollout.missing_protections, strict=True):
            assert words in sentence
    assert caplog.text.count("verify_paths count for nothing") == warnings


async def test_a_task_whose_paths_no_view_can_carry_is_refused_as_elsewhere(
    server: ServerProcess, tmp_path: Path
) -> None:
    task = TaskConfig(path=write_task(tmp_path / "task", toml='[metadata]\nverify_paths = ["answer"]\n'))
    with pytest.raises(TaskError, match="not an absolute path"):
        await interface(server.url).run([task])


@pytest.mark.parametrize("agent", ["RefusedAgent", "ExitingAgent"])
async def test_a_spent_budget_refuses_the_agent_and_is_verified(
    server: ServerProcess, task: TaskConfig, agent: str
) -> None:
    (rollout,) = await interface(server.url, agent, limits=SessionLimits(max_turns=1)).run([task])
    assert (rollout.reward, rollout.end_reason, rollout.error) == (1.0, EndReason.MAX_TURNS, None)
    assert rollout.metrics["turns"] == 1


async def test_a_request_whose_connection_was_lost_is_asked_again_and_answered_once(
    server: ServerProcess, task: TaskConfig
) -> None:
    policy = BlockingPolicy()
    async with cable(server.port) as way:
        playing = asyncio.create_task(interface(way.url, "PatientAgent", sampler=policy).run([task]))
        await policy.asked.wait()
        way.cut()
        (rollout,) = await playing
    require_whole(rollout, turns=2)
    assert policy.sampled == 2
    assert rollout.metrics["gateway/reconnects"] == 1


@pytest.mark.parametrize("status", [200, 401, 404, 502])
async def test_a_proxy_that_answers_for_a_server_that_is_away_is_waited_for(
    server: ServerProcess, task: TaskConfig, status: int
) -> None:
    """By requests that began before, and by those that begin meanwhile."""
    policy = BlockingPolicy()
    async with cable(server.port) as way:
        playing = asyncio.create_task(interface(way.url, "PatientAgent", sampler=policy).run([task]))
        await policy.asked.wait()
        way.status = status
        way.cut()
        later = asyncio.create_task(interface(way.url).run([task]))
        await eventually(lambda: sum("/connect?" in asked for asked in way.refused) == 2)
        await eventually(lambda: any("/rollouts?" in asked for asked in way.refused))
        way.status = None
        for (rollout,) in await asyncio.gather(playing, later):
            require_whole(rollout, turns=2)


async def test_a_proxy_that_answers_for_a_server_that_stays_away_loses_the_rollout(
    server: ServerProcess, task: TaskConfig
) -> None:
    policy = BlockingPolicy()
    async with cable(server.port) as way:
        gone = HarborServer(way.url, KEY, lost_after_sec=1)
        playing = asyncio.create_task(interface(way.url, sampler=policy, server=gone).run([task]))
        await policy.asked.wait()
        way.status = 404
        way.cut()
        (lost,) = await playing
        (refused,) = await interface(way.url, server=gone).run([task])
    assert (lost.reward, type(lost.error), type(refused.error)) == (None, SandboxLostError, SandboxStartError)
    assert "it answered with status 404" in str(refused.error)


@pytest.mark.parametrize("agent", ["RelayedAgent", "ExitingAgent"])
async def test_an_agent_that_fails_on_a_lost_connection_has_no_reward_and_is_played_again(
    server: ServerProcess, task: TaskConfig, agent: str
) -> None:
    policy = BlockingPolicy()
    async with cable(server.port) as way:
        playing = asyncio.create_task(interface(way.url, agent, sampler=policy, max_retries=1).run([task]))
        await policy.asked.wait()
        way.cut()
        (rollout,) = await playing
    require_whole(rollout, turns=2)
    assert rollout.metrics["infra/failed_attempts"] == 1


async def test_an_agent_that_fails_on_the_relays_own_refusal_has_no_reward(
    server: ServerProcess, task: TaskConfig
) -> None:
    """The relay holds 256 requests and refuses others by status 429, of which nobody here hears."""
    agent = AgentConfig(import_path=f"{AGENTS}:CrowdingRelayedAgent", kwargs={"requests": 256})
    policy = TurnPolicy(message("pwd\n"))
    (rollout,) = await interface(server.url, agent=agent, sampler=policy).run([task])
    assert (rollout.reward, rollout.metrics["turns"], type(rollout.error)) == (None, 1.0, AgentFailedError)


async def test_a_server_that_is_started_anew(server: ServerProcess, task: TaskConfig) -> None:
    policy = BlockingPolicy()
    playing = asyncio.create_task(interface(server.url, sampler=policy, max_retries=1).run([task]))
    await policy.asked.wait()
    server.kill()
    await asyncio.to_thread(server.start)
    (rollout,) = await playing
    require_whole(rollout, turns=2)
    assert rollout.metrics["infra/failed_attempts"] == 1


async def test_a_server_that_is_gone(task: TaskConfig, tmp_path: Path) -> None:
    policy = BlockingPolicy()
    with started(tmp_path / "server") as own:
        gone = HarborServer(own.url, KEY, lost_after_sec=1)
        playing = asyncio.create_task(interface(own.url, sampler=policy, server=gone).run([task]))
        await policy.asked.wait()
        own.kill()
        (lost,) = await playing
        (refused,) = await interface(own.url, server=gone).run([task])
    assert (lost.reward, type(lost.error), len(lost.segments)) == (None, SandboxLostError, 1)
    assert (refused.reward, type(refused.error)) == (None, SandboxStartError)
    assert own.url in str(refused.error)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "127.0.0.1"])
async def test_an_address_at_which_nothing_listens_is_named_before_the_first_episode(
    task: TaskConfig, url: str
) -> None:
    playing = interface(url, server=HarborServer(url, KEY, lost_after_sec=2), max_retries=1)
    with pytest.raises(UsageError, match=rf"no server of Harbor's answers at {url} \(.+\): start harbor serve there"):
        await playing.run([task] * 3)


async def test_a_cancelled_run_stops_its_rollouts_on_the_server(server: ServerProcess, task: TaskConfig) -> None:
    policy = BlockingPolicy()
    playing = asyncio.create_task(interface(server.url, sampler=policy).run([task]))
    await policy.asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    client = server_client(server.url, KEY)
    page = await client.rollouts.list(sort="-created_at")
    await client.close()
    assert page.items[0].state == "cancelled"
    assert not {"queued", "running", "cancelling"} & {item.state for item in page.items}


def require_nothing_running(states: Sequence[str]) -> None:
    assert not {"queued", "running", "cancelling"} & set(states), "it is down when the run returns"


async def states_on(server: ServerProcess, count: int) -> list[str]:
    """Return the states of the last rollouts."""
    client = server_client(server.url, KEY)
    page = await client.rollouts.list(sort="-created_at")
    await client.close()
    return [item.state for item in page.items[:count]]


async def test_the_slowest_of_a_group_are_ended_on_the_server(server: ServerProcess, task: TaskConfig) -> None:
    stragglers = Stragglers(over_sample=2)
    rollouts = await interface(server.url, sampler=Policy({1: 2}), stragglers=stragglers).run([task] * 2)
    assert [(item.reward, item.end_reason) for item in rollouts] == [(1.0, EndReason.COMPLETED)] * 2
    assert (rollouts[0].metrics["stragglers/started"], rollouts[0].metrics["stragglers/dropped"]) == (4, 2)
    assert Counter(await states_on(server, 4)) == {"finished": 2, "cancelled": 2}


async def test_at_the_deadline_some_are_graded_and_some_dropped_on_the_server(
    server: ServerProcess, task: TaskConfig
) -> None:
    stragglers = Stragglers(batch_deadline_sec=2 * LONG_ENOUGH_SEC)
    playing = interface(server.url, "RefusedAgent", sampler=Policy({0: 1, 1: 1}), stragglers=stragglers)
    rollouts = await playing.run([task] * 3)
    assert Counter((item.end_reason, item.reward, item.error) for item in rollouts) == {
        (EndReason.COMPLETED, 1.0, None): 1,
        (EndReason.BATCH_DEADLINE, 1.0, None): 1,
        (EndReason.DROPPED, None, None): 1,
    }
    require_nothing_running(await states_on(server, 3))


@pytest.mark.local
@pytest.mark.parametrize("limit", [EndReason.BATCH_DEADLINE, EndReason.TIME_LIMIT])
async def test_an_agent_that_is_busy_when_its_time_is_over_is_ended_on_the_server(
    server: ServerProcess, task: TaskConfig, limit: EndReason
) -> None:
    settings: dict[str, Any] = {"limits": SessionLimits(time_limit_sec=LONG_ENOUGH_SEC)}
    if limit is EndReason.BATCH_DEADLINE:
        settings = {"stragglers": Stragglers(batch_deadline_sec=2 * LONG_ENOUGH_SEC)}
    busy = Policy({}, message(DONE, "sleep 600\n", duration=600))
    playing = interface(server.url, sampler=busy, sandbox="local", sandbox_options={}, **settings)
    (rollout,) = await playing.run([task])
    assert (rollout.end_reason, rollout.reward, rollout.metrics["turns"]) == (limit, 1.0, 1)
    require_nothing_running(await states_on(server, 1))


async def test_wrong_settings_of_a_server_are_told_at_the_start(
    server: ServerProcess, task: TaskConfig, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="refuses the API key: set HARBOR_API_KEY"):
        await interface(server.url, server=HarborServer(server.url, "wrong")).run([task])
    with pytest.raises(UsageError, match=r"refuses the rollout: .*override"):
        await interface(server.url, agent=AgentConfig(name="oracle")).run([task])
    with (
        started(tmp_path / "server", has_relay=False) as bare,
        pytest.raises(UsageError, match="start it with --relay-url"),
    ):
        await interface(bare.url).run([task])
    async with on_loopback(web.Application()) as url:
        with pytest.raises(UsageError, match="no Harbor server"):
            await interface(url).run([task])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "env", "agent": None}, "harbor_server: for the episodes of one of Harbor's agents"),
        ({"verify_paths": (PurePosixPath("/srv"),)}, "without verify_paths"),
        ({"keep_agent_processes": True}, "without verify_paths and keep_agent_processes"),
        (
            {"agent": AgentConfig(name="codex", kwargs={"url": "{gateway_url}"})},
            "leave {gateway_url} and base_url out of it",
        ),
        (
            {"agent": AgentConfig.model_validate({"name": "codex", "base_url": "https://other.example"})},
            "leave {gateway_url} and base_url out of it",
        ),
    ],
)
def test_what_a_server_can_not_do_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        interface("http://127.0.0.1:1", **settings)
