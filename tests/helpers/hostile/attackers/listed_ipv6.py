# pyright: basic
"""From inside a sandbox whose list has IPv6 entries, try to reach what it allows and what not; print the ends as JSON.

Its argument is a port that is open on all addresses of the machine; every other address answers at port 22.
"""

import contextlib
import errno
import json
import os
import socket
import struct
import sys

OWN_PORT = int(sys.argv[1])
LISTED, BESIDE, METADATA = "2001:db8:1::30", "2001:db8:1::31", "fd00:ec2::254"
PATIENCE_SEC = 30
V6 = socket.AF_INET6
DEVICE = socket.if_nametoindex("tap0")
BY_DEVICE = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
IPV6_RTHDR, IPV6_TRANSPARENT = 57, 75
PING = b"\x80\0\0\0\0\0\0\0"
results = {}


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


@contextlib.contextmanager
def case(name):
    try:
        yield lambda value: results.__setitem__(name, value)
    except (ConnectionResetError, EOFError):
        results[name] = "reset"
    except TimeoutError:
        results[name] = "silence"
    except OSError as exc:
        results[name] = errno.errorcode.get(exc.errno or 0, str(exc))


def greet(name, address, port=22, scope=0, options=(), patience_sec=PATIENCE_SEC):
    """Connect; record the greeting."""
    with case(name) as note, socket.socket(V6) as client:
        client.settimeout(patience_sec)
        for option in options:
            client.setsockopt(*option)
        client.connect((address, port, 0, scope))
        if not (greeting := client.recv(5)):
            raise EOFError
        note(greeting.decode())


def send(name, address, kind=socket.SOCK_DGRAM, protocol=0, content=b"hello", scope=0, options=()):
    """Send a datagram; record the answer, or the error, which some senders learn only as they wait for one."""
    with case(name) as note, socket.socket(V6, kind, protocol) as sender:
        sender.settimeout(1)
        for option in options:
            sender.setsockopt(*option)
        sender.connect((address, 0 if protocol else 22, 0, scope))
        sender.send(content)
        note(sender.recv(100).hex())


def change(name, kind, body, *further, flags=0x405):
    """Ask the kernel for a change of the network; record its error."""
    body += b"".join(struct.pack("HH", 4 + len(value), number) + value for number, value in further)
    with case(name) as note, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        note(errno.errorcode.get(-struct.unpack_from("=i", kernel.recv(4096), 16)[0], "done"))


# What is listed.
for address in (LISTED, "2001:db8:2::82", "2003::5", "100::5"):
    greet(f"listed {address}", address)
greet("a listed address, a closed port", LISTED, 23)
with case("an end of one direction") as note, socket.create_connection((LISTED, 22), PATIENCE_SEC) as connection:
    connection.sendall(b" again")
    connection.shutdown(socket.SHUT_WR)
    text = b""
    while chunk := connection.recv(100):
        text += chunk
    note(text.decode())
with case("a long body") as note, socket.create_connection((LISTED, 22), PATIENCE_SEC) as connection:
    size = 0
    for turn in range(1, 41):
        connection.sendall(bytes(50_000))
        while size < 50_000 * turn + 5:
            size += len(connection.recv(65536))
    note(size)

# What is not, or is closed in every list.
for address in (BESIDE, "2001:db8:2:1::90", "2001:db8:ffff::"):
    greet(f"outside {address}", address)
for address in ("64:ff9b::cb00:711e", "::203.0.113.30", "::ffff:0:203.0.113.30", "2002:cb00:711e::1", "fd12::3",
                METADATA, "fd20:ce::254", "fec0::5"):  # fmt: skip
    greet(f"closed {address}", address)
for address in ("203.0.113.30", "127.0.0.1", "203.0.113.1", "169.254.169.254"):
    greet(f"in IPv4 {address}", f"::ffff:{address}", OWN_PORT if address.endswith(".1") else 22)
for address in ("::1", "::", "2001:db8:2::1"):
    greet(f"the machine's {address}", address, OWN_PORT)
for address in ("fe80::1", "fe80::fe", "ff02::1", "ff0e::1"):
    greet(f"by scope {address}", address, OWN_PORT, scope=DEVICE)
greet("a listed address by device", LISTED, options=[BY_DEVICE], patience_sec=1)
greet("another by device", BESIDE, options=[BY_DEVICE])
first, last = (socket.inet_pton(V6, address) for address in (LISTED, BESIDE))
segments = struct.pack("8B", 0, 4, 4, 1, 1, 0, 0, 0) + last + first
greet("by segments to another", BESIDE, options=[(socket.IPPROTO_IPV6, IPV6_RTHDR, segments)], patience_sec=1)
greet("as a foreign address", LISTED, options=[(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)])
greet("another's mark", LISTED, options=[(socket.SOL_SOCKET, socket.SO_MARK, 1)])

# Other ways out.
for address in (LISTED, BESIDE, METADATA):
    send(f"datagram {address}", address)
    send(f"datagram by device {address}", address, options=[BY_DEVICE])
    send(f"ping {address}", address, protocol=socket.IPPROTO_ICMPV6, content=PING)
send("to all by device", "ff02::1", scope=DEVICE)
send("ping to all by device", "ff02::1", protocol=socket.IPPROTO_ICMPV6, content=PING, scope=DEVICE)
send("a raw packet", LISTED, socket.SOCK_RAW, socket.IPPROTO_ICMPV6, PING)
send("a raw header", LISTED, socket.SOCK_RAW, socket.IPPROTO_RAW, bytes(40))

# The network's settings.
machines, index = (1, socket.inet_pton(V6, "2001:db8:2::1")), struct.pack("I", DEVICE)
own, listed = (1, socket.inet_pton(V6, "2001:2::100")), (1, first)
one_address = struct.pack("BBBBI", V6, 128, 0, 0, DEVICE)
one_route = struct.pack("8BI", V6, 128, 0, 0, 254, 3, 0, 1, 0)
change("another address", 20, one_address, machines)
change("the own address's end", 21, one_address, own, flags=5)
change("another route", 24, one_route, machines, (4, index))
change("a route's end", 25, one_route, listed, (4, index), flags=5)
change("a neighbor", 28, struct.pack("B3xIHBB", V6, DEVICE, 0x80, 0, 1), listed, (2, bytes(6)))
for setting in ("all/forwarding", "tap0/accept_ra", "all/seg6_enabled", "lo/disable_ipv6"):
    with case(f"setting {setting}") as note, open(f"/proc/sys/net/ipv6/conf/{setting}", "wb") as file:
        note(file.write(b"1"))

# What a name has, and the proxy's own socket.
with case("a name") as note:
    note(sorted({str(place[4][0]).partition(".")[0] for place in socket.getaddrinfo("site.test", 80)}))
with case("a name in IPv6") as note:
    try:
        note([place[4] for place in socket.getaddrinfo("site.test", 80, V6)])
    except socket.gaierror:
        note("no address")
rows = [line.split() for line in read("/proc/net/tcp6").splitlines()[1:]]
ports = [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"]
for number, port in enumerate(ports):
    greet(f"the proxy's own port {number}", "::1", port)
results["processes"] = [pid for pid in os.listdir("/proc") if pid.isdigit() and "proxy" in read(f"/proc/{pid}/comm")]
json.dump(results, sys.stdout)
