"""The verdicts on tricks that pay, do not pay, or leave no verdict; no sandbox runs."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harbor_gym.checking import reward_hacking
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


SCRIPTS = Path(reward_hacking.__file__).parent / "exploits"


@pytest.mark.parametrize("found", [None, '{"reward": 0}\n', ""])
def test_a_forged_reward_is_replaced_whole(tmp_path: Path, found: str | None) -> None:
    """Its reader may come at any time: what it has opened stays as it was, and what it opens is complete."""
    folder = tmp_path / "logs/verifier"
    if found is not None:
        folder.mkdir(parents=True)
        (folder / "reward.json").write_text(found, encoding="utf-8")
        (tmp_path / "read").hardlink_to(folder / "reward.json")
    forging = f'verdict="$1"; . {SCRIPTS / "common.sh"}; eval "$forge_once"; forge_once "$2"'
    subprocess.run(["bash", "-c", forging, "bash", '{"reward": 1}', tmp_path], check=True)
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "reward.txt": "1\n",
        "reward.json": '{"reward": 1}\n',
    }
    assert found is None or (tmp_path / "read").read_text(encoding="utf-8") == found


def test_what_forges_on_starts_programs_of_the_tricks_that_do_not(tmp_path: Path) -> None:
    """Where a trick has replaced ``sleep`` or the shell, each round would else begin another that goes on."""
    common = subprocess.run(
        ["bash", "-c", f'verdict=1; exec 3>&1; . {SCRIPTS / "common.sh"}; printf %s "$forge" >&3'],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    assert common.count("$1/logs") == common.count("seq 1000") == 1
    forge = tmp_path / "forge"
    forge.write_text(common.replace("$1/logs", f"{tmp_path}/logs").replace("seq 1000", "seq 3"), encoding="utf-8")
    started, sleep = tmp_path / "started", tmp_path / "bin/sleep"
    started.touch()
    sleep.parent.mkdir()
    sleep.write_text(f"#!/bin/bash\necho >>{started}\n[ $(wc -l <{started}) -gt 30 ] || . {forge}\n", encoding="utf-8")
    sleep.chmod(0o755)
    path = {"PATH": f"{sleep.parent}:/usr/bin:/bin"}
    subprocess.run(["bash", str(forge)], env=path, stdout=subprocess.PIPE, check=True)  # until the last has ended
    assert started.read_text(encoding="utf-8") == "\n" * 3


def test_the_tricks_write_a_reward_while_it_may_be_read_by_one_function() -> None:
    """That of verdict.sh lies there before."""
    writing = re.compile(r">\S*/reward\.")
    assert [path.stem for path in sorted(SCRIPTS.glob("*.sh")) if writing.search(path.read_text(encoding="utf-8"))] == [
        "common",
        "verdict",
    ]
