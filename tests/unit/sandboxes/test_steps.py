"""System calls that the static program makes from a list, and that a forked Python makes from the same list."""

import re
from pathlib import Path

import pytest

from tests.helpers.sandboxes.program import run_in_program

_GENERIC = Path("/usr/include/asm-generic/unistd.h")
_BEGIN = """
import errno, os, sys
from kernel import programs, steps
from kernel.steps import ANY, AT_FDCWD, KEPT, Steps, failure
read, write = os.pipe()

def run(list_of_steps):
    if sys.argv[1] == "perform":
        if (pid := os.fork()) == 0:
            try:
                list_of_steps.perform()
            except OSError as exc:
                print(exc, flush=True)
                os._exit(126)
            os._exit(0)
    else:
        pid = list_of_steps.spawn(programs.open_first(), (0, 1, 2))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.set_blocking(read, False)
    try:
        text = failure(os.read(read, 4096))
    except BlockingIOError:
        text = ""
    if text:
        print(text)
    print("ended with", code)

s = Steps(write)
"""
BY = pytest.mark.parametrize("by", ["spawn", "perform"])


def _run(code: str, by: str = "spawn") -> str:
    done = run_in_program(_BEGIN + code, by)
    assert done.returncode == 0, done.stderr
    return done.stdout


@BY
def test_a_result_is_kept_for_later_calls_and_data_is_the_calls_own(by: str) -> None:
    """The byte that the first call writes is not the end of the empty path that comes later."""
    code = """
left, right = os.pipe()
os.write(right, b"x")
s.inherited.append(left)
s.call("read", left, s.room(1), 1, least=1)
s.call("openat", AT_FDCWD, ".", os.O_PATH, keeps=True)
s.call("fchmodat", KEPT, "/dev/null", 0o666)
s.call("faccessat", AT_FDCWD, "", 0, tolerates=errno.ENOENT)
s.call("close", KEPT)
s.call("close", KEPT, what="close it again")
run(s)
"""
    assert _run(code, by) == "close it again: Bad file descriptor\nended with 126\n"


@BY
@pytest.mark.parametrize(
    ("path", "said"),
    [("/", "found"), ("/nothing", "not found: No such file or directory"), ("/dev/null/x", "odd: Not")],
)
def test_steps_are_left_out_after_success_and_after_a_tolerated_error(by: str, path: str, said: str) -> None:
    code = f"""
s.call("faccessat", AT_FDCWD, {path!r}, 0, what="odd", tolerates=errno.ENOENT, skips_after_success=1)
s.call("chdir", {path!r}, what="not found")
s.refuse("found")
run(s)
"""
    assert _run(code, by).startswith(said)


@BY
def test_any_error_can_be_tolerated_and_a_small_result_is_a_failure(by: str) -> None:
    code = """
s.call("chdir", "/dev/null/x", tolerates=ANY, skips_after_error=1)
s.refuse("not left out")
s.call("write", write, "", 0, what="nothing was written", least=1)
run(s)
"""
    assert _run(code, by) == "nothing was written\nended with 126\n"


def test_a_child_goes_on_and_its_parent_reports_its_id() -> None:
    code = """
ids, to = os.pipe()
s.inherited.append(to)
s.fork(to)
s.call("read", 0, s.room(1), 1)
s.refuse("the child went on")
pid = s.spawn(programs.open_first(), (os.open("/dev/null", os.O_RDONLY), 1, 2))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
child = int.from_bytes(os.read(ids, 8), "little")
assert child > 0 and child != pid
os.close(write)
print(failure(open(read, "rb").read()))
"""
    assert _run(code) == "the child went on\n"


def test_a_program_gets_its_words_its_variables_and_no_other_descriptor() -> None:
    code = """
s.inherited.append(os.open("/", os.O_PATH))
s.close_on_execute()
script = 'echo "$0 $1"; printf "$WORD" | wc -c; echo /proc/self/fd/*'
s.execute("/bin/sh", ["sh", "-c", script, "zero", "ö"], {"WORD": "\\udcff"})
run(s)
"""
    # The last one is the listing's.
    handles = "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3"
    assert _run(code) == f"zero ö\n1\n{handles}\nended with 0\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ('"/nothing", []', "/nothing: cannot execute: error 2\nended with 126\n"),
        ('"/bin/sh", ["x" * (1 << 17)]', "execute /bin/sh: Argument list too long\nended with 126\n"),
    ],
)
def test_what_can_not_be_executed_is_named(argv: str, said: str) -> None:
    """What the command itself could cause, on its standard error; else to the supervisor."""
    assert _run(f"os.dup2(1, 2); s.execute({argv}, {{}}); run(s)") == said


@pytest.mark.parametrize("argv", ['["a\\0b"], {}', '[], {"A=B": ""}', '[], {"": "x"}', '[], {"A": "\\0"}'])
def test_words_that_no_program_can_get_are_refused(argv: str) -> None:
    assert (
        _run(f"try:\n    s.execute('/bin/sh', {argv})\nexcept ValueError as exc:\n    print('refused')") == "refused\n"
    )


def test_the_numbers_of_aarch64_are_the_generic_ones() -> None:
    """Those of x86_64 are used by every other test."""
    if not _GENERIC.exists():
        pytest.skip("apt-get install -y linux-libc-dev")
    listed = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", _GENERIC.read_text(encoding="ascii")))
    code = """
import importlib, types
os.uname = lambda: types.SimpleNamespace(machine="aarch64")
for name, number in importlib.reload(steps)._NUMBERS.items():
    print(name, number)
"""
    numbers = dict(line.split() for line in _run(code).splitlines())
    assert len(numbers) > 20
    assert numbers == {name: listed[name] for name in numbers}


@BY
def test_prepared_calls_are_made_as_those_that_are_added_one_by_one(by: str) -> None:
    """Two lists are prepared, so that the second's data comes after the first's; a third is built at its use."""
    code = """
def say(steps, text, times):
    for number in range(times):
        steps.call("write", 1, f"{text} {number}\\n", len(f"{text} {number}\\n"), what=text)

Steps.prepare(say, "one", 2)
Steps.prepare(say, "two", 1)
s = Steps(write)
for text, times in (("two", 1), ("three", 1), ("one", 2), ("two", 1)):
    s.add(say, text, times)
s.call("chdir", "/dev/null/x", what="and then")
run(s)
"""
    said = "two 0\nthree 0\none 0\none 1\ntwo 0\n"
    assert _run(code, by).startswith(f"{said}and then: Not a directory")
