"""``check_env``: our own environment keeps its contract on every sandbox, and broken ones are noticed."""

import asyncio
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import SandboxLostError, UsageError, VerifierError
from harbor_gym.testing import ENV_BEHAVIOURS, Violation, check_env, write_tiny_task
from harbor_gym.testing.conformance.env_probe import check_info
from harbor_gym.types import EpisodeInfo
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE, write_task

FAKE = "harbor_gym.testing:FakeEnvironment"
ON_LOCAL = (
    "reset_brings_text_and_info",
    "a_reset_after_done_is_fresh",
    "a_reset_in_an_episode_is_fresh",
    "state_goes_on_from_step_to_step",
    "a_truncation_is_verified",
    "a_shell_that_is_left_ends_the_episode",
    "an_observation_keeps_its_budget",
    "an_observation_is_plain_text",
    "a_cancelled_step_leaves_nothing",
)
"""Behaviours in which a real terminal and sandbox could differ from the fake; all passed when they were tried."""

ON_DOCKER = ("a_step_shows_what_was_done", "a_truncation_is_verified")
"""Two are enough to see that it is the same environment: an episode there takes seconds."""


@pytest.mark.usefixtures("nothing_left")
async def test_our_environment_keeps_its_contract_in_memory() -> None:
    report = await check_env(AsyncTerminalGymEnv)
    report.raise_for_failures()
    assert len(report.outcomes) == len(ENV_BEHAVIOURS) >= 20


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("sandbox", "only"),
    [
        pytest.param("local", ON_LOCAL, marks=[pytest.mark.local, pytest.mark.slow]),
        pytest.param("docker", ON_DOCKER, marks=[pytest.mark.docker, pytest.mark.slow]),
    ],
)
async def test_our_environment_keeps_its_contract(tmp_path: Path, sandbox: str, only: Collection[str] | None) -> None:
    require_engine(sandbox)
    if sandbox == "docker":
        subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)  # noqa: ASYNC221
    config = TerminalEnvConfig(task_dir=write_task(tmp_path / "task"), sandbox=sandbox)
    (await check_env(AsyncTerminalGymEnv, config, only=only)).raise_for_failures()


# --- each behaviour can break ----------------------------------------------------------------------------------------


class Broken(AsyncTerminalGymEnv):
    """Our environment with something wrong."""

    breaks: Collection[str] = ()


class ForgetsInfo(Broken):
    breaks = (
        "reset_brings_text_and_info",
        "a_step_shows_what_was_done",
        "several_commands_are_one_turn",
        "an_unreadable_action_does_nothing_and_says_why",
        "a_truncation_is_verified",
        "a_shell_that_is_left_ends_the_episode",
        "unreadable_actions_end_the_episode_in_the_end",
        "done_has_its_metrics",
    )

    async def reset(self, **options: Any) -> Any:
        observation, _ = await super().reset()
        return observation, {"turn": 0}

    async def step(self, action: Any) -> Any:
        observation, _, done, _ = await super().step(action)
        return observation, 0, done, {"turn": "one", "metrics": {}}


class AcceptsEverything(Broken):
    breaks = (
        "a_step_before_reset_is_refused",
        "a_step_after_done_is_refused",
        "two_steps_at_once_are_refused",
        "a_wrong_action_is_refused_and_changes_nothing",
        "close_is_idempotent",
        "a_sandbox_that_does_not_start_raises",
        "a_sandbox_that_is_lost_raises",
        "a_verifier_without_a_verdict_raises",
    )

    async def reset(self, **options: Any) -> Any:
        try:
            return await super().reset()
        except Exception as exc:
            return str(exc), {"turn": 0, "metrics": {}}

    async def step(self, action: Any) -> Any:
        try:
            return await super().step(action)
        except Exception as exc:
            return str(exc), 0.0, False, {"turn": 1, "metrics": {}}


class KeepsTheSandbox(Broken):
    breaks = ("a_reset_after_done_is_fresh", "a_reset_in_an_episode_is_fresh", "after_a_failure_a_reset_starts_again")
    kept: AsyncTerminalGymEnv | None = None

    async def reset(self, **options: Any) -> Any:
        if self.kept is None:
            self.kept = AsyncTerminalGymEnv(self.config.model_copy(update={"max_turns": None}))
            return await self.kept.reset()
        return "", {"turn": 0, "metrics": {}, "instruction": "", "sandbox": ""}

    async def step(self, action: Any) -> Any:
        assert self.kept is not None
        return await self.kept.step(action)

    async def close(self) -> None:
        if self.kept is not None:
            await self.kept.close()


class ForgetsTheShell(Broken):
    breaks = ("state_goes_on_from_step_to_step",)

    async def step(self, action: Any) -> Any:
        wiped = [(f"cd /tmp; WORD=; {keys}", wait) for keys, wait in action]
        return await super().step(wiped)


class ShowsTooMuch(Broken):
    breaks = ("an_observation_keeps_its_budget", "an_observation_is_plain_text")

    async def step(self, action: Any) -> Any:
        observation, *rest = await super().step(action)
        return f"\x1b[0m{observation * 3}", *rest


class ExecutesAnyway(Broken):
    breaks = ("an_unreadable_action_does_nothing_and_says_why",)

    async def step(self, action: Any) -> Any:
        return await super().step([(action, 1.0)] if isinstance(action, str) else action)


class SwallowsCancellation(Broken):
    breaks = ("a_cancelled_step_leaves_nothing",)

    async def step(self, action: Any) -> Any:
        try:
            return await super().step(action)
        except asyncio.CancelledError:
            return "", 0.0, False, {"turn": 1, "metrics": {}}


ALL = Broken.__subclasses__()


@pytest.mark.parametrize("broken", ALL, ids=lambda kind: kind.__name__)
async def test_a_broken_environment_is_noticed_by_all_that_should(broken: type[Broken]) -> None:
    report = await check_env(broken, only=broken.breaks, timeout_sec=5)
    assert {item.name for item in report.failures} == set(broken.breaks), str(report)


def test_no_behaviour_is_without_an_environment_that_breaks_it() -> None:
    assert {item.name for item in ENV_BEHAVIOURS} == {name for kind in ALL for name in kind.breaks}


@pytest.mark.parametrize(
    "wrong",
    [
        {"turn": "1"},
        {"turn": True},
        {"metrics": {"a": "b"}},
        {"exit_code": 1.5},
        {"waits": ["prompt"]},
        {"end_reason": "completed"},
        {"trial_dir": "path"},
        {"rewards": {"reward": None}},
    ],
    ids=str,
)
def test_infos_types_are_those_of_its_type(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"turn": 1, "metrics": {"a": 1.0}, "exit_code": None, "waits": ("prompt",)}
    check_info(right)
    with pytest.raises(Violation, match=next(iter(wrong))):
        check_info({**right, **wrong})
    with pytest.raises(Violation, match="instruction"):
        check_info(cast("EpisodeInfo", right), "instruction")


# --- uses of the fake ------------------------------------------------------------------------------------------------


def on_fake(tmp_path: Path, **options: Any) -> AsyncTerminalGymEnv:
    config = TerminalEnvConfig(
        task_dir=write_tiny_task(tmp_path / "task"), sandbox=FAKE, sandbox_options=options, confirm_task_complete=False
    )
    return AsyncTerminalGymEnv(config)


COMPLETE = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'


async def test_an_episode_in_memory_is_solved_or_not(tmp_path: Path) -> None:
    async with on_fake(tmp_path, solved_when={"/srv/answer": "done"}, rewards=0.75) as env:
        rewards: list[float] = []
        for keys in ("true\n", "echo done > answer\n"):
            await env.reset()
            await env.step([(keys, 1.0)])
            rewards.append((await env.step(COMPLETE))[1])
    assert rewards == [0.0, 0.75]


async def test_the_fake_answers_from_its_table(tmp_path: Path) -> None:
    async with on_fake(tmp_path, answers={"make": ["cc: no input\n", 2]}, files={"/srv/notes": "read me\n"}) as env:
        await env.reset()
        observation, *_, info = await env.step([("make\n", 1.0)])
        assert observation == "[exit code 2]\n$ make\ncc: no input\n$"
        assert info.get("exit_code") == 2
        observation, *_ = await env.step([('cat notes && echo "in $TASK" || echo no\n', 1.0)])
        assert observation.splitlines()[1:] == ["read me", "in ", "$"]
        assert env.screen is None or "read me" in env.screen.text


@pytest.mark.parametrize(
    ("fail", "error"),
    [({"exec": 1}, SandboxLostError), ({"verifier": 1}, VerifierError), ({"upload": 2}, VerifierError)],
    ids=str,
)
async def test_the_fake_fails_where_it_is_configured_to(
    tmp_path: Path, fail: dict[str, int], error: type[Exception]
) -> None:
    async with on_fake(tmp_path, fail=fail) as env:
        await env.reset()
        with pytest.raises(error):
            await env.step([("true\n", 1.0), ("exit\n", 1.0)])


async def test_a_running_command_is_interrupted_and_time_passes_only_as_asked(tmp_path: Path) -> None:
    async with on_fake(tmp_path) as env:
        env.config = env.config.model_copy(
            update={"terminal": env.config.terminal.model_copy(update={"min_wait_sec": 0.0})}
        )
        await env.reset()
        observation, *_, info = await env.step([("sleep 1000\n", 0.01)])
        assert "still running" in observation
        observation, *_, info = await env.step([("C-c", 0.01)])
        assert info.get("exit_code") == 130
        assert observation.endswith("^C\n$")


def test_a_fake_that_should_fail_at_nothing_known_is_refused(tmp_path: Path) -> None:
    async def reset(make: Callable[[], AsyncTerminalGymEnv]) -> None:
        async with make() as env:
            await env.reset()

    with pytest.raises(Exception, match="known: start"):
        asyncio.run(reset(lambda: on_fake(tmp_path, fail={"lunch": 1})))


async def test_unknown_behaviours_are_refused() -> None:
    with pytest.raises(UsageError, match="no_such_thing"):
        await check_env(AsyncTerminalGymEnv, only=["no_such_thing"])
