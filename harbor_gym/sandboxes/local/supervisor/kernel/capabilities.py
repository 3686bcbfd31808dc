"""What a sandbox's processes may keep: one list for the supervisor and for the system call filters.

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
