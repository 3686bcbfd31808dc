"""The fake sandbox's answers to the scripts that prepare a sandbox for grading. It has no processes to stop."""

import shlex
from dataclasses import dataclass

from harbor_gym.testing.fake.files import FakeFiles

_SCRIPTS = ("baseline", "stop", "open_grading", "reset_verifier_dirs", "cut_rewards", "postmortem")


@dataclass(frozen=True)
class FakeProcesses:
    """The report on processes that a fake sandbox pretends to have."""

    stopped: int = 0
    """Processes of the policy that are killed before grading."""

    unstoppable: int = 0
    """Processes that survive that."""

    oom_kills: tuple[int, int, int] | None = None
    """Processes that the memory limit kills before the policy comes, while it acts, and while the verifier runs; None:
    the sandbox does not report them."""

    def killed(self, phases: int) -> str:
        """Return the number of processes that the memory limit has killed after so many of the three phases."""
        return "-" if self.oom_kills is None else str(sum(self.oom_kills[:phases]))


def answer_cleanup(command: str, content: FakeFiles, processes: FakeProcesses) -> str | None:
    """Answer a script of :mod:`harbor_gym.episode.grading.cleanup`; return None for any other command."""
    from harbor_gym.episode.grading.breakage import sound_answer
    from harbor_gym.episode.grading.cleanup import read_script

    if (sound := sound_answer(command)) is not None:
        return sound
    output: list[str] = []
    for script in _SCRIPTS:
        head, found, _ = command.partition(read_script(script))
        if found:
            output.append(_answer(script, shlex.split(head.splitlines()[-1])[2:], content, processes))
    return "".join(output) or None


def _answer(script: str, arguments: list[str], content: FakeFiles, processes: FakeProcesses) -> str:
    match script:
        case "baseline":
            return f"baseline {processes.killed(1)}\n"
        case "open_grading":
            return "opened\n"
        case "stop":
            content.remove(arguments[2])
            return f"stop {processes.stopped} {processes.unstoppable} {processes.killed(2)}\n"
        case "reset_verifier_dirs":
            for directory in arguments[1:]:
                content.remove(directory)
                content.make_dir(directory)
            return "reset\n"
        case "cut_rewards":
            for path in (f"{arguments[0]}/{name}" for name in ("reward.txt", "reward.json")):
                if content.is_file(path):
                    content.write(path, content.read(path)[: int(arguments[1])], mode=content.mode(path))
            return "cut\n"
        case _:
            return f"postmortem {processes.killed(3)}\n{content.text(arguments[0]) or ''}"
