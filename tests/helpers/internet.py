"""Run a command on an internet of its own: other addresses, their servers, and a resolver that tells what it was asked.

``python -m tests.helpers.internet COMMAND...``, as root. The servers are in one network namespace and the command is in
another; /etc/resolv.conf names the resolver there. :data:`LOG_URL` has what the servers saw so far.
"""

import contextlib
import json
import os
import signal
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, override

from tests.helpers.certificates import write_certificate

HERE, SITE, LISTED, EVIL = "203.0.113.1", "203.0.113.10", "203.0.113.30", "203.0.113.66"
LISTED6 = "2001:db8:1::30"
PRIVATE, METADATA, RESOLVER = "10.1.2.3", "169.254.169.254", "203.0.113.254"
LOG_URL = f"http://{RESOLVER}:8099/"
RECORDS: dict[str, list[str]] = {
    "site.test": [SITE],
    "other.test": [SITE],
    "a.b.wild.test": [SITE],
    "wild.test": [SITE],
    "evil.test": [EVIL],
    "alias.test": ["evil.test"],
    "private.test": [PRIVATE],
    "metadata.test": [METADATA],
    "loop.test": ["127.0.0.1"],
    "here.test": [HERE],
    "changing.test": ["203.0.113.20", "203.0.113.21"],
    "rebinding.test": ["203.0.113.20", PRIVATE],
}
"""Name → its addresses, one an answer in turn, with no time to live; or the name that it stands for."""
LONG_BYTES = 256 << 20
"""Of a site's page /long."""
_ADDRESSES = (SITE, LISTED, EVIL, PRIVATE, METADATA, "203.0.113.20", "203.0.113.21", "203.0.113.130", "203.0.113.144")
_HERE6, _GATEWAY6, _BESIDE6 = "2001:db8:2::1", "2001:db8:2::fe", "2001:db8:2::82"
_ADDRESSES6 = (LISTED6, "2001:db8:1::31", "2001:db8:2:1::90", "2001:db8:ffff::", "2003::5", "100::5", "fd12::3",
               "fec0::5", "fd00:ec2::254", "fd20:ce::254", "64:ff9b::cb00:711e", "2002:cb00:711e::1")  # fmt: skip
_seen: dict[str, list[Any]] = {"queries": [], "connections": []}


class _Pages(BaseHTTPRequestHandler):
    """Answers with where and for whom it was asked."""

    protocol_version = "HTTP/1.1"

    def _tell(self) -> None:
        if self.path == "/long":
            self.send_response(200)
            self.send_header("Content-Length", str(LONG_BYTES))
            self.end_headers()
            part = bytes(1 << 20)
            for _ in range(LONG_BYTES >> 20):
                self.wfile.write(part)
            return
        if self.headers.get("Upgrade"):
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            self.wfile.write(self.connection.recv(100))
            self.close_connection = True
            return
        size = 0
        if self.headers.get("Transfer-Encoding"):
            while part := int(self.rfile.readline().partition(b";")[0], 16):
                size += len(self.rfile.read(part))
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        told = {"address": self.connection.getsockname()[0], "host": self.headers["Host"], "size": size}
        body = json.dumps(told | {"name": getattr(self.connection, "asked_name", None)}).encode()
        self.send_response(302 if self.path == "/leads-away" else 200)
        self.send_header("Location", "http://evil.test/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _tell

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Log(_Pages):
    def do_GET(self) -> None:
        body = json.dumps(_seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Web(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, pages: type[_Pages] = _Pages, secure: ssl.SSLContext | None = None) -> None:
        super().__init__(("0.0.0.0", port), pages)
        self._secure = secure

    @override
    def finish_request(self, request: Any, client_address: Any) -> None:
        _seen["connections"].append(request.getsockname())
        with contextlib.suppress(OSError):
            if self._secure is not None:
                request = self._secure.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)


class _Greeting(socketserver.BaseRequestHandler):
    @override
    def handle(self) -> None:
        address, port, *_ = self.request.getsockname()
        _seen["connections"].append((address.removeprefix("::ffff:"), port))
        self.request.sendall(b"hello")
        while data := self.request.recv(100):
            self.request.sendall(data)


class _Greeter(socketserver.ThreadingTCPServer):
    """Serves IPv4 too."""

    address_family = socket.AF_INET6
    daemon_threads = True


def _answer(query: bytes, turns: dict[str, int]) -> bytes:
    labels, place = [], 12
    while size := query[place]:
        labels.append(query[place + 1 : place + 1 + size])
        place += 1 + size
    name, kind = b".".join(labels).decode("latin-1").lower(), struct.unpack_from("!H", query, place + 1)[0]
    _seen["queries"].append(name)
    turn = turns[name] = turns.get(name, -1) + (kind == 1)
    values = RECORDS.get(name, [])
    records, owner = b"", b"\xc0\x0c"
    if kind == 1 and values and values[0] in RECORDS:
        packed = b"".join(bytes([len(label)]) + label.encode() for label in values[0].split(".")) + b"\0"
        records = owner + struct.pack("!HHIH", 5, 1, 0, len(packed)) + packed
        owner, values = packed, RECORDS[values[0]]
    if kind == 1 and values:
        records += owner + struct.pack("!HHIH", 1, 1, 0, 4) + socket.inet_aton(values[turn % len(values)])
    count = 0 if not records else 1 + (owner != b"\xc0\x0c")
    return (
        query[:2] + struct.pack("!5H", 0x8180 | (0 if values else 3), 1, count, 0, 0) + query[12 : place + 5] + records
    )


def _resolve(turns: dict[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as queries:
        queries.bind((RESOLVER, 53))
        while True:
            query, client = queries.recvfrom(4096)
            queries.sendto(_answer(query, turns), client)


def _remember_name(connection: Any, name: str | None, _context: ssl.SSLContext) -> None:
    connection.asked_name = name


def _serve(folder: Path) -> None:
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(*write_certificate(folder))
    secure.sni_callback = _remember_name
    for server in (_Web(80), _Web(443, secure=secure), _Web(8099, _Log), _Greeter(("::", 22), _Greeting)):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_resolve, args=({},), daemon=True).start()


def _ip(*words: str) -> None:
    for command in words:
        subprocess.run(["ip", *command.split()], check=True)


@contextlib.contextmanager
def _internet(folder: Path) -> Generator[None]:
    """Make both network namespaces, and enter one."""
    os.unshare(os.CLONE_NEWNET | os.CLONE_NEWNS)
    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        try:
            os.unshare(os.CLONE_NEWNET)
            theirs.send(b"1")
            theirs.recv(1)
            _ip("link set lo up", f"addr add {RESOLVER}/24 dev there", "link set there up")
            _ip(*(f"addr add {address}/32 dev lo" for address in _ADDRESSES), f"route add default via {HERE}")
            _ip(*(f"addr add {address}/64 dev there nodad" for address in (_GATEWAY6, _BESIDE6)))
            _ip(*(f"addr add {address}/128 dev lo" for address in _ADDRESSES6), f"route add default via {_HERE6}")
            _serve(folder)
            theirs.send(b"1")
            signal.pause()
        finally:
            os._exit(1)
    try:
        ours.recv(1)
        _ip("link set lo up", f"link add here type veth peer name there netns {server}")
        _ip(f"addr add {HERE}/24 dev here", "link set here up", f"route add default via {RESOLVER}")
        _ip(f"addr add {_HERE6}/64 dev here nodad", f"route add default via {_GATEWAY6}")
        ours.send(b"1")
        ours.recv(1)
        yield
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def main() -> int:
    """Run the command and return its exit status."""
    with tempfile.TemporaryDirectory() as name, _internet(Path(name)):
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        # Some machines ask a program of theirs instead.
        for file, text in {"resolv.conf": f"nameserver {RESOLVER}\n", "nsswitch.conf": "hosts: files dns\n"}.items():
            (own := Path(name) / file).write_text(text)
            subprocess.run(["mount", "--bind", str(own), f"/etc/{file}"], check=True)
        return subprocess.run(sys.argv[1:], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
