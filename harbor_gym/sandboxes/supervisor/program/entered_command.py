"""Run one command in a running sandbox, with the stdio of its starter. Runs by itself, stdlib only."""

import contextlib
import os
import signal
import sys
from typing import Any

from child import REFUSED, RequestError, become_plain, give_pipes, resolve, run_child, steps_of, substitutes
from kernel import cgroups, programs, system_calls
from kernel.calls import MemoryKills, become_root, harden_self
from kernel.ids import outside_of
from kernel.procfs import start_time
from kernel.steps import failure
from messages import CommandSpec, Target, parse


def enter(request: dict[str, Any]) -> int:
    """Run one command in a running sandbox with this process's stdio; return the command's exit status.

    Args:
        request: The sandbox, and the command.
    """
    target, spec = parse(Target, request["target"]), parse(CommandSpec, request["spec"])
    init = target.init
    try:
        pidfd = os.pidfd_open(init)
        first = programs.open_first()
        cgroup_fds = cgroups.open_cgroup_fds(target.cgroups)
        if start_time(init) != target.start_time:
            raise ProcessLookupError
        MemoryKills().prioritize()
    except (ProcessLookupError, FileNotFoundError):
        print("harbor_gym: the sandbox is gone", file=sys.stderr)  # noqa: T201  # a script's own stderr
        return 125
    harden_self()
    become_plain()
    if target.limits.processors:
        os.sched_setaffinity(0, target.limits.processors)
    system_calls.prepare(target.filters)
    user_namespace = -1
    if target.is_rootless:
        # All at once: an ordinary user can't enter one of them alone.
        os.setns(pidfd, target.namespaces | os.CLONE_NEWNS | os.CLONE_NEWUSER)
        become_root()
    else:
        os.setns(pidfd, target.namespaces | os.CLONE_NEWNS)
        user_namespace = pidfd
    report_read, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        command = resolve(spec)
        owner = [outside_of(target.ids, number) for number in (command.uid, command.gid)]
        steps = steps_of(
            command,
            report_write,
            cgroup_fds,
            further_limits=substitutes(target.limits, target.cgroups, is_rootless=target.is_rootless),
            user_namespace=user_namespace,
            dies_with_parent=True,
        )
    except (RequestError, ValueError) as exc:
        print(f"harbor_gym: {exc}", file=sys.stderr)  # noqa: T201  # a script's own stderr
        return REFUSED
    give_pipes([0, 1, 2], *owner)
    pid = os.fork()
    if pid == 0:
        run_child(steps, first)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BlockingIOError):
        if error := failure(os.read(report_read, 4096)):
            print(f"harbor_gym: {error}", file=sys.stderr)  # noqa: T201  # a script's own stderr
    return code if code >= 0 else 128 - code
