"""Requirements on an environment's ``reset``, ``step`` and ``close``."""

import asyncio

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.testing.conformance.behaviours import Family, expect, expect_equal, refused
from harbor_gym.testing.conformance.env_probe import EnvProbe, GymEnv, check_done, check_info, check_step, check_text
from harbor_gym.types import ActionFormat, EndReason, ResetInfo

ORDER = Family[EnvProbe]("order")
EPISODES = Family[EnvProbe]("episodes")
FAILURES = Family[EnvProbe]("failures")


# --- order of calls --------------------------------------------------------------------------------------------------


@ORDER.behaviour
async def reset_brings_text_and_info(probe: EnvProbe) -> None:
    """``reset`` returns the terminal's text, and ``info`` with the instruction and every key that its type requires."""
    env = probe.make()
    try:
        observation, info = await env.reset()
        check_text(observation, "the first observation")
        check_info(info, *ResetInfo.__required_keys__, "sandbox")
        expect(info["instruction"].strip(), "the instruction is empty")
        expect_equal(info["turn"], 0, "turn after reset")
    finally:
        await env.close()


@ORDER.behaviour
async def a_step_before_reset_is_refused(probe: EnvProbe) -> None:
    """It raises ``UsageError``, and the environment can be reset afterwards."""
    env = probe.make()
    try:
        with refused("a step before reset", UsageError):
            await env.step("true\n")
        await env.reset()
    finally:
        await env.close()


@ORDER.behaviour
async def a_step_after_done_is_refused(probe: EnvProbe) -> None:
    """It raises ``UsageError``: a finished episode can't go on."""
    async with probe.running(max_turns=1) as env:
        check_done(await env.step("true\n"))
        with refused("a step after done", UsageError):
            await env.step("true\n")


@ORDER.behaviour
async def two_steps_at_once_are_refused(probe: EnvProbe) -> None:
    """The second raises ``UsageError`` and changes nothing; the first goes on."""
    async with probe.running() as env:
        first = asyncio.ensure_future(env.step([("sleep 0.3; echo first\n", 10.0)]))
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with refused("a step while another one runs", UsageError):
                await env.step("echo second\n")
            observation, *_ = check_step(await first)
            expect("first" in observation.splitlines(), f"the first step was disturbed: {observation!r}")
        finally:
            first.cancel()
            await asyncio.wait([first])


@ORDER.behaviour
async def a_wrong_action_is_refused_and_changes_nothing(probe: EnvProbe) -> None:
    """An action that is neither text nor commands raises ``UsageError`` first of all, and the episode goes on."""
    async with probe.running() as env:
        for action in (["ls\n"], [("ls\n", -1.0)], None):
            with refused(f"the action {action!r}", UsageError):
                await env.step(action)
        *_, info = check_step(await env.step("true\n"))
        expect_equal(info["turn"], 1, "turn after refused actions")


@ORDER.behaviour
async def close_is_idempotent(probe: EnvProbe) -> None:
    """``close`` can be called in any state, repeatedly; afterwards only ``close`` works."""
    unused = probe.make()
    await unused.close()
    async with probe.running() as env:
        await env.close()
        await env.close()
        with refused("a step after close", UsageError):
            await env.step("true\n")


@ORDER.behaviour
async def a_reset_after_done_is_fresh(probe: EnvProbe) -> None:
    """The next episode has a fresh sandbox, and its turns are counted from the start."""
    await _expect_fresh(probe, ends_first=True)


@ORDER.behaviour
async def a_reset_in_an_episode_is_fresh(probe: EnvProbe) -> None:
    """``reset`` during an episode ends it and starts another one in a fresh sandbox."""
    await _expect_fresh(probe, ends_first=False)


async def _expect_fresh(probe: EnvProbe, *, ends_first: bool) -> None:
    async with probe.running(max_turns=2) as env:
        await env.step([("echo old > left-over; export LEFT=over\n", 10.0)])
        if ends_first:
            check_done(await env.step("true\n"))
        _, info = await env.reset()
        expect_equal(info["turn"], 0, "turn after reset")
        observation, *_ = check_step(await env.step([('[ -e left-over ] && echo found; echo "<$LEFT>"\n', 10.0)]))
        lines = observation.splitlines()
        expect("found" not in lines, "a file of the last episode is still there")
        expect("<>" in lines, f"a variable of the last episode's shell is still there: {observation!r}")


# --- an episode ------------------------------------------------------------------------------------------------------


@EPISODES.behaviour
async def a_step_shows_what_was_done(probe: EnvProbe) -> None:
    """The observation has the command's output, the episode goes on, and ``turn`` counts. Rewards may be shaped."""
    async with probe.running() as env:
        for turn in (1, 2):
            observation, _, done, info = check_step(await env.step([(f"echo num''ber {turn}\n", 10.0)]))
            expect(f"number {turn}" in observation.splitlines(), f"the output is not shown: {observation!r}")
            expect_equal((done, info["turn"]), (False, turn), "done and turn")


@EPISODES.behaviour
async def state_goes_on_from_step_to_step(probe: EnvProbe) -> None:
    """Steps are one shell session: directory, variables and files stay."""
    async with probe.running() as env:
        await env.step([("mkdir -p sub; cd sub; WORD=kept; echo in > file\n", 10.0)])
        observation, *_ = check_step(await env.step([("cat file; echo $WORD\n", 10.0)]))
        expect({"in", "kept"} <= set(observation.splitlines()), f"state was lost between steps: {observation!r}")


@EPISODES.behaviour
async def several_commands_are_one_turn(probe: EnvProbe) -> None:
    """A list of commands is typed in order, and one observation shows all their effects."""
    async with probe.running() as env:
        observation, *_, info = check_step(await env.step([("echo o''ne\n", 10.0), ("echo t''wo\n", 10.0)]))
        lines = observation.splitlines()
        expect("one" in lines and "two" in lines, f"an output is missing: {observation!r}")
        expect_equal(info["turn"], 1, "turn")


@EPISODES.behaviour
async def an_unreadable_action_does_nothing_and_says_why(probe: EnvProbe) -> None:
    """An unreadable message executes nothing; the observation and ``info["parse_error"]`` state the fault."""
    json_format = {"action_format": ActionFormat.TERMINUS_JSON, "max_consecutive_parse_failures": 3}
    async with probe.running(**json_format) as env:
        observation, _, done, info = check_step(await env.step("touch made-by-mistake\n"))
        expect(info.get("parse_error"), "info has no parse_error")
        expect(observation.strip(), "the observation does not state what was wrong")
        expect(not done, "an unreadable action ended the episode")
        observation, *_ = await env.step([("[ -e made-by-mistake ] && echo fo''und\n", 10.0)])
        expect("found" not in observation.splitlines(), "an unreadable action was executed")


@EPISODES.behaviour
async def unreadable_actions_end_the_episode_in_the_end(probe: EnvProbe) -> None:
    """After as many unreadable messages in a row as the configuration allows, the episode ends and is verified."""
    json_format = {"action_format": ActionFormat.TERMINUS_JSON, "max_consecutive_parse_failures": 2}
    async with probe.running(**json_format) as env:
        await env.step("not json")
        info = check_done(await env.step("not json"))
        expect_equal(info.get("end_reason"), EndReason.PARSE_FAILURES, "end_reason")


@EPISODES.behaviour
async def a_truncation_is_verified(probe: EnvProbe) -> None:
    """At ``max_turns`` the episode is done and truncated, and ``info`` has the verifier's rewards."""
    async with probe.running(max_turns=2) as env:
        *_, done, _ = check_step(await env.step("true\n"))
        expect(not done, "the episode was over a turn early")
        info = check_done(await env.step("true\n"))
        expect_equal((info.get("end_reason"), info.get("truncated")), (EndReason.MAX_TURNS, True), "end and truncated")
        expect(info.get("rewards"), "a truncated episode was not verified: info['rewards'] is empty")


@EPISODES.behaviour
async def a_shell_that_is_left_ends_the_episode(probe: EnvProbe) -> None:
    """``exit`` ends the episode without a failure: it has an end reason and is verified."""
    async with probe.running() as env:
        info = check_done(await env.step([("exit\n", 10.0)]))
        expect_equal((info.get("end_reason"), info.get("truncated")), (EndReason.SESSION_ENDED, False), "the ending")


@EPISODES.behaviour
async def done_has_its_metrics(probe: EnvProbe) -> None:
    """At the end ``info["metrics"]`` has the seconds of verifier and terminal, as numbers."""
    async with probe.running(max_turns=1) as env:
        metrics = check_done(await env.step("true\n"))["metrics"]
        missing = {"time/verifier_sec", "time/terminal_sec"} - set(metrics)
        expect(not missing, f"info['metrics'] lacks {', '.join(sorted(missing))}")


@EPISODES.behaviour
async def an_observation_keeps_its_budget(probe: EnvProbe) -> None:
    """An observation has at most ``max_observation_bytes``, and ``info`` reports how much is left out."""
    budget = 1000
    async with probe.running(terminal=TerminalConfig(max_observation_bytes=budget)) as env:
        line = "číslo " * 12
        observation, *_, info = check_step(await env.step([(f"echo '{line}'; " * 40 + "\n", 20.0)]))
        size = len(observation.encode())
        expect(size <= budget, f"the observation has {size} bytes, allowed are {budget}")
        expect(info.get("omitted_bytes", 0) > 0, "info does not report how much was omitted")


@EPISODES.behaviour
async def an_observation_is_plain_text(probe: EnvProbe) -> None:
    """Colours, bells and bytes that are not text leave no control characters in the observation."""
    async with probe.running() as env:
        script = r"printf 'p\033[31mred\033[0m\a\b\377q\n'" + "\n"
        observation, *_ = check_step(await env.step([(script, 10.0)]))
        expect(observation, "the observation is empty")


# --- failures --------------------------------------------------------------------------------------------------------


async def _expect_infrastructure(env: GymEnv, *actions: str) -> None:
    """Expect an infrastructure failure from ``reset`` or one of the steps, and a refusal of steps after it."""
    try:
        try:
            await env.reset()
            for action in actions:
                await env.step(action)
        except HarborGymError as exc:
            expect(exc.is_infrastructure, f"{type(exc).__name__} is not marked as a failure of the infrastructure")
        else:
            expect(False, "a failure of the infrastructure raised nothing")
        with refused("a step after a failure", UsageError):
            await env.step("true\n")
    finally:
        await env.close()


@FAILURES.behaviour
async def a_sandbox_that_does_not_start_raises(probe: EnvProbe) -> None:
    """``reset`` raises an error that is marked ``is_infrastructure``."""
    await _expect_infrastructure(probe.make_failing(start=1))


@FAILURES.behaviour
async def a_sandbox_that_is_lost_raises(probe: EnvProbe) -> None:
    """``step`` raises an error that is marked ``is_infrastructure``, and returns no reward and no observation."""
    await _expect_infrastructure(probe.make_failing(exec=2), "true\n", "true\n")


@FAILURES.behaviour
async def a_verifier_without_a_verdict_raises(probe: EnvProbe) -> None:
    """A crashed verifier is a failure of the infrastructure and not a reward of 0.0."""
    await _expect_infrastructure(probe.make_failing(verifier=1), "exit\n")


@FAILURES.behaviour
async def after_a_failure_a_reset_starts_again(probe: EnvProbe) -> None:
    """A failed episode does not spoil the environment: the next one runs."""
    env = probe.make_failing(exec=2)
    try:
        await env.reset()
        with refused("a step in a lost sandbox", HarborGymError):
            await env.step([("true\n", 1.0), ("true\n", 1.0)])
        await env.reset()
        observation, *_ = check_step(await env.step([("echo fi''ne\n", 10.0)]))
        expect("fine" in observation.splitlines(), f"the next episode does not run: {observation!r}")
    finally:
        await env.close()


@FAILURES.behaviour
async def a_cancelled_step_leaves_nothing(probe: EnvProbe) -> None:
    """A cancelled ``step`` raises ``CancelledError``, ends the episode, and leaves no task of it behind."""
    before = asyncio.all_tasks()
    async with probe.running() as env:
        step = asyncio.ensure_future(env.step([("sleep 30\n", 30.0)]))
        await asyncio.sleep(0.1)
        step.cancel()
        await asyncio.wait([step])
        expect(step.cancelled(), "the cancelled step was not cancelled")
        with refused("a step after a cancelled one", UsageError):
            await env.step("true\n")
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    expect(not left, f"tasks are left: {left}")
