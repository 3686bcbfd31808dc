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
    "cap_net_raw": 13,
    "cap_sys_chroot": 18,
    "cap_mknod": 27,
    "cap_audit_write": 29,
    "cap_setfcap": 31,
}
"""Capabilities of root inside: Docker's default ones.

Without three of them a program whose file has them (``ping``) would not start. The kernel checks MKNOD and AUDIT_WRITE
only in the machine's own user namespace. NET_RAW counts where the network namespace belongs to the sandbox's user
namespace: on Apptainer without a network, not on local. There the system call filters refuse raw sockets.
"""

POLICY, SERVICE, VERIFIER = "policy", "service", "verifier"
_CAP_WAKE_ALARM, _CAP_BLOCK_SUSPEND = 35, 36
RANKS: dict[str, tuple[int, ...]] = {
    POLICY: (),
    SERVICE: (_CAP_BLOCK_SUSPEND,),
    VERIFIER: (_CAP_BLOCK_SUSPEND, _CAP_WAKE_ALARM),
}
"""Rank of a command → its capabilities beyond the kept ones, for every user.

They give a sandbox no rights: the kernel checks both only in the machine's own user namespace (``capable`` in
fs/eventpoll.c, kernel/time/alarmtimer.c and fs/timerfd.c). Their effect is to close a process to all lower ranks: a
process that opens /proc/PID/mem, root, fd, cwd or environ must have each permitted capability of the other process
(``cap_ptrace_access_check``), even as root. A process that becomes another user by itself (su) loses them.
"""
