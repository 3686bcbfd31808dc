"""The capabilities of a sandbox's processes: one list for the supervisor and for the system call filters.

Source: capabilities(7).
"""

KEPT_CAPABILITIES = {
    "cap_chown": 0,
    "cap_dac_override": 1,
    "cap_fowner": 3,
    "cap_fsetid": 4,
    "cap_kill": 5,
    "cap_setgid": 6,
    "cap_setuid": 7,
    "cap_setpcap": 8,
    "cap_net_bind_service": 10,
    "cap_sys_chroot": 18,
    "cap_setfcap": 31,
}
"""What root keeps inside: enough for apt, useradd, su and chown; neither devices, mounts nor raw sockets."""

POLICY, SERVICE, VERIFIER = "policy", "service", "verifier"
_CAP_WAKE_ALARM, _CAP_BLOCK_SUSPEND = 35, 36
RANKS: dict[str, tuple[int, ...]] = {
    POLICY: (),
    SERVICE: (_CAP_BLOCK_SUSPEND,),
    VERIFIER: (_CAP_BLOCK_SUSPEND, _CAP_WAKE_ALARM),
}
"""Rank of a command → the capabilities that it holds beyond the kept ones, in every user.

They give a sandbox nothing: the kernel asks for both in the machine's own user namespace alone (``capable`` in
fs/eventpoll.c, kernel/time/alarmtimer.c and fs/timerfd.c). What they do is to close a process to all lower ranks:
whoever opens /proc/PID/mem, root, fd, cwd or environ must hold each capability that the process is permitted
(``cap_ptrace_access_check``), root included. A process that becomes another user by itself (su) loses them.
"""
