"""Further services on the local sandbox and on Docker, most of them for one key of Compose and its forms."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym.sandboxes.docker.environment import DockerEnvironment
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import make
from tests.integration.local.test_compose_as_docker import BASE, PUBLIC, Cases, shown, write

pytestmark = [
    pytest.mark.local,
    pytest.mark.compose,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_left"),
]

FILES = {
    "Dockerfile": f"FROM {BASE}\nWORKDIR /app\n",
    "first.env": "# a comment\nPLAIN=plain\nQUOTED=\"two words\"\nSINGLE='$PLAIN'\nBUILT=${PLAIN}-more\nTWICE=first\n",
    "second.env": "TWICE=second\nexport EXPORTED=yes\nEMPTY=\n",
    "conf/a.txt": "a\n",
    "conf/deep/b.txt": "b\n",
    "other.yaml": """\
services:
  base: {image: debian:bookworm-slim, environment: {A: base, B: base}, command: sleep 1000, user: games}
  middle: {extends: base, environment: {B: middle}, env_file: first.env}
""",
    "part/included.yaml": """\
services:
  included:
    image: debian:bookworm-slim
    command: [cat, /part.txt, "-"]
    stdin_open: true
    volumes: ["./part.txt:/part.txt:ro"]
""",
    "part/part.txt": "of the part\n",
    "checked/Dockerfile": f"""\
FROM {BASE}
ARG FROM_LIST=unset
ARG FROM_TASK=unset
RUN echo "$FROM_LIST $FROM_TASK" >/arguments && mkdir /data && echo of-image >/data/file
ENV OF_IMAGE=image OVER=image
USER games
WORKDIR /data
HEALTHCHECK --interval=300ms --timeout=2s --retries=40 CMD test -e /tmp/ready
CMD ["sh", "-c", "echo started by $(id -un); sleep 0.7; touch /tmp/ready; exec sleep 1000"]
""",
}

COMPOSE = """\
include: [part/included.yaml]
x-one: &one {ONE: "1", BOTH: one}
x-two: &two {TWO: "2", BOTH: two}
services:
  main: {depends_on: [after, checks], volumes: ["shared:/shared"]}
  listed:
    image: debian:bookworm-slim
    environment: [A=1, B=, "C=x y=z", ABSENT_ANYWHERE, 'D="quoted"', "E=$$A"]
    command: sleep 1000
  filed:
    image: debian:bookworm-slim
    env_file: [first.env, {path: second.env}, {path: absent.env, required: false}]
    command: sleep 1000
  replaced:
    image: debian:bookworm-slim
    environment:
      COLON: ${GIVEN:-default}
      DASH: ${BLANK-default}
      COLON_DASH: ${BLANK:-default}
      PLUS: ${GIVEN:+other}
      NESTED: ${ABSENT_ANYWHERE:-${GIVEN}}
      NEEDED: ${GIVEN:?is needed}
      DOLLARS: $$GIVEN-$${GIVEN}
    command: sleep 1000
  merged: {image: debian:bookworm-slim, environment: {<<: [*one, *two], THREE: 3, TRUTH: "true"}, command: sleep 1000}
  quoting:
    image: debian:bookworm-slim
    command: sh -c "echo 'single  quoted' \\"double\\" $$HOME; echo to-stderr >&2; exec sleep 1000"
  folded:
    image: debian:bookworm-slim
    command: >
      sh -c 'echo one
      two;
      exec sleep 1000'
  entered:
    image: debian:bookworm-slim
    entrypoint: sh -c "echo $$0 $$1 $$#; exec sleep 1000"
    command: [one, "two words"]
  emptied: {build: checked, entrypoint: [], command: [sh, -c, "touch /tmp/ready; exec sleep 1000"]}
  named: {image: debian:bookworm-slim, user: games, command: [sh, -c, "id; echo $$HOME; exec sleep 1000"]}
  grouped: {image: debian:bookworm-slim, user: "games:audio", command: sleep 1000}
  numbered:
    image: debian:bookworm-slim
    user: "7777"
    working_dir: /made/here
    command: [sh, -c, "id; pwd; echo $$HOME; exec sleep 1000"]
  inherits: {extends: {file: other.yaml, service: middle}, environment: {C: own}}
  extending: {extends: listed, environment: {B: more}, command: [sleep, "1000"]}
  checked:
    build:
      context: ./checked
      args: [FROM_LIST=list, FROM_TASK=$GIVEN]
    image: own-name-of-checked
    environment: {OVER: service}
    volumes: ["/data", "shared:/shared"]
  twin:
    image: own-name-of-checked
    pull_policy: never
    command: sh -c "touch /tmp/ready; sleep 1000"
    depends_on: [checked]
  checks:
    image: debian:bookworm-slim
    command: [sh, -c, "touch /ready; exec sleep 1000"]
    depends_on: {checked: {condition: service_healthy}}
    healthcheck: {test: [CMD, test, -e, /ready], interval: 1s, timeout: 20s, retries: 5, start_period: 1s}
  once:
    image: debian:bookworm-slim
    command: [sh, -c, "echo once; echo once >>/shared/order"]
    restart: "no"
    volumes: ["shared:/shared"]
  after:
    image: debian:bookworm-slim
    command: [sh, -c, "echo after >>/shared/order; exec sleep 1000"]
    depends_on:
      once: {condition: service_completed_successfully}
      asleep: {condition: service_started, required: false}
      listed: {condition: service_started, restart: true}
    volumes: ["shared:/shared"]
  again:
    image: debian:bookworm-slim
    command: [sh, -c, "echo try; echo try >>/shared/again; [ $$(wc -l </shared/again) -ge 2 ] && exec sleep 1000"]
    restart: unless-stopped
    volumes: ["shared:/shared"]
    healthcheck: {test: "[ $$(wc -l </shared/again) -ge 2 ]", interval: 300ms, retries: 50}
  scratched: {image: debian:bookworm-slim, command: sleep 1000, tmpfs: [/one, "/two:noexec,size=1m"], shm_size: 4194304}
  closed:
    image: debian:bookworm-slim
    command: sleep 1000
    read_only: true
    volumes: ["shared:/outer", "inner:/outer/inner", "./conf:/conf:ro", "/anonymous"]
  lesser: {image: debian:bookworm-slim, command: sleep 1000, cap_drop: [NET_RAW, chown]}
  limited:
    image: debian:bookworm-slim
    command: sleep 1000
    init: true
    deploy: {resources: {limits: {memory: 64M, cpus: "0.5", pids: 60}}, restart_policy: {condition: on-failure}}
  hosted:
    image: debian:bookworm-slim
    command: sleep 1000
    hostname: its-own
    extra_hosts: {far: 10.1.2.3, further: "10.1.2.4"}
    expose: [80]
    ports: [{target: 81, protocol: tcp}]
    labels: {a: b}
  inside:
    image: debian:bookworm-slim
    command: sleep 1000
    networks: {left: {aliases: [inner, common]}, right: {aliases: [outer]}}
  outside: {image: debian:bookworm-slim, command: sleep 1000, networks: [right]}
  profiled: {image: debian:bookworm-slim, command: sleep 1000, profiles: [chosen, other]}
  asleep: {image: no-such-image, profiles: [never]}
networks: {left: {internal: true}, right: {driver: bridge}}
volumes: {shared: , inner: {driver: local}}
"""
GIVEN = {"GIVEN": "of the task", "BLANK": "", "COMPOSE_PROFILES": "chosen"}

VARIABLES = "env | grep -vE '^(PATH|HOSTNAME|PWD|SHLVL|_|OLDPWD)=' | sort"
WRITTEN = "until grep after /shared/order; do sleep 0.1; done"
"""A service that has started need not have written yet."""
CASES: Cases = {
    ("main", ""): {"the order of dependencies": f"timeout 20 sh -c '{WRITTEN}'; cat /shared/order"},
    ("listed", ""): {"variables of a list": VARIABLES},
    ("filed", ""): {"variables of files": VARIABLES},
    ("replaced", ""): {"interpolation": VARIABLES},
    ("merged", ""): {"two anchors": VARIABLES},
    ("emptied", ""): {"no entrypoint": "pgrep -xc sleep; pwd; id -un"},
    ("named", ""): {"a user by name": "id; pwd; echo ~; touch /x"},
    ("grouped", ""): {"a user and a group by name": "id"},
    ("numbered", ""): {"a user without an account": "id; pwd; stat -c '%u:%g %a' .", "PATH": "echo $PATH; echo $HOME"},
    ("inherits", ""): {"a chain of services": f"{VARIABLES}; id -un"},
    ("extending", ""): {"a service of the same file": VARIABLES},
    ("checked", ""): {
        "arguments of a list": "cat /arguments",
        "variables of image and service": VARIABLES,
        "an anonymous volume has the image's files": "cat /data/file; stat -c '%U %a' /data /data/file; pwd",
    },
    ("twin", ""): {"an image by the name of another's build": "cat /arguments; id -un"},
    ("again", ""): {"a restart": "wc -l </shared/again"},
    ("scratched", "root"): {
        "memory": "grep -oE ' /(one|two) tmpfs rw,nosuid,nodev,noexec' /proc/mounts",
        "its mode and size": "stat -c '%a %u:%g' /one /two; df --output=size /two /dev/shm",
        "programs in it": "cp /bin/true /one; /one/true; cp /bin/true /two; /two/true",
    },
    ("closed", "root"): {
        "a mount below another": "touch /outer/x /outer/inner/y && ls /outer/inner; touch /z",
        "a directory of the task, with all below": "find /conf | sort; cat /conf/deep/b.txt; touch /conf/x",
        "a volume without a name": "touch /anonymous/x && echo ok",
    },
    ("lesser", "root"): {
        "capabilities": "grep -E '^Cap(Bnd|Eff|Prm)' /proc/self/status | cut -c 17-; touch /x && chown 5 /x"
    },
    ("limited", ""): {
        "no zombies": "sh -c '(sleep 0.05 &)'; sleep 0.3; grep -l 'State:.Z' /proc/[0-9]*/status | wc -l",
        "memory that is too much": "sh -c 'head -c 300M /dev/zero | tail -n 1 | wc -c' 2>/dev/null",
        "processes that are too many": "bash -c 'for i in $(seq 80); do sleep 2 & done' 2>&1 | grep -c -m1 fork",
    },
    ("hosted", ""): {
        "names": "hostname; getent hosts far further | awk '{print $1, $2}'; getent hosts its-own | wc -l"
    },
    ("inside", ""): {"names in two networks": "getent hosts outside inner outer common | wc -l; getent hosts listed"},
    ("outside", ""): {"names in one network": "getent hosts inner; getent hosts outer | wc -l; getent hosts main"},
    ("profiled", ""): {"a profile that the task's variables choose": "echo runs"},
}
"""Service and user → what is looked at → the command that shows it."""

RUNNING = "listed quoting folded entered once asleep after checks included"


async def seen(sandbox: Any, folder: Path) -> dict[str, Any]:
    """Return what the cases show of a started sandbox, which is stopped."""
    found = await shown(sandbox, CASES)
    for name in RUNNING.split():
        try:
            found[f"exec in {name}"] = (await sandbox.service_exec("true", service=name)).return_code == 0
        except Exception:  # Docker's and ours differ
            found[f"exec in {name}"] = False
    await sandbox.stop(delete=True)
    logs = {path.stem: path.read_text() for path in sorted(folder.glob("trial/services/*.log"))}  # noqa: ASYNC240  # small files
    # Docker reads standard output and error one beside the other, in any order.
    return {**found, "output": {name: sorted(text.splitlines()) for name, text in logs.items() if text}}


async def test_further_services_are_as_with_docker(tmp_path: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    for kind in (LocalEnvironment, DockerEnvironment):
        directory = write(tmp_path / kind.type(), COMPOSE, FILES)
        sandbox = make(kind, directory, None, network_policy=PUBLIC, config={"env": GIVEN})
        try:
            await sandbox.start(force_build=False)
            found[kind.type()] = await seen(sandbox, directory)
        finally:
            await sandbox.stop(delete=True)
    assert found["local"] == found["docker"]
