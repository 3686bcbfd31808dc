"""Receive requests over the caller's socket, with their details in a file in memory."""

import array
import json
import os
import socket
from typing import Any

_REQUEST_DESCRIPTORS = 4


def read_spec(handle: int) -> dict[str, Any]:
    """Read a request's details, which may be longer than a message."""
    return json.loads(os.pread(handle, os.fstat(handle).st_size, 0))


def receive(control: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """Receive one message with its descriptors; ``socket.recv_fds`` would let every later command inherit those."""
    space = socket.CMSG_LEN(_REQUEST_DESCRIPTORS * array.array("i").itemsize)
    payload, ancillary, _, _ = control.recvmsg(most, space, socket.MSG_CMSG_CLOEXEC)
    handles = array.array("i")
    for _, _, data in ancillary:
        handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
    return payload, list(handles)


def ignore(_number: int, _frame: object) -> None:
    """Handle SIGCHLD by waking the poll, which the wakeup descriptor does."""
