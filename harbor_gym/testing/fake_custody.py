"""The fake's answers to the scripts by which an episode prepares a sandbox for grading. It has no processes to stop."""

import shlex

from harbor_gym.testing.fake_files import FakeFiles

_SCRIPTS = ("census", "stop", "seal", "autopsy")


def answer_custody(command: str, content: FakeFiles) -> str | None:
    """Do what one of :mod:`harbor_gym.episode.custody`'s scripts asks and return its answer; None otherwise."""
    from harbor_gym.episode.custody import read_script

    said: list[str] = []
    for script in _SCRIPTS:
        head, found, _ = command.partition(read_script(script))
        if found:
            said.append(_answer(script, shlex.split(head.splitlines()[-1])[2:], content))
    return "".join(said) or None


def _answer(script: str, arguments: list[str], content: FakeFiles) -> str:
    match script:
        case "census":
            return "census -\n"
        case "stop":
            content.remove(arguments[2])
            return "stop 0 0 -\n"
        case "seal":
            for directory in arguments[1:]:
                content.remove(directory)
                content.make_dir(directory)
            return "sealed\n"
        case _:
            return f"autopsy -\n{content.text(arguments[0]) or ''}"
