"""The supervisor's program: the mode that its command line names. Runs by itself, stdlib only."""

import gc
import json
import sys

import loop


def main() -> int:
    """Run the mode that the command line names."""
    # A collection in a forked process would copy every page that it looks at.
    gc.disable()
    match sys.argv[1:]:
        case ["serve", handle, text]:
            return loop.serve(int(handle), json.loads(text))
        case ["forkserver", handle, caller]:
            import forkserver

            return forkserver.run(int(handle), int(caller))
        case ["enter", text]:
            return loop.enter(json.loads(text))
        case ["transfer", text, *handles]:
            handle, *further = map(int, handles)
            return loop.transfer(handle, json.loads(text)["transfer"], *further)
        case ["probe", directory]:
            import probe

            print(probe.refusal(directory))  # noqa: T201  # a script's own output
            return 0
        case _:
            raise SystemExit(
                "usage: serve FD JSON | forkserver FD PID | enter JSON | transfer JSON FD... | probe DIRECTORY"
            )
