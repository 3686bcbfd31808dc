"""The entry point of the supervisor's program, whose first argument is a mode. Runs by itself, stdlib only."""

import gc
import json
import os
import sys
from typing import Any

from messages import ContainerConfig, ContainerSite, Target, parse


def main() -> int:
    """Run the mode that the command line names."""
    # A collection in a forked process would copy every page that it visits.
    gc.disable()
    match sys.argv[1:]:
        case ["serve", handle, text]:
            import serving

            return serving.serve(int(handle), json.loads(text))
        case ["forkserver", handle, caller]:
            import forkserver

            return forkserver.run(int(handle), int(caller))
        case ["enter", text]:
            import entered_command

            return entered_command.enter(json.loads(text))
        case ["enter-by", handle, *view]:
            import control_socket
            import entered_command

            request = control_socket.read_spec(int(handle))
            os.close(int(handle))
            return entered_command.enter(request, *map(int, view))
        case ["transfers", text, *handles]:
            import transfers

            handle, *further = map(int, handles)
            return transfers.serve(handle, json.loads(text)["transfers"], *further)
        case ["launch", text]:
            import container

            return container.launch(parse(ContainerConfig, json.loads(text)))
        case ["prepare" | "clean_up" | "resize" | "view" | "merge" | "drop_view" | "written" as work, text]:
            return _enter_container(work, json.loads(text))
        case ["probe", directory]:
            import probe

            print(probe.refusal(directory))  # noqa: T201  # a script's own output
            return 0
        case _:
            raise SystemExit(
                "usage: serve FD JSON | forkserver FD PID | enter JSON | enter-by FD [FD] | transfers JSON FD... | "
                "launch JSON | prepare JSON | clean_up JSON | resize JSON | view JSON | merge JSON | drop_view JSON | "
                "written JSON | probe DIRECTORY"
            )


def _enter_container(work: str, request: Any) -> int:
    import entering

    request["target"] = parse(Target, request["target"])
    if "site" in request:
        request["site"] = parse(ContainerSite, request["site"])
    return entering.report(getattr(entering, work)(**request))
