# pyright: basic
"""Fills UDP and TCP sockets, keeps them full, and prints the bytes that the kernel took for that."""

import contextlib
import resource
import socket
import struct
import time

SO_MEMINFO, PAYLOAD, SENDS = 55, bytes(60_000), 40
"""The first number of SO_MEMINFO is the kernel's memory for unread data."""
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
keep = []


def datagrams():
    receiver, sender = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind(("127.0.0.1", 0))
    sender.connect(receiver.getsockname())
    return receiver, sender


def stream():
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        return server.accept()[0], writer


def fill(make, most):
    for _ in range(most):
        reader, writer = make()
        keep.append(reader)
        keep.append(writer)
        writer.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(SENDS):
                writer.send(PAYLOAD)


with contextlib.suppress(OSError):
    fill(datagrams, 1200)
with contextlib.suppress(OSError):
    fill(stream, 100)
print(sum(struct.unpack("9I", taken.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[0] for taken in keep), flush=True)
time.sleep(0.2)
