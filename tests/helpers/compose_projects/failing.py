"""What does not come up with Docker either, and what local sandboxes refuse by name."""

from tests.helpers.compose_projects.project import Project

FAILING = {
    "ends at once": Project(
        compose="services: {bad: {image: BASE, command: 'sh -c \"echo last words; exit 3\"'}}",
        local="'bad'.*status 3: last words",
        docker="exited \\(3\\)",
    ),
    "ends well and nobody waits for it": Project(
        compose="services: {bad: {image: BASE, command: 'true'}}", local="'bad'.*status 0", docker=r"exited \(0\)"
    ),
    "main ends at once": Project(
        compose="services: {main: {command: 'sh -c \"exit 3\"'}}", local="'main'.*status 3", docker=r"exited \(3\)"
    ),
    "main is unhealthy": Project(
        compose="services: {main: {healthcheck: {test: 'exit 5', interval: 100ms, retries: 2}}}",
        local="failed 2 times.*status 5",
        docker="unhealthy",
    ),
    "main is read-only": Project(
        compose="services: {main: {read_only: true}}", local="AddTestsDirError", docker="AddTestsDirError"
    ),
    "main does not start": Project(
        compose="services: {main: {profiles: [never]}, other: {image: BASE, command: sleep 1000}}",
        local="'main' does not start",
        docker="main",
    ),
    "does not complete": Project(
        compose="""\
services:
  bad: {image: BASE, command: "sh -c 'exit 4'"}
  next: {image: BASE, command: sleep 1000, depends_on: {bad: {condition: service_completed_successfully}}}
""",
        local="'bad' did not (come up|complete).*status 4",
        docker="exit 4",
    ),
    "has no check": Project(
        compose="""\
services:
  bad: {image: BASE, command: sleep 1000}
  next: {image: BASE, command: sleep 1000, depends_on: {bad: {condition: service_healthy}}}
""",
        local="'next' waits until 'bad' is healthy.*no healthcheck",
        docker="no healthcheck configured",
    ),
    "has no such program": Project(
        compose="services: {bad: {image: BASE, command: [no-such-program]}}",
        local="'bad'.*no-such-program",
        docker="no-such-program",
    ),
    "has no command": Project(
        compose='services: {bad: {build: {dockerfile_inline: "FROM BASE\\nCMD []"}, entrypoint: [], command: []}}',
        local="'bad'.*names a command",
        docker="[Nn]o command",
    ),
    "has no such user": Project(
        compose="services: {bad: {image: BASE, command: sleep 1000, user: nobody-here}}",
        local="'bad'.*nobody-here",
        docker="nobody-here",
    ),
    "has no such image": Project(
        compose="services: {bad: {image: 'localhost:1/no-such-image'}}", local="no-such-image", docker="localhost:1"
    ),
    "has a key that is none": Project(
        compose="services: {bad: {image: BASE, no_such_key: 1}}", local="no_such_key", docker="no_such_key"
    ),
    "waits for itself": Project(
        compose="services: {bad: {image: BASE, depends_on: [bad]}}", local="bad", docker="cycle|bad"
    ),
    "a restart policy that is none": Project(
        compose="services: {bad: {image: BASE, command: sleep 1000, restart: sometimes}}",
        local="'bad'.*'sometimes'",
        docker="sometimes",
    ),
    "a mount's place that is not absolute": Project(
        compose="services: {bad: {image: BASE, command: sleep 1000, volumes: ['data:some/where']}}\nvolumes: {data: }",
        local="'bad'.*some/where",
        docker="some/where",
    ),
    "a place of memory that is not absolute": Project(
        compose="services: {bad: {image: BASE, command: sleep 1000, tmpfs: ['some/where']}}",
        local="'bad'.*some/where",
        docker="some/where",
    ),
    "a directory's name is not absolute": Project(
        compose="services: {bad: {image: BASE, command: sleep 1000, working_dir: relative/place}}",
        local="'bad'.*relative/place",
        docker="relative/place",
    ),
    "a service that another needs has no profile": Project(
        compose="services: {main: {depends_on: [bad]}, bad: {image: BASE, command: sleep 1000, profiles: [never]}}",
        local="bad",
        docker="bad",
    ),
    "a variable that is required": Project(
        compose='services: {main: {environment: {A: "${ABSENT_ANYWHERE:?set it}"}}}', local="set it", docker="set it"
    ),
    "a file of variables that is not there": Project(
        compose="services: {main: {env_file: absent.env}}", local="absent.env", docker="absent.env"
    ),
    "a port that is none": Project(
        compose="services: {bad: {image: BASE, ports: ['x:y']}}", local="containerPort: y", docker="containerPort: y"
    ),
}

REFUSED = {
    "links": "links: [other:alias]",
    "external_links": "external_links: [elsewhere]",
    "dns": "dns: 192.0.2.1",
    "dns_search": "dns_search: [example.com]",
    "dns_opt": "dns_opt: [use-vc]",
    "domainname": "domainname: example.com",
    "mac_address": "mac_address: 02:42:ac:11:65:43",
    "sysctls": "sysctls: [net.core.somaxconn=1024]",
    "ulimits": "ulimits: {nofile: {soft: 1000, hard: 2000}}",
    "group_add": "group_add: [audio, '4321']",
    "devices": "devices: [/dev/fuse]",
    "device_cgroup_rules": "device_cgroup_rules: ['c 1:3 mr']",
    "pid": "pid: service:other",
    "ipc": "ipc: service:other",
    "uts": "uts: host",
    "cgroup": "cgroup: host",
    "cgroup_parent": "cgroup_parent: some-group",
    "userns_mode": "userns_mode: host",
    "volumes_from": "volumes_from: [other]",
    "runtime": "runtime: runc",
    "tty": "tty: true",
    "privileged": "privileged: true",
    "cap_add SYS_PTRACE": "cap_add: [SYS_PTRACE]",
    "cap_add ALL": "cap_add: [ALL]",
    "security_opt seccomp:unconfined": "security_opt: ['seccomp:unconfined']",
    "platform 'linux/s390x'": "platform: linux/s390x",
    "scale or deploy.replicas": "deploy: {replicas: 2}",
    "deploy.endpoint_mode": "deploy: {endpoint_mode: dnsrr}",
    "deploy.resources.reservations.devices": "deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}",
    "network_mode 'host'": "network_mode: host",
    "network_mode 'bridge'": "network_mode: bridge",
    "extra_hosts up: host-gateway": "extra_hosts: ['up:host-gateway']",
    "networks.default.ipv4_address": "networks: {default: {ipv4_address: 172.18.0.9}}",
    "build.additional_contexts": "build: {context: ., additional_contexts: {other: .}}",
    "build.network": "build: {context: ., network: host}",
    "build.cache_from": "build: {context: ., cache_from: [some/image]}",
    "volumes: /etc/hostname": "volumes: ['/etc/hostname:/x:ro']",
    "volumes: /": "volumes: ['..:/x']",
    "tmpfs /x: option uid": "tmpfs: ['/x:uid=33']",
    "tmpfs /x: read_only": "volumes: [{type: tmpfs, target: /x, read_only: true}]",
    "tmpfs /x: size 10%": "tmpfs: ['/x:size=10%']",
    "secrets 'file': mode": "secrets: [{source: file, mode: 0400}]",
    "secrets 'variable' without a file or content": "secrets: [variable]",
    "configs 'text': uid": "configs: [{source: text, uid: '33'}]",
}
"""What the local sandbox says that it does not support → a service's key that asks for it."""

REFUSED_COMPOSE = """\
services:
  main: {}
  other: {image: BASE, command: sleep 1000}
  bad: {image: BASE, KEY}
secrets: {file: {file: docker-compose.yaml}, variable: {environment: HOME}}
configs: {text: {content: text}}
"""
