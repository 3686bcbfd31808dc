"""Which of the stopped processes the supervisor's program counts as the policy's."""

import json

import pytest

from tests.helpers.sandboxes.program import run_in_program

_COUNT = """
import json, sys
from grading import cleanup
from kernel.procfs import Stat
words, state, flags, threads = json.loads(sys.argv[1])
cleanup._words = lambda pid: words.replace(" ", "\\0").encode()
cleanup.read_stat = lambda pid: Stat(state, 1, flags, threads, "7", 0)
counted = cleanup._Counted("/run/.terminal-1", 5)
counted.add({8: cleanup._Process(1, "8:7")})
print(len(counted.identities))
"""
_RUNS, _ENDS = 0x400040, 0x40010C


@pytest.mark.parametrize(
    ("words", "state", "flags", "threads", "counted"),
    [
        pytest.param("sleep 9", "S", _RUNS, 1, 1, id="the_policys"),
        pytest.param("tmux -S /run/.terminal-1/socket", "S", _RUNS, 1, 0, id="the_terminals"),
        pytest.param("bash --rcfile /run/.terminal-1/rc", "S", _RUNS, 1, 1, id="a_job_of_the_shell"),
        pytest.param("", "S", _RUNS, 1, 1, id="erased_its_words"),
        pytest.param("", "R", _ENDS, 1, 0, id="is_ending"),
        pytest.param("", "Z", _ENDS, 1, 0, id="has_ended"),
        pytest.param("", "Z", _ENDS, 3, 1, id="its_other_threads_run_on"),
    ],
)
def test_a_process_that_is_ending_by_itself_is_not_the_policys(
    words: str, state: str, flags: int, threads: int, counted: int
) -> None:
    done = run_in_program(_COUNT, json.dumps([words, state, flags, threads]))
    assert done.stdout.split() == [str(counted)], done.stderr
