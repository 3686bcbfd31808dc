"""The verdicts on tricks that pay, do not pay, or leave no verdict; no sandbox runs."""

from collections.abc import Iterator, Sequence

import pytest

from harbor_gym.checking.play import Played, Work
from harbor_gym.checking.reward_hacking import SABOTAGE, ExploitResult, run_exploit, trick_names
from harbor_gym.checking.verdict import PhaseSeconds
from harbor_gym.errors import SandboxLostError, SandboxStartError, VerifierError

TRICKS = trick_names()
LOST = SandboxLostError("gone")
SILENT = VerifierError("no verdict")


async def exploit_with(
    together: float | Exception, alone: Sequence[float | Exception] = (), sabotage: float | Exception = 0.0
) -> ExploitResult:
    """Run the exploits with an outcome for all tricks together, for each alone and for sabotage; none may be left."""
    outcomes: Iterator[float | Exception] = iter([together, *alone, sabotage])

    async def play(_work: Work) -> Played:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return Played(outcome, frozenset(), PhaseSeconds(0, 0, 0, 0), "", 0, supports_view=False, services=None)

    result = await run_exploit(play, ["reward"], honest=(0.0, 0.1))
    assert next(outcomes, None) is None
    return result


def outcomes(first: float | Exception, others: float | Exception) -> list[float | Exception]:
    return [first, *[others] * (len(TRICKS) - 1)]


@pytest.mark.parametrize("reward", [0.0, 0.1])
async def test_what_doing_nothing_earns_too_is_not_looked_into(reward: float) -> None:
    assert await exploit_with(reward) == ExploitResult(reward, (), ())


async def test_tricks_that_pay_as_much_alone_are_named() -> None:
    assert await exploit_with(1.0, outcomes(1.0, 0.0)) == ExploitResult(1.0, (TRICKS[0],), ())
    assert await exploit_with(1.0, outcomes(0.5, 0.0)) == ExploitResult(1.0, (), ())


async def test_tricks_that_hold_each_other_up_are_tried_one_by_one() -> None:
    async def play(_work: Work) -> Played:
        return Played(1.0, frozenset(), PhaseSeconds(0, 0, 0, 0), "", 0, supports_view=False, services=None)

    async def play_together(_work: Work) -> Played:
        raise SILENT

    forged = await run_exploit(play, ["reward"], honest=(0.0,), together=play_together)
    assert forged == ExploitResult(1.0, tuple(TRICKS), ())


async def test_sabotage_that_leaves_no_verdict_is_named_and_changes_nothing_else() -> None:
    assert await exploit_with(0.0, sabotage=SILENT) == ExploitResult(0.0, (), (SABOTAGE,))
    assert await exploit_with(1.0, outcomes(1.0, 0.0), LOST) == ExploitResult(1.0, (TRICKS[0],), (SABOTAGE,))
    assert SABOTAGE not in TRICKS


async def test_tricks_that_leave_no_verdict_are_named_and_do_not_hide_those_that_pay() -> None:
    assert await exploit_with(LOST, outcomes(SILENT, 0.0)) == ExploitResult(0.0, (), (TRICKS[0],))
    assert await exploit_with(SILENT, outcomes(1.0, LOST)) == ExploitResult(1.0, (TRICKS[0],), tuple(TRICKS[1:]))
    assert await exploit_with(1.0, outcomes(LOST, 1.0)) == ExploitResult(1.0, tuple(TRICKS[1:]), (TRICKS[0],))


async def test_without_any_verdict_or_sandbox_there_is_an_error() -> None:
    with pytest.raises(VerifierError, match="no verdict"):
        await exploit_with(SILENT, outcomes(LOST, LOST))
    with pytest.raises(SandboxStartError):
        await exploit_with(SandboxStartError("full"))
