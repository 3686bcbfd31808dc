"""Networks, names and ports."""

from tests.helpers.compose_projects.project import ASK, Project

NETWORKS = {
    "three tiers": Project(
        compose="""\
services:
  main: {networks: [front]}
  web: {image: BASE, command: ["bash", "-c", "SERVE web"], networks: [front, back]}
  db: {image: BASE, command: ["bash", "-c", "SERVE db"], networks: {back: {aliases: [store]}}}
networks: {front: , back: {internal: true}}
""",
        looks={
            "main": f"{ASK} asked web; getent hosts db store",
            "web": f"{ASK} asked db; asked store; asked localhost",
            "db": f"{ASK} asked web; getent hosts main; tail -n +3 /proc/net/dev | grep -c eth",
        },
        verify=f"{ASK} [ $(asked web) = web ]",
    ),
    "a shared network's localhost": Project(
        compose="""\
services:
  main: {}
  server: {image: BASE, command: ["bash", "-c", "SERVE server"]}
  inside: {image: BASE, command: sleep 1000, network_mode: "service:server"}
  deeper: {image: BASE, command: sleep 1000, network_mode: "service:inside", depends_on: [inside]}
""",
        looks={
            "inside": f"{ASK} asked localhost; asked server; getent hosts main | wc -l",
            "deeper": f"{ASK} asked 127.0.0.1",
            "main": f"{ASK} asked server; asked 127.0.0.1; getent hosts inside deeper",
        },
    ),
    "main without a network": Project(
        compose="""\
services:
  main: {network_mode: none}
  other: {image: BASE, command: sleep 1000}
""",
        looks={
            "main": "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; getent hosts other",
            "other": "getent hosts main",
        },
    ),
    "unusual names": Project(
        compose="""\
services:
  main: {}
  my_db-1.x: {image: BASE, command: sleep 1000, hostname: db.internal.example}
  Upper: {image: BASE, command: sleep 1000, networks: {default: {aliases: [api.example.com, x_y]}}}
""",
        looks={
            "main": "for name in my_db-1.x Upper upper api.example.com x_y; do "
            "getent hosts $name >/dev/null && echo $name; done",
            "my_db-1.x": "hostname; cat /etc/hostname; getent hosts db.internal.example | wc -l; hostname -s",
            "Upper": "getent hosts main | wc -l",
        },
    ),
    "datagrams": Project(
        compose="""\
services:
  main: {}
  server:
    image: BASE
    command:
      - perl
      - -MIO::Socket::INET
      - -e
      - $$s = IO::Socket::INET->new(LocalPort => 53, Proto => "udp"); $$s->send(uc $$m) while $$s->recv($$m, 99)
    expose: ["53/udp"]
""",
        looks={
            "main": "timeout 5 perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => q(server:53), "
            "Proto => q(udp)); $s->send(q(word)); $s->recv($m, 99); print qq($m\\n)'"
        },
    ),
    "an alias of two services": Project(
        compose="""\
services:
  main: {}
  one: {image: BASE, command: ["bash", "-c", "SERVE word"], networks: {default: {aliases: [both]}}}
  two: {image: BASE, command: ["bash", "-c", "SERVE word"], networks: {default: {aliases: [both]}}}
""",
        looks={"main": f"{ASK} asked both; getent ahostsv4 both | grep -c STREAM"},
    ),
    "ports need not be exposed": Project(
        compose="""\
services:
  main: {expose: ["1"]}
  web:
    image: BASE
    command: ["bash", "-c", "SERVE web"]
    expose: ["8080", "9000-9002/udp"]
    ports: [{target: 81, host_ip: 127.0.0.1}]
  silent: {image: BASE, command: sleep 1000}
""",
        looks={"main": f"{ASK} asked web; asked silent; asked absent"},
    ),
    "the default network is internal": Project(
        compose="""\
services:
  main: {}
  other: {image: BASE, command: sleep 1000, networks: {default: {priority: 5}}}
networks: {default: {internal: true, labels: {a: b}, attachable: true}}
""",
        looks={
            "main": "getent hosts other | wc -l; tail -n +3 /proc/net/dev | grep -c eth",
            "other": "getent hosts main | wc -l",
        },
    ),
    "further hosts": Project(
        compose="""\
services:
  main: {extra_hosts: ["one.example=192.0.2.1", "six.example:2001:db8::1"]}
  other:
    image: BASE
    command: sleep 1000
    extra_hosts: {two.example: [192.0.2.2, 192.0.2.3], localalias: 127.0.0.1}
    hostname: own
""",
        looks={
            "main": "getent hosts one.example six.example; "
            "echo 192.0.2.9 own.example >>/etc/hosts; getent hosts own.example",
            "other": "getent ahostsv4 two.example | awk '{print $1}' | sort -u; getent hosts localalias; "
            "getent ahostsv4 localhost | head -n 1 | awk '{print $1}'",
        },
    ),
}
