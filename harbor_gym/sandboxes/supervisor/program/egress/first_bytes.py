"""The host name that a connection says in its first bytes: in a TLS ClientHello, or in the head of an HTTP request.

Both readers refuse what two programs could read differently.

Source: RFC 8446 (4.1.2, 5.1), RFC 6066 (3), RFC 9112.
"""

from typing import NamedTuple

from egress.names import normal

MAX_HELLO_BYTES, MAX_HEAD_BYTES = 1 << 16, 1 << 16
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_HEADER, _MESSAGE_HEADER, _VERSION_AND_RANDOM = 5, 4, 34
_MAX_RECORD_BYTES = 1 << 14
_LONGEST_METHOD, _NO_METHODS = 20, (b"CONNECT", b"PRI")
"""Those that would make of the connection something else: a tunnel, HTTP/2."""
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class RefusedError(Exception):
    """What a connection begins with can't be passed on; the text says why."""


class Head(NamedTuple):
    """The head of a request, as far as it decides where the request goes and where it ends."""

    host: str
    """The host's name alone, without a port."""

    length: int
    """The body's bytes, if it is not in chunks."""

    is_chunked: bool
    upgrade: str
    """The protocol that the client asks for instead; empty if none."""


def is_tls(start: bytes) -> bool:
    """Return whether a connection with this first byte speaks TLS."""
    return start[:1] == bytes([_HANDSHAKE])


def server_name(start: bytes) -> str | None:
    """Return the name in a ClientHello's server name extension; None while more bytes are needed.

    Raises:
        RefusedError: It has no such name, or is malformed.
    """
    try:
        message = _client_hello(start)
        return None if message is None else _name_in(message)
    except IndexError:
        raise RefusedError("a malformed ClientHello") from None


def _client_hello(start: bytes) -> bytes | None:
    """Return the body of the first handshake message, which may be spread over records."""
    content = b""
    place = 0
    while True:
        if len(start) < place + _RECORD_HEADER:
            return None
        size = int.from_bytes(start[place + 3 : place + 5])
        if start[place] != _HANDSHAKE or start[place + 1] != 3 or not 0 < size <= _MAX_RECORD_BYTES:
            raise RefusedError("no TLS handshake")
        if len(start) < place + _RECORD_HEADER + size:
            return None
        content += start[place + _RECORD_HEADER : place + _RECORD_HEADER + size]
        place += _RECORD_HEADER + size
        if len(content) >= _MESSAGE_HEADER:
            length = int.from_bytes(content[1:4])
            if content[0] != _CLIENT_HELLO or length > MAX_HELLO_BYTES:
                raise RefusedError("no ClientHello")
            if len(content) >= _MESSAGE_HEADER + length:
                return content[_MESSAGE_HEADER : _MESSAGE_HEADER + length]


def _name_in(hello: bytes) -> str:
    rest = _Reader(hello)
    rest.take(_VERSION_AND_RANDOM)
    for size_of_size in (1, 2, 1):  # the session's id, cipher suites, compression methods
        rest.vector(size_of_size)
    extensions = _Reader(rest.vector(2))
    found: list[bytes] = []
    while extensions.rest:
        kind, body = int.from_bytes(extensions.take(2)), extensions.vector(2)
        if kind == _SERVER_NAME:
            listed = _Reader(_Reader(body).vector(2))
            while listed.rest:
                if listed.take(1)[0] != _HOST_NAME:
                    raise RefusedError("a server name of another kind")
                found.append(listed.vector(2))
    if len(found) != 1:
        raise RefusedError(f"a ClientHello with {len(found)} server names")
    return normal(found[0])


class _Reader:
    def __init__(self, rest: bytes) -> None:
        self.rest = rest

    def take(self, size: int) -> bytes:
        if len(self.rest) < size:
            raise IndexError
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def vector(self, size_of_size: int) -> bytes:
        return self.take(int.from_bytes(self.take(size_of_size)))


def is_http(start: bytes) -> bool:
    """Return whether a connection with these first bytes may speak HTTP/1; more may show that it does not."""
    method, _, _ = start[: _LONGEST_METHOD + 1].partition(b" ")
    return len(method) <= _LONGEST_METHOD and method.isalpha() and method.isupper() and method not in _NO_METHODS


def head_of(head: bytes) -> Head:
    """Read a request's head, the empty line at its end included.

    Raises:
        RefusedError: It names no host or several, has a target with a host of its own, or its end is ambiguous.
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(control in line for line in lines for control in (b"\r", b"\n", b"\0")):
        raise RefusedError("a line that some servers end elsewhere")
    request = lines[0].split(b" ")
    if len(request) != 3 or not is_http(lines[0]) or request[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise RefusedError("no request of HTTP/1")
    if not (request[1].startswith(b"/") or request[1] == b"*"):
        raise RefusedError("a target that names a host")
    fields: dict[bytes, list[bytes]] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or not _TOKEN.issuperset(name):
            raise RefusedError("a header field that servers read differently")
        fields.setdefault(name.lower(), []).append(value.strip(b" \t"))
    hosts, lengths, codings = (fields.get(name, []) for name in (b"host", b"content-length", b"transfer-encoding"))
    if len(hosts) != 1:
        raise RefusedError(f"{len(hosts)} Host fields")
    if (
        len(lengths) + len(codings) > 1
        or any(coding.lower() != b"chunked" for coding in codings)
        or (codings and request[2] == b"HTTP/1.0")
    ):
        raise RefusedError("a body whose end is ambiguous")
    if lengths and not (lengths[0].isdigit() and len(lengths[0]) < 16):
        raise RefusedError("no length")
    upgrade = b",".join(fields.get(b"upgrade", [])).lower()
    return Head(_host(hosts[0]), int(lengths[0]) if lengths else 0, bool(codings), upgrade.decode("latin-1"))


def _host(field: bytes) -> str:
    name, colon, port = field.partition(b":")
    if colon and port and not port.isdigit():
        raise RefusedError("no Host")
    return normal(name)
