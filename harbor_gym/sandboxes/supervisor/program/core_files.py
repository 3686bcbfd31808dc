"""Whether the kernel hands the memory of a crashed process to a program of the machine.

Imported by the supervisor, which runs by itself, and by the caller. Stdlib only.
"""

PATTERN = "/proc/sys/kernel/core_pattern"
LIMIT = 1
"""A limit of core files in bytes for which the kernel starts no program; 0 stops only files. Source: core(5), and
do_coredump() of the kernel."""


def handler() -> str:
    """Return the machine's program or socket that takes what a crashed process had in memory; empty if none does.

    Such a program runs as the machine's root, outside of all sandboxes, on what a policy wrote.
    """
    try:
        with open(PATTERN, encoding="utf-8") as text:  # noqa: PTH123  # pathlib would be loaded for this alone
            pattern = text.read().strip()
    except OSError:
        return "unknown"
    return pattern if pattern.startswith(("|", "@")) else ""
