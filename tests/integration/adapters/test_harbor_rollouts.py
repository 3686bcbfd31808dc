"""Harbor's rollout interface, on real trials and a real job."""

import asyncio
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, override

import pytest
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.job import Job
from harbor.models.job.config import JobConfig
from harbor.models.trial.config import AgentConfig, TaskConfig

from harbor_gym import EndReason, Rollout, Sample, TerminalConfig, TerminalEnvConfig
from harbor_gym.adapters.harbor import RolloutInterface, details_sequences
from harbor_gym.errors import AgentFailedError, TaskSourceError, UsageError
from harbor_gym.gateway import Gateway, SessionLimits
from harbor_gym.gateway.agents import agent_config
from harbor_gym.samplers import EngineSettingsError
from harbor_gym.sandboxes import environment_config
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.gateway.clients import THOUGHT, ThinkingCodec, TurnPolicy, tool_call
from tests.helpers.gateway.format_agent import FormatAgent
from tests.helpers.gateway.inner_agent import INNER_AGENT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, by_agent, fake_config, message
from tests.helpers.tasks import DONE, write_steps, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED = {"solved_when": {"/srv/answer": "done"}}
AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"})


class CrashingAgent(FormatAgent):
    @override
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        raise KeyError("a bug of the agent's")


def interface(**settings: Any) -> RolloutInterface:
    given: dict[str, Any] = {
        "sampler": TurnPolicy(),
        "codec": ThinkingCodec(),
        "agent": AGENT,
        "sandbox": FAKE,
        "max_retries": 0,
        **settings,
    }
    given.setdefault("sandbox_options", SOLVED if given["sandbox"] == FAKE else {})
    return RolloutInterface(**given)


def require_whole(rollout: Rollout, *, turns: int) -> None:
    assert (rollout.reward, rollout.end_reason, rollout.error) == (1.0, EndReason.COMPLETED, None)
    assert len(rollout.segments) == 1
    main = rollout.main
    assert len(main.completion) == len(main.mask) == len(main.logprobs)
    trained = [token for token, own in zip(main.completion, main.mask, strict=True) if own]
    assert "".join(map(chr, trained)) == "".join(f"{answer}\0" for answer in TurnPolicy().answers[:turns])
    assert rollout.metrics["turns"] == turns


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.parametrize("trials", [4, 16])
async def test_in_a_job_details_and_gateway_agree_token_for_token(trials: int, tmp_path: Path) -> None:
    async with Gateway(TurnPolicy(), ThinkingCodec(), model="policy") as gateway:
        group = gateway.open_group()
        agent = agent_config("terminus-2", group.base_url)
        agent.kwargs |= {"collect_rollout_details": True, "session_id_headers": ["X-Session-ID"]}
        job = await Job.create(
            JobConfig(
                jobs_dir=tmp_path / "jobs",
                quiet=True,
                n_attempts=trials,
                n_concurrent_trials=trials,
                agents=[agent],
                environment=environment_config("local"),
                tasks=[TaskConfig(path=write_task(tmp_path / "task"))],
            )
        )
        result = await job.run()
    assert len(result.trial_results) == trials
    assert len(group.sessions) == trials
    for trial in result.trial_results:
        assert trial.verifier_result is not None
        assert trial.verifier_result.rewards == {"reward": 1.0}
        (name,) = [name for name in group.sessions if name.startswith(trial.trial_name)]
        (segment,) = group.sessions[name].segments
        assert details_sequences(trial) == [segment]
    assert all(session.is_closed and not session.active_requests for session in group.sessions.values())


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["gateway", "details"])
async def test_terminus_2_many_at_once(strategy: str, tmp_path: Path) -> None:
    tasks = [TaskConfig(path=write_task(tmp_path / "task"))] * 4
    limits = SessionLimits(max_turns=9, max_context_tokens=100_000, max_answer_tokens=1000)
    played = interface(strategy=strategy, agent="terminus-2", sandbox="local", limits=limits, n_concurrent=4)
    for rollout in await played.run(tasks):
        require_whole(rollout, turns=3)


@pytest.mark.local
@pytest.mark.slow
async def test_an_agents_own_skills_are_in_its_sandbox(tmp_path: Path) -> None:
    """Harbor uploads them: to /harbor/skills before 0.25, to /runtime/skills since."""
    skill = tmp_path / "skills" / "writing"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: writing\ndescription: How a word is written.\n---\nWith echo.\n")
    agent = AgentConfig(name="terminus-2", skills=[str(skill)])
    (rollout,) = await interface(agent=agent, sandbox="local").run([TaskConfig(path=write_task(tmp_path / "task"))])
    require_whole(rollout, turns=3)
    prompt = "".join(map(chr, rollout.main.prompt))
    assert "How a word is written." in prompt
    assert re.search(r"/skills/writing/SKILL.md\b", prompt)


async def test_an_agents_turns_read_as_those_of_our_own_loop(tmp_path: Path) -> None:
    task = [TaskConfig(path=write_task(tmp_path / "task"))]
    limits = SessionLimits(max_answer_tokens=1000)
    own = {"agent": None, "strategy": "env", "env_settings": {"confirm_task_complete": False}}
    read: list[Any] = []
    for settings in ({}, own):
        (rollout,) = await interface(limits=limits, **settings).run(task)
        last = rollout.turns[-1].info
        assert (last.get("end_reason"), last.get("rewards")) == (EndReason.COMPLETED, {"reward": 1.0})
        read.append([(t.observation, t.action, t.reward, t.prompt_tokens, t.sampled_tokens) for t in rollout.turns])
    assert read[0] == read[1]
    assert [(action, reward) for _, action, reward, *_ in read[0]] == [(message(DONE), 0.0), (COMPLETE, 1.0)]


@pytest.mark.parametrize("strategy", ["gateway", "env"])
async def test_wrong_settings_of_the_engine_end_the_run_at_the_first_answer(strategy: str, tmp_path: Path) -> None:
    asked: list[int] = []

    async def refuse(prompt: Sequence[int]) -> Sample:
        asked.append(len(prompt))
        raise EngineSettingsError("set the key")

    tasks = [TaskConfig(path=write_task(tmp_path / name)) for name in ("one", "two", "three")]
    settings: dict[str, Any] = {"agent": None} if strategy == "env" else {}
    settings |= {"limits": SessionLimits(max_answer_tokens=9), "n_concurrent": 1, "max_retries": 2}
    played = interface(sampler=refuse, strategy=strategy, **settings)
    with pytest.raises(EngineSettingsError, match="set the key"):
        await played.run(tasks)
    assert len(asked) == 1


async def test_order_and_progress(tmp_path: Path) -> None:
    tasks = [TaskConfig(path=write_task(tmp_path / name)) for name in ("one", "two", "three")]
    seen: list[tuple[str, int, int]] = []
    rollouts = await interface(n_concurrent=2).run(
        tasks, on_rollout=lambda rollout, done, total: seen.append((rollout.task_name, done, total))
    )
    assert [rollout.task_name for rollout in rollouts] == ["one", "two", "three"]
    assert sorted(seen, key=lambda item: item[1]) == seen
    assert {item[0] for item in seen} == {"one", "two", "three"}
    assert seen[-1][1:] == (3, 3)
    assert len({rollout.trial_name for rollout in rollouts}) == 3
    for rollout in rollouts:
        require_whole(rollout, turns=2)


@pytest.mark.parametrize(
    ("changed", "reward"),
    [
        ({}, 1.0),
        ({"reward_function": "tests.integration.adapters.test_harbor_rollouts:half"}, 0.5),
    ],
)
async def test_a_configuration_of_our_loop_means_the_same_with_an_agent(
    changed: dict[str, Any], reward: float, tmp_path: Path
) -> None:
    own = fake_config(write_task(tmp_path / "task"), **SOLVED, trials_dir=tmp_path / "trials", **changed)
    rollout = await RolloutInterface(by_agent(own, AGENT), TurnPolicy(), ThinkingCodec()).run_one(own.task_dir)
    assert (rollout.reward, rollout.rewards, rollout.error) == (reward, {"reward": 1.0}, None)
    assert rollout.turns[-1].reward == reward
    assert (tmp_path / "trials" / rollout.trial_name / "result.json").is_file()


def half(rewards: dict[str, float]) -> float:
    return rewards["reward"] / 2


OWN_LOOPS: dict[str, Any] = {
    "setup_command": "true",
    "verifier": {"override_timeout_sec": 3},
    "confirm_task_complete": False,
    "action_format": "bash-tool",
    "terminal": TerminalConfig(columns=100),
}


@pytest.mark.parametrize("name", OWN_LOOPS)
def test_what_no_agent_would_heed_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{name}: for our own loop, and the agent tests.* plays"):
        interface(env_settings={name: OWN_LOOPS[name]})
    config = TerminalEnvConfig(task_dir=write_task(tmp_path / "task"), **{name: OWN_LOOPS[name]})
    with pytest.raises(UsageError, match=f"{name}: for our own loop, and the agent terminus-2 plays"):
        RolloutInterface(config, TurnPolicy(), ThinkingCodec(), agent="terminus-2")


async def test_a_shipped_task_and_a_directory_that_holds_one(tmp_path: Path) -> None:
    write_task(tmp_path / "suite/only")
    tasks = [TaskConfig(path=Path("task:devops_task")), TaskConfig(path=tmp_path / "suite")]
    rollouts = await interface().run(tasks)
    assert [(rollout.task_name, rollout.error) for rollout in rollouts] == [("devops_task", None), ("only", None)]
    assert "appctl" in "".join(map(chr, rollouts[0].main.token_ids))


async def test_a_task_of_a_git_repository(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_task(repository / "tasks/one")

    def git(*args: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(["git", *identity, *args], cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (repository / "tasks/one/instruction.md").write_text("another instruction")
    git("commit", "-qam", "two")
    cache = tmp_path / "cache"
    url = f"file://{repository}"
    old = TaskConfig(path=Path("tasks/one"), git_url=url, git_commit_id=commit, download_dir=cache)
    new = old.model_copy(update={"git_commit_id": None})
    rollouts = await interface().run([old, new, old])
    texts = ["".join(map(chr, rollout.main.token_ids)) for rollout in rollouts]
    assert ["Write the word done" in text for text in texts] == [True, False, True]
    assert ["another instruction" in text for text in texts] == [False, True, False]
    missing = old.model_copy(update={"git_commit_id": "0" * 40})
    with pytest.raises(TaskSourceError):
        await interface().run([missing])


@pytest.mark.parametrize(
    ("own", "settings", "words"),
    [("CrashingAgent", {}, "a bug of the agent's"), ("Mute", {"strategy": "details"}, "no tokens")],
)
async def test_an_agent_that_fails_is_lost_with_its_reason(
    own: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    agent = AgentConfig(import_path=f"{__name__}:{own}", kwargs=AGENT.kwargs)
    (rollout,) = await interface(agent=agent, **settings).run([TaskConfig(path=write_task(tmp_path / "task"))])
    assert (rollout.reward, rollout.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert type(rollout.error) is AgentFailedError
    assert words in str(rollout.error)


class CutPolicy(TurnPolicy):
    """Answer a first request, and none of those after it."""

    asked_again: ClassVar[asyncio.Event]

    @override
    async def __call__(self, prompt: Sequence[int]) -> Sample:
        if THOUGHT not in "".join(map(chr, prompt)):
            return await super().__call__(prompt)
        CutPolicy.asked_again.set()
        return await asyncio.get_running_loop().create_future()


class CutAgent(FormatAgent):
    """Lose the connection in the middle of the second request, and exit as Harbor's installed agents then do."""

    @override
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        running = asyncio.create_task(super().run(instruction, environment, context))
        await CutPolicy.asked_again.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise NonZeroAgentExitCodeError("Command failed (exit 1)")


class CutOncePolicy(CutPolicy):
    """Leave one request without an answer, and answer the others."""

    is_mended: ClassVar[bool] = False

    @override
    async def __call__(self, prompt: Sequence[int]) -> Sample:
        return await TurnPolicy.__call__(self, prompt) if self.is_mended else await super().__call__(prompt)


class CutOnceAgent(CutAgent):
    """Lose the connection in the first step alone."""

    @override
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        if CutOncePolicy.is_mended:
            return await FormatAgent.run(self, instruction, environment, context)
        try:
            await super().run(instruction, environment, context)
        finally:
            CutOncePolicy.is_mended = True


class FailingAgent(FormatAgent):
    """Fail with an exception of a given name after the work is done."""

    def __init__(self, *args: Any, name: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name = name

    @override
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        await super().run(instruction, environment, context)
        raise type(self._name, (NonZeroAgentExitCodeError,), {})("Command failed (exit 1)")


@pytest.mark.parametrize("steps", [0, 2])
async def test_an_agent_that_lost_its_connection_has_no_reward_and_is_played_again(steps: int, tmp_path: Path) -> None:
    CutPolicy.asked_again = asyncio.Event()
    task = TaskConfig(path=graded_task(tmp_path, steps))
    cut = AgentConfig(import_path=f"{__name__}:CutAgent", kwargs=AGENT.kwargs)
    (rollout,) = await interface(agent=cut, sampler=CutPolicy(), max_retries=1).run([task])
    assert (rollout.reward, rollout.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert isinstance(rollout.error, AgentFailedError)
    assert rollout.rewards == {}
    assert rollout.metrics["infra/failed_attempts"] == 1


async def test_what_a_step_lost_no_later_step_mends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CutPolicy.asked_again = asyncio.Event()
    monkeypatch.setattr(CutOncePolicy, "is_mended", False)
    cut = AgentConfig(import_path=f"{__name__}:CutOnceAgent", kwargs=AGENT.kwargs)
    (rollout,) = await interface(agent=cut, sampler=CutOncePolicy()).run([TaskConfig(path=graded_task(tmp_path, 2))])
    assert (rollout.reward, type(rollout.error)) == (None, AgentFailedError)


@pytest.mark.local
async def test_a_tunnel_that_its_policy_ends_leaves_the_verdict(tmp_path: Path) -> None:
    kill = "for it in /proc/[0-9]*; do grep -q serve_sand[b]ox $it/cmdline && kill -9 ${it#/proc/}; done"
    answers = [THOUGHT + tool_call(command=f"{DONE.strip()}; {kill}")]
    agent = AgentConfig(import_path=INNER_AGENT, kwargs={"url": "{gateway_url}"})
    playing = interface(agent=agent, agent_in_sandbox=True, sandbox="local", sampler=TurnPolicy(*answers))
    (rollout,) = await playing.run([TaskConfig(path=write_task(tmp_path / "task"))])
    assert (rollout.reward, rollout.error) == (1.0, None)
    assert rollout.metrics["turns"] == 1


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("NonZeroAgentExitCodeError", True),
        ("AgentTimeoutError", True),
        ("ApiConnectionClosedError", False),
        ("NetworkConnectionError", False),
        ("SomethingNew", False),
    ],
)
async def test_a_verdict_counts_only_beside_an_agents_own_ends(
    name: str, counts: bool, steps: int, tmp_path: Path
) -> None:
    task = TaskConfig(path=graded_task(tmp_path, steps))
    failing = AgentConfig(import_path=f"{__name__}:FailingAgent", kwargs={**AGENT.kwargs, "name": name})
    (rollout,) = await interface(agent=failing).run([task])
    assert (rollout.reward, type(rollout.error)) == ((1.0, type(None)) if counts else (None, AgentFailedError))


def graded_task(tmp_path: Path, steps: int) -> Path:
    return (write_steps if steps else write_task)(tmp_path / "task")


class Mute(FormatAgent):
    """Takes the option of agents that report details, and reports none."""

    def __init__(self, *args: Any, collect_rollout_details: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("sandbox", [FAKE, pytest.param("local", marks=[pytest.mark.local, pytest.mark.slow])])
@pytest.mark.parametrize("strategy", ["env", "gateway"])
async def test_a_cancelled_run_leaves_nothing(strategy: str, sandbox: str, tmp_path: Path) -> None:
    sampling = asyncio.Event()

    async def never(prompt: Sequence[int]) -> Sample:
        sampling.set()
        return await asyncio.get_running_loop().create_future()

    agent = None if strategy == "env" else AGENT
    limits = SessionLimits(max_answer_tokens=1000)
    played = interface(sampler=never, strategy=strategy, agent=agent, sandbox=sandbox, limits=limits)
    running = asyncio.create_task(played.run([TaskConfig(path=write_task(tmp_path / "task"))] * 2))
    await asyncio.wait_for(sampling.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agent": "nobody"}, "no agent is called 'nobody'"),
        ({"agent": "opencode"}, "{gateway_url}"),
        ({"agent": AgentConfig(import_path=AGENT.import_path)}, "{gateway_url}"),
    ],
)
async def test_an_agent_without_a_place_for_its_address(settings: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        await interface(**settings).run([TaskConfig(path=write_task(tmp_path / "task"))])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"n_concurrent": 0},
        {"strategy": "env"},
        {"strategy": "env", "agent": None},
        {"strategy": "env", "agent": None, "limits": SessionLimits(max_answer_tokens=9, max_sampled_tokens=9)},
        {"env_settings": {"confirm_task_complete": False}},
        {"strategy": "none"},
    ],
)
def test_arguments_that_contradict_each_other(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"strategy|agent|n_concurrent|our own loop"):
        interface(codec=CharacterCodec(), **settings)
