"""The entry point of the supervisor's program, whose first argument is a mode. Runs by itself, stdlib only."""

import gc
import json
import sys


def main() -> int:
    """Run the mode that the command line names."""
    # A collection in a forked process would copy every page that it visits.
    gc.disable()
    match sys.argv[1:]:
        case ["forkserver", handle, caller]:
            import forkserver

            return forkserver.run(int(handle), int(caller))
        case ["enter", text]:
            import entered_command

            return entered_command.enter(json.loads(text))
        case ["probe", directory]:
            import probe

            print(probe.refusal(directory))  # noqa: T201  # a script's own output
            return 0
        case _:
            raise SystemExit("usage: forkserver FD PID | enter JSON | probe DIRECTORY")
