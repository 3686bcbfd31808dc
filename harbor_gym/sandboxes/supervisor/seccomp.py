"""The system calls that a local sandbox's processes may not make, as programs for the kernel.

Two filters: the OCI default profile, as the distribution ships it for containers (``containers-common``), read for the
capabilities that a sandbox keeps; and ``seccomp_narrowing.json`` beside this file, in the same format, with what is
refused beyond it. The kernel runs both and the stricter answer holds. libseccomp compiles them.

Source: the OCI runtime specification (linux.seccomp), seccomp(2), seccomp_rule_add(3).
"""

from __future__ import annotations

import base64
import errno
import functools
import importlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym.sandboxes.supervisor.program.kernel.capabilities import KEPT_CAPABILITIES

if TYPE_CHECKING:
    import pyseccomp

PROFILES = (Path("/usr/share/containers/seccomp.json"), Path("/etc/containers/seccomp.json"))
"""Where distributions keep the OCI default profile; buildah's package depends on it."""

_NARROWING = Path(__file__).with_name("seccomp_narrowing.json")
_KEPT_CAPABILITIES = frozenset(map(str.upper, KEPT_CAPABILITIES))
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_BINARY_TREE = 2
"""The kernel runs a filter for every system call number when it is installed, at each command's start."""
_ARCHITECTURES = {"x86_64": ("amd64", "X86_64"), "aarch64": ("arm64", "AARCH64")}
"""Machine by ``uname -m`` → its name in the profile and in libseccomp."""


def missing_profile() -> str:
    """Return the missing requirement for the filters and its remedy; empty if nothing is missing."""
    try:
        importlib.import_module("pyseccomp")  # it loads the C library
    except (ImportError, RuntimeError, OSError):
        return "libseccomp is missing: apt-get install -y libseccomp2"
    if not any(path.is_file() for path in PROFILES):
        return f"no OCI seccomp profile at {PROFILES[0]}: apt-get install -y golang-github-containers-common"
    return ""


@functools.cache
def filters(machine: str) -> tuple[str, ...]:
    """Return the filters for a machine (``uname -m``), each as the kernel's array of instructions in base64.

    Calls of another architecture, which have other numbers, kill their process.

    Raises:
        MissingDependencyError: libseccomp or the profile is missing, or the machine is not known.
    """
    if machine not in _ARCHITECTURES:
        raise MissingDependencyError(f"local sandboxes run on {' and '.join(_ARCHITECTURES)}, not on {machine}")
    if missing := missing_profile():
        raise MissingDependencyError(f"local sandboxes need a system call filter: {missing}")
    profile = json.loads(next(path for path in PROFILES if path.is_file()).read_text(encoding="utf-8"))
    default = profile["defaultAction"], profile.get("defaultErrnoRet", errno.EPERM)
    narrowing = json.loads(_NARROWING.read_text(encoding="utf-8"))
    return (
        _compiled(machine, default, _applicable(profile["syscalls"], _ARCHITECTURES[machine][0])),
        _compiled(machine, ("SCMP_ACT_ALLOW", 0), [*narrowing["syscalls"], *_refused_families()]),
    )


def _applicable(rules: Iterable[Mapping[str, Any]], architecture: str) -> list[Mapping[str, Any]]:
    """Return the rules whose conditions a sandbox on this architecture meets."""

    def applies(rule: Mapping[str, Any]) -> bool:
        wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
        return (
            _KEPT_CAPABILITIES.issuperset(wanted.get("caps") or ())
            and not _KEPT_CAPABILITIES.intersection(unwanted.get("caps") or ())
            and architecture in (wanted.get("arches") or [architecture])
            and architecture not in (unwanted.get("arches") or ())
        )

    return [rule for rule in rules if applies(rule)]


def _refused_families() -> list[Mapping[str, Any]]:
    """Return rules against all socket families but a few, because a profile can't express "none of these"."""
    last = max(_SOCKET_FAMILIES)
    conditions = [("SCMP_CMP_EQ", family) for family in range(last) if family not in _SOCKET_FAMILIES]
    return [
        {
            "names": ["socket", "socketpair"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": errno.EAFNOSUPPORT,
            "args": [{"index": 0, "value": value, "op": comparison}],
        }
        for comparison, value in [*conditions, ("SCMP_CMP_GT", last)]
    ]


def _compiled(machine: str, default: tuple[str, int], rules: Sequence[Mapping[str, Any]]) -> str:
    import pyseccomp

    compiler = pyseccomp.SyscallFilter(_action(*default))
    architecture = getattr(pyseccomp.Arch, _ARCHITECTURES[machine][1])
    if not compiler.exist_arch(architecture):
        compiler.add_arch(architecture)
        compiler.remove_arch(pyseccomp.Arch.NATIVE)
    compiler.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    compiler.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, _BINARY_TREE)
    for rule in rules:
        action = _action(rule["action"], rule.get("errnoRet", errno.EPERM))
        for name in rule["names"]:
            if action == _action(*default) or not _is_known(name):
                continue
            compiler.add_rule(action, name, *map(_condition, rule.get("args") or ()))
    with tempfile.TemporaryFile() as program:
        compiler.export_bpf(program)
        program.seek(0)
        return base64.b64encode(program.read()).decode()


def _is_known(name: str) -> bool:
    """Return whether this libseccomp knows a call; newer calls in a profile are left to its default, a refusal."""
    import pyseccomp

    try:
        return pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) != _NO_SUCH_CALL
    except (ValueError, OSError):
        return False


_NO_SUCH_CALL = -1


def _action(name: str, number: int) -> int:
    import pyseccomp

    match name:
        case "SCMP_ACT_ALLOW":
            return pyseccomp.ALLOW
        case "SCMP_ACT_ERRNO":
            return pyseccomp.ERRNO(number)
        case _:
            return pyseccomp.KILL_PROCESS


def _condition(argument: Mapping[str, Any]) -> pyseccomp.Arg:
    import pyseccomp

    comparison = getattr(pyseccomp, argument["op"].removeprefix("SCMP_CMP_"))
    return pyseccomp.Arg(argument["index"], comparison, argument["value"], argument.get("valueTwo", 0))
