"""Compose files on the local sandbox and on Docker: what their services are and do is the same."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import NetworkMode, NetworkPolicy

from harbor_gym.sandboxes.docker.environment import DockerEnvironment
from harbor_gym.sandboxes.images.recipe import PLATFORM
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import make

pytestmark = [pytest.mark.local, pytest.mark.compose, pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

BASE = "debian:bookworm-slim"
PUBLIC = NetworkPolicy(network_mode=NetworkMode.PUBLIC)

FILES = {
    "Dockerfile": f"FROM {BASE}\nWORKDIR /app\n",
    "one.env": "FROM_FILE=file\nSHARED=of-file\n",
    "conf/a.txt": "a\n",
    "single.txt": "single\n",
    "other.yaml": "services: {base: {image: debian:bookworm-slim, environment: {EXTENDED: base}, command: sleep 1000}}",
    "built/Dockerfile.special": f"""\
FROM {BASE} AS first
ARG WORD=default
RUN echo "first $WORD" >/word
RUN mkdir -m 700 /filled && echo kept >/filled/file && chown -R 33:44 /filled
RUN mkdir -m 711 /owned && chown 33:33 /owned
VOLUME /anonymous
ENTRYPOINT ["/entry.sh", "fixed"]
CMD ["of", "image"]
RUN printf '#!/bin/sh\\necho "$@" >/arguments\\nexec sleep 1000\\n' >/entry.sh && chmod +x /entry.sh
FROM first AS last
RUN echo last >/word
""",
}

COMPOSE = """\
x-common: &common
  image: debian:bookworm-slim
  environment: &variables
    ANCHORED: anchored
name: ignored
services:
  main:
    environment: {DOLLARS: "a$$b", NUMBER: 5, EMPTY: "", DEFAULTED: "${NOT_SET_ANYWHERE:-fallback}"}
    working_dir: /srv
    hostname: agent-host
    depends_on:
      ordered: {condition: service_completed_successfully}
      healthy: {condition: service_healthy}
    volumes: ["shared:/shared", "filled:/seen-filled"]
    networks: [default, back]
    extra_hosts: ["known.example:10.9.8.7"]
    stop_grace_period: 1s
    user: "33:44"
    tmpfs: ["/scratch:size=1m,mode=700"]
  words:
    <<: *common
    command: sh -c 'echo "a  b" "$$ANCHORED" >/words; exec sleep 1000'
    env_file: one.env
    environment:
      <<: *variables
      SHARED: of-service
  extended:
    extends: {file: other.yaml, service: base}
  healthy:
    image: debian:bookworm-slim
    command: ["sh", "-c", "sleep 1.2; echo healthy >>/shared/order; touch /ready; exec sleep 1000"]
    healthcheck: {test: "test -e /ready", interval: 300ms, timeout: 2s, retries: 30}
    volumes: ["shared:/shared"]
    depends_on: [first]
  first:
    image: debian:bookworm-slim
    command: ["sh", "-c", "echo first >>/shared/order; exec sleep 1000"]
    volumes: ["shared:/shared"]
  ordered:
    image: debian:bookworm-slim
    command: ["sh", "-c", "echo ordered >>/shared/order"]
    depends_on: {healthy: {condition: service_healthy}}
    volumes: ["shared:/shared"]
  built:
    build: {context: built, dockerfile: Dockerfile.special, args: {WORD: "it's $$5"}, target: first}
    volumes: ["filled:/filled", "owned:/owned", {type: volume, source: bare, target: /nocopy, volume: {nocopy: true}}]
    networks: {default: {aliases: [nick, name]}}
  rebuilt:
    build: {context: built, dockerfile: Dockerfile.special, args: {WORD: "it's $$5"}, target: first}
    command: ["own", "words"]
  replaced:
    build:
      context: built
      dockerfile_inline: |
        FROM debian:bookworm-slim
        CMD ["echo", "never"]
    entrypoint: ["sleep", "1000"]
  confined:
    image: debian:bookworm-slim
    command: sleep 1000
    read_only: true
    tmpfs: /scratch:size=2m,mode=750
    shm_size: 8m
    mem_limit: 96m
    pids_limit: 77
    volumes:
      - ./conf:/conf:ro
      - ./single.txt:/etc/single.txt:ro
      - shared:/shared:ro
      - ./conf:/own
      - {type: tmpfs, target: /typed, tmpfs: {size: 3145728}}
    networks: [back]
    user: "1234:4321"
    working_dir: /made/here
    platform: PLATFORM
  failing:
    image: debian:bookworm-slim
    command: ["sh", "-c", "echo x >>/shared/tries; [ $$(wc -l </shared/tries) -ge 3 ] || exit 7; exec sleep 1000"]
    restart: on-failure
    volumes: ["shared:/shared"]
  alone:
    image: debian:bookworm-slim
    command: sleep 1000
    network_mode: none
    configs: [{source: text, target: /etc/text}, whole]
    secrets: [{source: word, target: renamed}]
  weak:
    image: debian:bookworm-slim
    command: ["sh", "-c", "grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status >/status; exec sleep 1000"]
    cap_drop: [ALL]
    cap_add: [DAC_OVERRIDE, CHOWN]
    security_opt: ["no-new-privileges:true"]
  beside:
    image: debian:bookworm-slim
    command: ["bash", "-c", "exec sleep 1000"]
    network_mode: service:first
  hidden:
    image: debian:bookworm-slim
    command: ["bash", "-c", "exec 3<>/dev/null; sleep 1000"]
    networks: [hidden]
    container_name: CONTAINER
  reading:
    image: debian:bookworm-slim
    command: cat
    stdin_open: true
  dropping:
    image: debian:bookworm-slim
    command: ["bash", "-c", "trap 'echo ended >/shared/stopped; exit 0' TERM; while :; do sleep 0.1; done"]
    volumes: ["shared:/shared"]
    init: true
    expose: ["80"]
    ports: ["127.0.0.1:0:80"]
    labels: {a: b}
    stop_grace_period: 5s
  inactive:
    image: no-such-image
    profiles: [other]
networks:
  back: {internal: true}
  hidden:
volumes: {shared: , filled: , owned: , bare: }
configs: {text: {content: "some $$ ${NOT_SET_ANYWHERE:-text}"}, whole: {file: single.txt}}
secrets: {word: {file: ./conf/a.txt}}
"""


type Cases = Mapping[tuple[str, str], Mapping[str, str]]

CASES: Cases = {
    ("main", ""): {
        "a value with a dollar sign, a number, nothing, a default": "env | grep -E '^(DOLL|NUMB|EMPT|DEFA)' | sort",
        "main's working directory": "pwd",
        "main's user": "id -u; id -g",
        "main's host name": "hostname; getent hosts agent-host | wc -l",
        "order of dependencies": "cat /shared/order",
        "another host": "getent hosts known.example",
        "aliases lead to one address": "getent hosts nick built name | awk '{print $1}' | uniq | wc -l",
        "another network's service has no name": "getent hosts hidden",
    },
    ("main", "root"): {
        "a volume's files are the same in another service": "cd /seen-filled; stat -c '%u:%g %a' . file; cat file",
        "main's memory file system": "stat -c '%a %F' /scratch; df --output=size /scratch",
    },
    ("words", ""): {
        "words of a command": "cat /words",
        "variables of file, anchor and service": "env | grep -E '^(FROM_FILE|SHARED|ANCHORED)=' | sort",
        "the shell is sh": "echo ${BASH_VERSION:-none}",
        "a status": "exit 42",
        "the image's user and directory": "id -un; pwd",
    },
    ("extended", ""): {"extends": "echo $EXTENDED; pgrep -xc sleep"},
    ("built", ""): {
        "an image's ENTRYPOINT with its CMD": "cat /arguments",
        "a build argument and a target": "cat /word",
        "a volume gets the image's files": "stat -c '%n %u:%g %a' /filled /filled/file; cat /filled/file",
        "a volume gets an empty directory's owner": "stat -c '%n %u:%g %a' /owned",
        "a volume without a directory in the image": "stat -c '%n %u:%g %a' /nocopy; ls -A /nocopy",
        "the image's own volume": "touch /anonymous/x && echo ok",
    },
    ("rebuilt", ""): {"an image's ENTRYPOINT with the service's command": "cat /arguments"},
    ("replaced", ""): {"an entrypoint without the image's CMD": "pgrep -x echo; pgrep -xc sleep"},
    ("confined", ""): {
        "a typed memory file system": "touch /typed/x && echo ok",
        "shared memory": "df --output=size /dev/shm; touch /dev/shm/x && echo ok",
        "a service's user and its directory, which is made": "id -u; id -g; pwd; stat -c %u ..",
        "a service of two networks is reached in each": "getent hosts main | wc -l; getent hosts healthy | wc -l",
    },
    ("confined", "root"): {
        "another user": "id -un; pwd",
        "a read-only root": "touch /x; touch /tmp/x",
        "a memory file system in it": "stat -c '%u:%g %a' /scratch; df --output=size /scratch /typed; touch /scratch/x",
        "mounted files": "cat /conf/a.txt /etc/single.txt; echo x >/conf/new; echo x >>/etc/single.txt",
        "a mounted directory that is written": "echo more >/own/more; cat /own/*",
        "a read-only volume": "cat /shared/order; touch /shared/x",
    },
    ("failing", ""): {"a restart": "sleep 1; wc -l </shared/tries"},
    ("alone", ""): {
        "no network": "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '",
        "no network has no names": "getent hosts first",
        "secrets and configs": "cat /etc/text /whole /run/secrets/renamed; echo x >>/run/secrets/renamed",
    },
    ("weak", ""): {
        "capabilities that are given up": "cut -c 17- /status; grep ^NoNewPrivs /proc/self/status",
        "what they would allow": "touch /x && chown 5 /x && chmod 4755 /x; kill -0 1; nice -n 5 true; su games -c id",
    },
    ("beside", ""): {
        "another service's network": "bash -c '</dev/tcp/main/1' 2>&1 | grep -o refused; grep -c eth0 /proc/net/dev",
    },
    ("reading", ""): {"an open input": "pgrep -xc cat"},
}
"""Service and user → what is looked at → the command that shows it."""

MARK = "--- "


def write(directory: Path, compose: str, files: dict[str, str] = FILES) -> Path:
    """Write an environment directory; return its parent."""
    for name, text in {**files, "docker-compose.yaml": compose}.items():
        path = directory / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


async def shown(sandbox: BaseEnvironment, all_cases: Cases) -> dict[str, Any]:
    """Return what some cases show of a started sandbox."""
    found: dict[str, Any] = {}
    for (service, user), cases in all_cases.items():
        parts = (
            f"echo '{MARK}{name.replace(chr(39), '')}'; ({command}) 2>&1; echo $?" for name, command in cases.items()
        )
        done = await sandbox.service_exec("\n".join(parts), service=service, user=user or None)
        for part in (done.stdout or "").split(MARK)[1:]:
            name, _, text = part.partition("\n")
            found[name] = re.sub(r"^sh: \d+: |^.*line \d+: ", "", text, flags=re.MULTILINE)
    return found


async def seen(sandbox: BaseEnvironment, tmp_path: Path) -> dict[str, Any]:
    """Return what the cases show of a started sandbox, and what the calls on services do."""
    found = await shown(sandbox, CASES)
    done = await sandbox.service_exec("pwd; echo $GIVEN; exit 42", service="words", cwd="/usr", env={"GIVEN": "x y"})
    found["a call's own directory and variable, and its status"] = done.stdout, done.return_code
    kind = sandbox.type()
    await sandbox.service_download_file("/word", tmp_path / f"{kind}-word", service="built")
    await sandbox.service_download_dir("/filled", tmp_path / f"{kind}-filled", service="built")
    files = (tmp_path / f"{kind}-word", tmp_path / f"{kind}-filled/file")
    found["downloads"] = [path.read_text() for path in files]
    await sandbox.stop_service("dropping")
    found["a stopped service had its time"] = (
        await sandbox.service_exec("cat /shared/stopped", service="first")
    ).stdout
    for name in ("dropping", "ordered", "inactive"):
        try:
            done = await sandbox.service_exec("true", service=name)
            found[f"exec in {name}"] = done.return_code == 0
        except Exception:  # Docker's and ours differ
            found[f"exec in {name}"] = False
    await sandbox.stop_service("main")
    found["others run on without main"] = (await sandbox.service_exec("echo here", service="first")).stdout
    return found


@pytest.mark.slow
async def test_services_are_as_with_docker(tmp_path: Path) -> None:
    compose = COMPOSE.replace("CONTAINER", f"own-{tmp_path.name}").replace("PLATFORM", PLATFORM["TARGETPLATFORM"])
    found: dict[str, dict[str, Any]] = {}
    for kind in (LocalEnvironment, DockerEnvironment):
        directory = write(tmp_path / kind.type(), compose)
        sandbox = make(kind, directory, None, network_policy=PUBLIC)
        try:
            await sandbox.start(force_build=False)
            found[kind.type()] = await seen(sandbox, tmp_path)
        finally:
            await sandbox.stop(delete=True)
    assert found["local"] == found["docker"]
