"""The supervisor's program: the mode that its command line names. Runs by itself, stdlib only."""

import gc
import json
import os
import sys
from typing import Any

import loop
from messages import ContainerConfig, Target, parse


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
        case ["enter-by", handle]:
            request = loop.read_spec(int(handle))
            os.close(int(handle))
            return loop.enter(request)
        case ["transfer", text, *handles]:
            handle, *further = map(int, handles)
            return loop.transfer(handle, json.loads(text)["transfer"], *further)
        case ["launch" | "prepare" | "clean-up" as work, text]:
            return _container(work, json.loads(text))
        case ["probe", directory]:
            import probe

            print(probe.refusal(directory))  # noqa: T201  # a script's own output
            return 0
        case _:
            raise SystemExit(
                "usage: serve FD JSON | forkserver FD PID | enter JSON | enter-by FD | transfer JSON FD... | "
                "launch JSON | prepare JSON | clean-up JSON | probe DIRECTORY"
            )


def _container(work: str, request: Any) -> int:
    import container

    if work == "launch":
        return container.launch(parse(ContainerConfig, request))
    target = parse(Target, request.pop("target"))
    answer = (container.prepare if work == "prepare" else container.clean_up)(target, **request)
    return container.report(answer)
