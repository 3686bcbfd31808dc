"""The scripts that run in the sandbox."""

import functools
import re
import shlex
from pathlib import Path

from harbor_gym._runtime.shell_text import without_comments

_SCRIPTS = Path(__file__).parent
_FUNCTION = re.compile(r"^(\w+)\(\) \{(?:[^\n]*\}|\n.*?\n\}[^\n]*(?=\n\n))\n", re.MULTILINE | re.DOTALL)
"""A function, which has no empty line and is followed by one, or takes one line."""
_INDENTATION = re.compile(r"^ +", re.MULTILINE)
SELDOM = (
    "asks", "at_same_prompt", "at_shell", "await_dead_pane", "draws_itself", "edits_hidden", "end_wait",
    "examine_name", "examine_panes", "examine_strays", "examine_terminal", "examine_unseen", "examine_within",
    "find_remains", "find_source", "find_within", "foreground_has_run", "foreground_runs", "holds_terminal",
    "is_below", "is_continuation", "is_counter", "is_ending", "is_go_watching", "is_in_screen", "is_internal",
    "is_master", "is_own_pair", "is_tended_quietly", "judge", "judge_hidden", "kill_tree", "note_timer", "paste_keys",
    "print_buffer", "quote", "read_limit", "read_memory", "read_note", "read_prompt", "read_syscall_as_owner",
    "reads_beside", "reads_secret", "recall_typing", "restore", "rests", "rests_long", "show_again", "show_frame",
    "show_trimmed", "still_waits", "take_over", "timer_is_over", "wait_exactly", "waits_within",
)  # fmt: skip
"""Functions of the step script that a session which only sees prompts does not call."""


def read_source(name: str) -> str:
    """Return the text of a script by its name without suffix; the parts of a script in a folder are joined in order."""
    parts = sorted((_SCRIPTS / name).glob("*.bash")) or [_SCRIPTS / f"{name}.bash"]
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


@functools.cache
def read_script(name: str) -> str:
    """Return a script as it is sent: without comment lines and indentation."""
    return _INDENTATION.sub("", without_comments(read_source(name)))


@functools.cache
def split_step(script: str) -> tuple[str, str]:
    """Return the seldom called functions of the step script, and the rest with a substitute for each that it calls.

    The first call of a substitute makes bash read them all, from the variable ``seldom``: it takes half as long to read
    the rest alone. Where that variable is empty, there are no substitutes.
    """
    seldom = {match[1]: match[0] for match in _FUNCTION.finditer(script) if match[1] in SELDOM}
    rest = _FUNCTION.sub(lambda match: "" if match[1] in SELDOM else match[0], script)
    called = [name for name in seldom if re.search(rf"\b{name}\b", rest)]
    substitutes = "".join(f'{name}() {{ eval "$seldom"; {name} "$@"; }}\n' for name in called)
    return "".join(seldom.values()), f'[ -z "$seldom" ] || {{\n{substitutes}}}\n{rest}'


def reader(key: str, step: str, script: str) -> tuple[str, str]:
    """Return a short command that reads two scripts from its standard input and runs the second, and that input.

    The scripts are not on the command line, which every process in the sandbox can read.

    Args:
        key: Distinguishes this command from others.
        step: The step script, whose parts are in the variables ``seldom`` and ``step`` then.
        script: The other.
    """
    seldom, rest = split_step(step)
    texts = {"seldom": seldom, "step": rest, "script": script}
    reads = [f"IFS= LC_ALL=C read -rN {len(text.encode())} {name}" for name, text in texts.items()]
    return " && ".join([f": terminal/step serve {key}", *reads, 'eval "$script"']), "".join(texts.values())


def call_in_bash(name: str, *arguments: object) -> str:
    """Return a shell command that runs a script with arguments: in the same shell if that is bash."""
    words = shlex.join(map(str, arguments))
    return (
        f"set -- {words}; script={shlex.quote(read_script(name))}; "
        'case ${BASH-} in */bash) eval "$script" ;; *) exec bash -c "$script" bash "$@" ;; esac'
    )
