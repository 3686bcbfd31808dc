"""The only way out of a sandbox with an allowlist: a process outside of it that takes its connections and queries.

The sandbox's packet filter leads them to sockets that the supervisor has made in its network namespace; no other packet
leaves it. A connection to a listed address is made as it is. One to a name's address (:data:`messages.POOL`) is
made to the host that it names in its first bytes, if that is listed: this process looks the name up itself, so neither
the sandbox nor a resolver of its own decides where a name leads. Nothing is decrypted.

Each connection has two threads. Only this machine's network can be reached, as a user without rights.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import NoReturn

from egress.first_bytes import (
    MAX_HEAD_BYTES,
    MAX_HELLO_BYTES,
    Head,
    RefusedError,
    head_of,
    is_http,
    is_tls,
    server_name,
)
from egress.names import Names, answer
from kernel.calls import PR_SET_PDEATHSIG, drop_capabilities, not_dumpable, prctl, write_file
from messages import POOL, Proxied, parse

NAME = "egress-proxy"
"""The process's own, for people who list processes."""
_NOBODY = 65534
_MOST_CONNECTIONS = 256
_OPEN_FILES = 2 * _MOST_CONNECTIONS + 64
_FIRST_BYTES_SEC, _CONNECT_SEC = 5.0, 10.0
"""The first is that of Harbor's side-car."""
_CHUNK_BYTES, _QUERY_BYTES = 1 << 16, 1 << 16
_STACK_BYTES = 256 << 10
_ORIGINAL_DESTINATION = 80
_ADDRESS, _ADDRESS6 = struct.Struct("!2xH4s8x"), struct.Struct("!2xH4x16s4x")
"""sockaddr_in and sockaddr_in6."""
_DNS = 53
_RESET, _NO_RESET = struct.pack("ii", 1, 0), bytes(8)
_PAUSE_SEC = 0.05
_DIGITS = frozenset(b"0123456789abcdefABCDEF")


class _Networks:
    def __init__(self, networks: tuple[str, ...]) -> None:
        pairs = (network.split("/") for network in networks)
        self._parts = [(_family(address), _number(address), int(bits)) for address, bits in pairs]

    def __contains__(self, address: str) -> bool:
        family, number = _family(address), _number(address)
        width = 32 if family == socket.AF_INET else 128
        return any(
            family == of and number >> width - bits == first >> width - bits for of, first, bits in self._parts
        )  # fmt: skip


def _number(address: str) -> int:
    return int.from_bytes(socket.inet_pton(_family(address), address))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Proxy:
    """Serves one sandbox in one phase.

    Args:
        proxied: What it may reach.
        queries: The socket at which its queries arrive.
        connections: Those of its connections.
    """

    def __init__(self, proxied: Proxied, queries: socket.socket, *connections: socket.socket) -> None:
        self._names = Names(proxied.names)
        self._open, self._closed, self._pool = map(_Networks, (proxied.networks, proxied.closed_networks, (POOL,)))
        self._name_server = (proxied.name_server, _DNS)
        self._queries, self._connections = queries, connections
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def run(self) -> None:
        """Serve until this process is killed."""
        threading.Thread(target=self._answer_queries, daemon=True).start()
        first, *further = self._connections
        for listener in further:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self._accept(first)

    def _accept(self, listener: socket.socket) -> NoReturn:
        while True:
            self._places.acquire()
            try:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except (OSError, RuntimeError):  # for lack of descriptors or threads
                self._places.release()
                time.sleep(_PAUSE_SEC)

    def _answer_queries(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                query, client = self._queries.recvfrom(_QUERY_BYTES)
                if answered := answer(query, self._names):
                    self._queries.sendto(answered, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._pass_on(client)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_RESET)
        except (OSError, EOFError, RefusedError):
            """The client's connection was reset, which it sees at once."""
        finally:
            self._places.release()

    def _pass_on(self, client: socket.socket) -> None:
        address, port = _original_destination(client)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (address, port) == self._name_server:
            self._answer_in_stream(client)
        elif address in self._open:
            with _connect([address], port) as server:
                _relay(client, server)
        elif address in self._pool:
            self._pass_on_by_name(client, port)
        else:
            raise RefusedError(f"{address} is not listed")

    def _answer_in_stream(self, client: socket.socket) -> None:
        with client.makefile("rb") as stream:
            while size := stream.read(2):
                answered = answer(stream.read(int.from_bytes(size)), self._names)
                client.sendall(len(answered).to_bytes(2) + answered)

    def _pass_on_by_name(self, client: socket.socket, port: int) -> None:
        received = _Received(client)
        if is_tls(received.at_least(1)):
            while (name := server_name(received.content)) is None:
                received.more(MAX_HELLO_BYTES)
            with self._connect_to(name, port) as server:
                server.sendall(received.content)
                _relay(client, server)
            return
        head, text = received.head()
        with self._connect_to(head.host, port) as server:
            _relay_requests(client, server, received, head, text)

    def _connect_to(self, name: str, port: int) -> socket.socket:
        if not self._names.allow(name):
            raise RefusedError(f"{name} is not listed")
        found = socket.getaddrinfo(name.encode(), port, socket.AF_INET, socket.SOCK_STREAM)
        addresses = [str(place[0]) for *_, place in found]
        return _connect([address for address in addresses if address not in self._closed], port)


class _Received:
    """What a client has sent and nobody has passed on yet; the first message must arrive in time."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._deadline: float | None = time.monotonic() + _FIRST_BYTES_SEC
        self.content = b""

    def more(self, most: int) -> None:
        if len(self.content) >= most:
            raise RefusedError("a first message without an end")
        if self._deadline is not None:
            self._client.settimeout(max(self._deadline - time.monotonic(), 0.001))
        chunk = self._client.recv(_CHUNK_BYTES)
        self._client.settimeout(None)
        if not chunk:
            raise EOFError
        self.content += chunk

    def at_least(self, size: int) -> bytes:
        while len(self.content) < size:
            self.more(size)
        return self.content

    def head(self) -> tuple[Head, bytes]:
        """Take a request's head; return what it says, and its bytes."""
        while (end := self.content.find(b"\r\n\r\n")) < 0 or end > MAX_HEAD_BYTES:
            if self.content and not is_http(self.content):
                raise RefusedError("neither TLS nor HTTP/1")
            self.more(MAX_HEAD_BYTES)
        self._deadline = None
        text = self.take(end + 4)
        return head_of(text), text

    def take(self, most: int) -> bytes:
        taken, self.content = self.content[:most], self.content[most:]
        return taken

    def body(self, size: int) -> Iterator[bytes]:
        """Take so many bytes."""
        while size:
            if not self.content:
                self.more(_CHUNK_BYTES)
            yield (taken := self.take(size))
            size -= len(taken)

    def line(self) -> bytes:
        """Take a line with its end."""
        while (end := self.content.find(b"\r\n")) < 0:
            self.more(MAX_HEAD_BYTES)
        line = self.take(end + 2)
        if any(control in line[:-2] for control in b"\r\n"):
            raise RefusedError("a line that some servers end elsewhere")
        return line

    def chunks(self) -> Iterator[bytes]:
        """Take a body in chunks, with its trailer."""
        while True:
            yield (line := self.line())
            size, _, _ = line.removesuffix(b"\r\n").partition(b";")
            if not (0 < len(size) < 16 and _DIGITS.issuperset(size)):
                raise RefusedError("no chunk")
            if not int(size, 16):
                break
            yield from self.body(int(size, 16))
            yield (end := self.line())
            if end != b"\r\n":
                raise RefusedError("a chunk without its end")
        while True:
            yield (line := self.line())
            if line == b"\r\n":
                return


def _original_destination(client: socket.socket) -> tuple[str, int]:
    """Return where a client wanted to connect: here, if no rule of the packet filter has led it.

    Raises:
        OSError: Nobody knows.
    """
    if client.family == socket.AF_INET6:
        port, packed = _ADDRESS6.unpack(client.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DESTINATION, _ADDRESS6.size))
    else:
        port, packed = _ADDRESS.unpack(client.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, _ADDRESS.size))
    return socket.inet_ntop(client.family, packed), port


def _connect(addresses: list[str], port: int) -> socket.socket:
    """Connect to the first address that answers.

    Raises:
        OSError: None does, or there is none.
    """
    failure: OSError = ConnectionRefusedError("no address that may be reached")
    for address in addresses:
        server = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            server.settimeout(_CONNECT_SEC)
            server.connect((address, port))
            server.settimeout(None)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as exc:
            server.close()
            failure = exc
        else:
            return server
    raise failure


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Pass bytes on in both directions until both have ended."""
    with _answering(client, server):
        _pump(client, server)


def _relay_requests(client: socket.socket, server: socket.socket, received: _Received, head: Head, text: bytes) -> None:
    """Pass on requests to the host of the first one."""
    server.sendall(text)
    if head.upgrade:
        _relay_upgraded(client, server, received, head)
        return
    with _answering(client, server):
        first = head
        while True:
            for part in received.chunks() if head.is_chunked else received.body(head.length):
                server.sendall(part)
            try:
                head, text = received.head()
            except EOFError:
                if received.content:
                    raise
                return
            if head.host != first.host or head.upgrade:
                raise RefusedError("a later request for another host or protocol")
            server.sendall(text)


def _relay_upgraded(client: socket.socket, server: socket.socket, received: _Received, head: Head) -> None:
    """Pass a request on that asks for another protocol, and what follows if the server agrees on WebSocket."""
    if head.length or head.is_chunked:
        raise RefusedError("a body before another protocol")
    start = b""
    while len(start) < 12 and (chunk := server.recv(_CHUNK_BYTES)):
        start += chunk
    is_upgraded = start[:12] == b"HTTP/1.1 101"
    if is_upgraded and head.upgrade != "websocket":
        raise RefusedError("another protocol than WebSocket")
    client.sendall(start)
    if is_upgraded:
        server.sendall(received.content)
        _relay(client, server)
    else:  # whatever the client sends after it is not read
        server.shutdown(socket.SHUT_WR)
        _pump(server, client)


@contextlib.contextmanager
def _answering(client: socket.socket, server: socket.socket) -> Generator[None]:
    """Pass on what the server sends meanwhile, and until it ends.

    Raises:
        OSError: One side broke off.
    """
    broken: list[OSError] = []

    def answer_client() -> None:
        try:
            _pump(server, client)
        except OSError as exc:
            broken.append(exc)
            _hang_up(client, server)

    answering = threading.Thread(target=answer_client, daemon=True)
    answering.start()
    try:
        yield
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)
    except BaseException:
        _hang_up(client, server)
        raise
    finally:
        answering.join()
    if broken:
        raise broken[0]


def _hang_up(*sides: socket.socket) -> None:
    for side in sides:
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on in one direction until their end."""
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    while size := source.recv_into(chunk):
        target.sendall(chunk[:size])
    target.shutdown(socket.SHUT_WR)


def run(spec: int, sockets: Sequence[int], parent: int) -> None:
    """Be a sandbox's proxy until the parent ends.

    Args:
        spec: A descriptor of a file with a :class:`Proxied`.
        sockets: Those of the socket for queries, and of each for connections.
        parent: The process that started this one.
    """
    proxied = parse(Proxied, json.loads(os.pread(spec, os.fstat(spec).st_size, 0)))
    os.close(spec)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_OPEN_FILES, hard), hard))
    gc.enable()  # this process runs for long, and shares few pages by then
    os.chdir("/")
    write_file("/proc/self/comm", NAME)
    if not proxied.is_rootless:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    drop_capabilities()
    not_dumpable()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of the user has undone it
    if os.getppid() != parent:
        return
    threading.stack_size(_STACK_BYTES)
    Proxy(proxied, *(socket.socket(fileno=handle) for handle in sockets)).run()
