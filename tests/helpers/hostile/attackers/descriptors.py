# pyright: basic
"""Puts descriptors under way in sockets until the kernel refuses, and holds them: it counts them by user."""

import errno
import os
import resource
import socket
import time

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
sent, keep = 0, []
while True:
    keep.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        while True:
            socket.send_fds(keep[-1][0], [b"x"], [0] * 253, socket.MSG_DONTWAIT)
            sent += 253
    except BlockingIOError:
        continue
    except OSError as refusal:
        print(errno.errorcode[refusal.errno or 0], sent, flush=True)
        break
os.close(1)
time.sleep(1000)
