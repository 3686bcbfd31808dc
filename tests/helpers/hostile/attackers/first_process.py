# pyright: basic
"""Opens the /proc files of the first process, and of a neighbour that it may open."""

import errno
import json
import os
import subprocess
import sys


def opened(path, flags=os.O_RDONLY):
    try:
        if path.endswith("/fd/0"):
            os.readlink(path)
        else:
            os.close(os.open(path, flags))
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    return "opened"


neighbour = subprocess.Popen(["sleep", "1000"])
output = {
    "init": {name: opened(f"/proc/1/{name}") for name in sys.argv[1:]},
    "neighbour": {name: opened(f"/proc/{neighbour.pid}/{name}") for name in sys.argv[1:]},
    "written": opened("/proc/1/mem", os.O_RDWR),
}
neighbour.kill()
print(json.dumps(output))
