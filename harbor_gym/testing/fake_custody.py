"""The fake's answers to the scripts by which an episode prepares a sandbox for grading. It has no processes to stop."""

import shlex

from harbor_gym.testing.fake_files import FakeFiles

_SCRIPTS = ("census", "stop", "seal", "autopsy")


def answer_custody(command: str, content: FakeFiles) -> str | None:
    """Do what one of :mod:`harbor_gym.episode.custody`'s scripts asks and return its answer; None otherwise."""
    from harbor_gym.episode.custody import read_script

    script = next((name for name in _SCRIPTS if command.endswith(read_script(name))), None)
    if script is None:
        return None
    head = command.removesuffix(read_script(script)).strip()
    arguments = shlex.split(head)[2:]
    match script:
        case "census":
            return "census 0 -\n"
        case "stop":
            return "stop 0 0 -\n"
        case "seal":
            for directory in arguments[1:]:
                content.remove(directory)
                content.make_dir(directory)
            return "sealed\n"
        case _:
            return f"autopsy -\n{content.text(arguments[0]) or ''}"
