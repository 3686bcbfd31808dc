"""A sandbox's System V objects: shared memory, semaphores and message queues outlive the processes that made them.

Source: proc_sysvipc(5), shmctl(2), semctl(2), msgctl(2).
"""

import ctypes

_IPC_RMID = 0
_libc = ctypes.CDLL(None, use_errno=True)
_KINDS = ("shm", "sem", "msg")


def list_objects() -> list[str]:
    """Return the objects of this process's IPC namespace, as ``shm:3``."""
    found: list[str] = []
    for kind in _KINDS:
        with open(f"/proc/sysvipc/{kind}", encoding="utf-8") as lines:  # noqa: PTH123  # pathlib would cost 20 ms of imports
            found += [f"{kind}:{line.split()[1]}" for line in lines.readlines()[1:]]
    return found


def remove_objects(spared: frozenset[str]) -> None:
    """Remove all objects except some. A segment that is still attached is removed with its last user."""
    for name in list_objects():
        if name not in spared:
            _remove(*name.split(":"))


def _remove(kind: str, number: str) -> None:
    if kind == "sem":
        _libc.semctl(int(number), 0, _IPC_RMID)
    else:
        (_libc.shmctl if kind == "shm" else _libc.msgctl)(int(number), _IPC_RMID, None)
