"""How grading reads a sandbox's answers when it takes the sandbox away from the policy."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, cast

import pytest
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import TaskOS

from harbor_gym.episode.grading import cleanup
from harbor_gym.episode.grading.cleanup import Baseline, BrokenByPolicyError, CleanupResult, VerifierDirsReset
from harbor_gym.episode.grading.process_watch import ProcessWatch
from harbor_gym.errors import SandboxLostError, SandboxTimeoutError
from harbor_gym.terminal.session import Leftovers

OWN = Baseline(frozenset({"1:0", "7:350"}), frozenset({"shm:3"}), 2)
RESET = VerifierDirsReset((PurePosixPath("/logs/verifier"), PurePosixPath("/tests")), "1000")


class Scripted:
    """Answers the scripts that a sandbox is asked to run."""

    os = TaskOS.LINUX

    def with_default_user(self, _user: str | None) -> AbstractContextManager[None]:
        return nullcontext()

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def exec(self, command: str, **settings: Any) -> ExecResult:
        self.asked.append((command, settings))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return ExecResult(stdout=answer, return_code=0)


class Able:
    """Cleans up by itself, as local sandboxes do."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def clean_up(self, what: str, arguments: dict[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        assert timeout_sec >= 10
        self.asked.append((what, arguments))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def sandbox(environment: Scripted | Able) -> BaseEnvironment:
    return cast(BaseEnvironment, environment)


def baseline(*processes: str, ipc: tuple[str, ...] = (), oom_kills: int | None = 0) -> dict[str, Any]:
    return {"processes": processes, "ipc": ipc, "oom_kills": oom_kills}


def opened(*, is_full: bool = False) -> dict[str, Any]:
    return {"problem": "", "is_full": is_full}


def stopped(count: int, left: int = 0, oom_kills: int | None = 0, kept: int = 0, *names: str) -> dict[str, Any]:
    return {"stopped": count, "left": left, "oom_kills": oom_kills, "kept": kept, "names": names}


# -- the baseline ------------------------------------------------------------------------------------------------------


async def test_a_baseline_is_read_from_the_scripts_answer() -> None:
    answers = "baseline 2 1:0 7:350 shm:3\n0:0 755 /\n", "baseline - 1:0\n"
    environment = Scripted(*answers)
    assert await cleanup.take_baseline(sandbox(environment)) == OWN
    assert await cleanup.take_baseline(sandbox(environment)) == Baseline(frozenset({"1:0"}), frozenset(), None)
    for _, settings in environment.asked:
        assert (settings["cwd"], settings["user"]) == ("/", "root"), "wherever the policy left its directory"


async def test_the_first_baseline_tells_the_tasks_own_workdir() -> None:
    environment = Scripted("baseline - 1:0\n1000:50 2775 /a b\n")
    first = await cleanup.take_baseline(sandbox(environment), is_first=True)
    assert first.workdir == ("1000:50", "2775", "/a b")
    assert environment.asked[0][1]["cwd"] is None


async def test_a_sandbox_may_take_its_baseline_by_itself() -> None:
    environment = Able(baseline("1:0", "7:350", ipc=("shm:3",), oom_kills=2))
    assert await cleanup.take_baseline(sandbox(environment)) == OWN
    assert environment.asked == [("baseline", {})]


@pytest.mark.parametrize("answer", ["", "other 2 1:0", "baseline", "x" * 1000])
async def test_an_answer_that_is_none_is_quoted_by_its_end(answer: str) -> None:
    with pytest.raises(SandboxLostError, match="could not note what runs before the policy: it answered") as caught:
        await cleanup.take_baseline(sandbox(Scripted(answer)))
    assert len(str(caught.value)) < 600
    assert answer[-500:] in str(caught.value)


async def test_what_a_client_library_raises_is_a_lost_sandbox_and_our_errors_pass() -> None:
    with pytest.raises(SandboxLostError, match=r"could not note what runs before the policy: OSError: gone"):
        await cleanup.take_baseline(sandbox(Scripted(OSError("gone"))))
    with pytest.raises(SandboxTimeoutError):
        await cleanup.take_baseline(sandbox(Scripted(SandboxTimeoutError("slow"))))


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_stopping_by_script_reads_three_numbers() -> None:
    environment = Scripted("stop 5 0 3\n", "stop 0 0 -\n")
    terminal = Leftovers(pids=("40", "41"), directory="/run/.terminal-x")
    assert await cleanup.stop_processes(sandbox(environment), OWN, terminal=terminal) == CleanupResult(5, 3)
    assert await cleanup.stop_processes(sandbox(environment), OWN) == CleanupResult(0, None)
    script = environment.asked[0][0]
    for word in (",40,41,", "/run/.terminal-x", "7:350", "shm:3"):
        assert word in script


@pytest.mark.parametrize("answer", ["", "stop 1 2", "stop 1 2 3 4", "stopped 1 2 3"])
async def test_stopping_without_an_answer_is_a_lost_sandbox(answer: str) -> None:
    with pytest.raises(SandboxLostError, match="could not stop the policy's processes: it answered"):
        await cleanup.stop_processes(sandbox(Scripted(answer)), OWN)


async def test_processes_that_are_left_are_the_policys_doing() -> None:
    for environment in (Scripted("stop 1 2 0"), Able(stopped(1, left=2))):
        with pytest.raises(BrokenByPolicyError, match="2 of the policy's processes could not be stopped"):
            await cleanup.stop_processes(sandbox(environment), OWN)


async def test_a_cleanup_that_takes_too_long_is_the_policys_doing_where_none_of_its_programs_takes_part() -> None:
    with pytest.raises(BrokenByPolicyError, match="could not stop the policy's processes: slow"):
        await cleanup.stop_processes(sandbox(Able(SandboxTimeoutError("slow"))), OWN)
    with pytest.raises(BrokenByPolicyError, match="could not empty the verifier's directories before grading: slow"):
        await cleanup.reset_verifier_dirs(sandbox(Able(SandboxTimeoutError("slow"))), RESET)
    with pytest.raises(SandboxTimeoutError):
        await cleanup.stop_processes(sandbox(Scripted(SandboxTimeoutError("slow"))), OWN)


async def test_a_sandbox_that_stops_by_itself_is_given_what_to_spare() -> None:
    environment = Able(stopped(4, 0, None, 0, "nginx", "a\x1b[31mb"))
    terminal = Leftovers(pids=("40",), directory="/run/.terminal-x")
    result = await cleanup.stop_processes(sandbox(environment), OWN, terminal=terminal)
    assert result == CleanupResult(4, None, names=("nginx", "a\\x1b[31mb")), "a name is the policy's text"
    ((what, arguments),) = environment.asked
    assert what == "stop"
    assert arguments["own"] == ["1:0", "7:350"]
    assert (arguments["ipc_objects"], arguments["terminal"]) == (["shm:3"], [40])
    assert (arguments["leftovers"], arguments["keeps"]) == ("/run/.terminal-x", False)
    assert 0 < arguments["grace_sec"] < arguments["deadline_sec"]


# -- the preconditions of grading ----------------------------------------------------------------------------------


async def test_what_grading_needs_is_made_again_or_the_policy_broke_it() -> None:
    able = Able(opened(is_full=True), {"problem": "/app is busy", "is_full": False})
    assert await cleanup.open_grading(sandbox(able), OWN)
    assert able.asked == [("open_grading", {})]
    with pytest.raises(BrokenByPolicyError, match="make the directories for grading: /app is busy"):
        await cleanup.open_grading(sandbox(able), OWN)
    own = replace(OWN, workdir=("1000:50", "2775", "/a b"))
    scripted = Scripted("opened\n", "/a b could not be made\n")
    assert not await cleanup.open_grading(sandbox(scripted), own)
    assert "set -- 1000:50 2775 '/a b' /logs/agent /logs/artifacts\n" in scripted.asked[0][0]
    with pytest.raises(BrokenByPolicyError, match="/a b could not be made"):
        await cleanup.open_grading(sandbox(scripted), own)


async def test_an_answer_that_is_no_users_id_is_the_policys_doing() -> None:
    for answer in ("", "0 0", "root"):
        with pytest.raises(BrokenByPolicyError, match="instead of a user's id"):
            await cleanup.user_id(sandbox(Scripted(answer)))


# -- the verifier's directories ----------------------------------------------------------------------------------------


async def test_directories_are_reset_or_the_policy_broke_them() -> None:
    able = Able({"problem": ""}, {"problem": "/tests is a mount"})
    await cleanup.reset_verifier_dirs(sandbox(able), RESET)
    assert able.asked == [("reset_verifier_dirs", {"directories": ["/logs/verifier", "/tests"], "owner": "1000"})]
    with pytest.raises(BrokenByPolicyError, match="before grading: /tests is a mount"):
        await cleanup.reset_verifier_dirs(sandbox(able), RESET)
    await cleanup.reset_verifier_dirs(sandbox(Scripted("a warning\nreset\n")), RESET)
    for answer, problem in (("rm: cannot remove", "rm: cannot remove"), ("reset\nbut", "but"), ("", "no answer")):
        with pytest.raises(BrokenByPolicyError, match=problem):
            await cleanup.reset_verifier_dirs(sandbox(Scripted(answer)), RESET)


async def test_a_postmortem_is_read_where_the_sandbox_answers() -> None:
    output = PurePosixPath("/logs/verifier/test-stdout.txt")
    found = await cleanup.examine(sandbox(Scripted("postmortem 3\nlast\nwords\n")), output)
    assert found == cleanup.Postmortem(3, "last\nwords\n")
    unknown = await cleanup.examine(sandbox(Scripted("postmortem -\n")), output)
    assert unknown == cleanup.Postmortem(None, "")
    assert await cleanup.examine(sandbox(Scripted(OSError("gone"))), output) is None


# -- whose processes are whose -----------------------------------------------------------------------------------------


async def test_the_policys_processes_are_stopped_and_its_memory_kills_counted() -> None:
    environment = Able(baseline("1:0", oom_kills=2), stopped(3, oom_kills=5), opened(is_full=True))
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    assert watch.oom_kills == 2
    assert await watch.end_phase(keep_processes=False, terminal=None) == CleanupResult(3, 3, was_full=True)


async def test_kept_processes_outlive_the_phase_and_the_verifier_between_steps() -> None:
    environment = Able(baseline("1:0"), stopped(0, kept=1), opened(), baseline("1:0", "9:5"), stopped(1))
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    assert await watch.end_phase(keep_processes=True, terminal=None) == CleanupResult(0, 0, kept=1)
    await watch.begin_verification(is_last=False)
    await watch.end_verification()
    assert [what for what, _ in environment.asked] == ["baseline", "stop", "open_grading", "baseline", "stop"]
    assert [arguments.get("keeps") for what, arguments in environment.asked if what == "stop"] == [True, False]
    assert environment.asked[-1][1]["own"] == ["1:0", "9:5"], "what the policy was to keep is spared"
    await watch.end_verification()
    assert environment.answers == [], "only once"


async def test_only_what_ran_before_the_first_phase_is_the_tasks_own() -> None:
    environment = Able(
        *(baseline("1:0"), stopped(0), opened()), *(baseline("1:0", "5:5"), {}, stopped(0), opened(), stopped(0))
    )
    watch = ProcessWatch(sandbox(environment))
    for _ in range(2):
        await watch.begin_phase()
        await watch.end_phase(keep_processes=False, terminal=None)
    await watch.stop_again()
    stops = [arguments["own"] for what, arguments in environment.asked if what == "stop"]
    assert stops == [["1:0"], ["1:0"], ["1:0"]]
    assert [what for what, _ in environment.asked].count("close_grading") == 1, "the room is taken back"


async def test_what_was_to_be_kept_is_not_stopped_when_the_verifier_begins() -> None:
    environment = Able(baseline("1:0"), stopped(0, kept=2), opened())
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    await watch.end_phase(keep_processes=True, terminal=None)
    await watch.stop_again()
    assert [what for what, _ in environment.asked] == ["baseline", "stop", "open_grading"]


async def test_where_nothing_was_to_be_kept_what_is_started_later_is_stopped() -> None:
    environment = Able(baseline("1:0"), stopped(0), opened(), stopped(1))
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    await watch.end_phase(keep_processes=True, terminal=None)
    await watch.stop_again()
    assert [arguments["keeps"] for what, arguments in environment.asked if what == "stop"] == [True, False]


async def test_a_sandbox_that_is_cleaned_up_by_a_script_is_not_asked_for_what_runs_on() -> None:
    environment = Scripted("baseline - 1:0\n0:0 755 /\n", "opened\n")
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    assert (await watch.end_phase(keep_processes=True, terminal=None)).kept == 1
    assert watch.keeps_processes


async def test_an_agents_own_processes_are_noticed() -> None:
    environment = Able(baseline("1:0"), baseline("1:0"), baseline("1:0", "5:5"))
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    assert [await watch.has_others(), await watch.has_others()] == [False, True]


async def test_after_the_last_verifier_nothing_has_to_be_stopped() -> None:
    environment = Able(baseline("1:0"), stopped(0), opened())
    watch = ProcessWatch(sandbox(environment))
    await watch.begin_phase()
    await watch.end_phase(keep_processes=False, terminal=None)
    await watch.begin_verification(is_last=True)
    await watch.end_verification()
    assert [what for what, _ in environment.asked] == ["baseline", "stop", "open_grading"]
