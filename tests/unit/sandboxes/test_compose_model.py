"""What is taken over of a Compose project, and what is refused by name. Documents are as Compose prints them."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym.errors import TaskError, TaskUnsupportedError
from harbor_gym.sandboxes.compose.member import Member, is_idle
from harbor_gym.sandboxes.compose.model import (
    Dependency,
    Mount,
    Project,
    Restart,
    Service,
    duration_sec,
    merged_healthcheck,
    project_of,
)
from harbor_gym.sandboxes.health import Healthcheck
from harbor_gym.sandboxes.images.chosen import Recipe, chosen

MAIN: dict[str, Any] = {"build": {"context": "."}, "networks": {"default": None}}
CREATE = {"create_host_path": True}


def read(context: Path, service: dict[str, Any], **further: Any) -> Project:
    """Return the project of ``main`` and a service ``db``."""
    (context / "inside").mkdir(exist_ok=True)
    main = {**MAIN, "build": {"context": str(context)}}
    document = {"services": {"main": main, "db": {"image": "i", **service}}, "networks": {"default": {}}, **further}
    return project_of(document, context, own_mounts=[("/trial/verifier", "/logs/verifier")])


REFUSED: dict[str, dict[str, Any]] = {
    "privileged": {"privileged": True},
    "devices": {"devices": [{"source": "/dev/fuse"}]},
    "cap_add NET_ADMIN": {"cap_add": ["CHOWN", "NET_ADMIN"]},
    "security_opt seccomp:unconfined": {"security_opt": ["no-new-privileges:true", "seccomp:unconfined"]},
    "tty": {"tty": True},
    "platform 'linux/riscv64'": {"platform": "linux/riscv64"},
    "scale or deploy.replicas": {"deploy": {"replicas": 2}},
    "deploy.endpoint_mode": {"deploy": {"endpoint_mode": "vip"}},
    "deploy.resources.reservations.devices": {"deploy": {"resources": {"reservations": {"devices": [{}]}}}},
    "network_mode 'host'": {"network_mode": "host"},
    "network_mode of 'absent', which does not start": {"network_mode": "service:absent"},
    "network_mode 'container:x'": {"network_mode": "container:x"},
    "networks.default.ipv4_address": {"networks": {"default": {"ipv4_address": "172.18.0.9"}}},
    "extra_hosts up: host-gateway": {"extra_hosts": ["up=host-gateway"]},
    "volumes: type 'npipe'": {"volumes": [{"type": "npipe", "source": "x", "target": "/x"}]},
    "volumes: /var/run/docker.sock": {
        "volumes": [{"type": "bind", "source": "/var/run/docker.sock", "target": "/s", "read_only": True}]
    },
    "volumes: INSIDE/absent": {
        "volumes": [{"type": "bind", "source": "INSIDE/absent", "target": "/s", "read_only": True}]
    },
    "configs 'c': uid": {"configs": [{"source": "c", "uid": "5"}]},
    "configs 'c': /etc/passwd": {"configs": [{"source": "c"}]},
    "secrets 's' without a file or content": {"secrets": [{"source": "s"}]},
    "build.ssh": {"build": {"context": "INSIDE", "ssh": ["default"]}},
    "build.context 'https://host/x.git'": {"build": {"context": "https://host/x.git"}},
    "pid": {"pid": "host"},
    "sysctls": {"sysctls": {"net.core.somaxconn": "1"}},
    "a_key_of_tomorrow": {"a_key_of_tomorrow": True},
    "depends_on 'absent', which does not start": {"depends_on": {"absent": {"condition": "service_started"}}},
}


def placed(value: Any, context: Path) -> Any:
    """Return a value with a directory in place of ``INSIDE``."""
    if isinstance(value, dict):
        return {name: placed(found, context) for name, found in value.items()}
    if isinstance(value, list):
        return [placed(found, context) for found in value]
    return value.replace("INSIDE", str(context)) if isinstance(value, str) else value


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_supported_is_refused_by_name(what: str, tmp_path: Path) -> None:
    shared = {"configs": {"c": {"file": "/etc/passwd"}}, "secrets": {"s": {"environment": "X"}}}
    with pytest.raises(TaskUnsupportedError) as caught:
        read(tmp_path, placed(REFUSED[what], tmp_path), **shared)
    message = str(caught.value)
    assert message.startswith("docker-compose.yaml: service 'db': " + what.replace("INSIDE", str(tmp_path)))
    assert message.endswith("use --env docker")


@pytest.mark.parametrize(
    ("kind", "found", "says"),
    [
        ("networks", {"external": True}, "network 'x': external"),
        ("networks", {"driver": "macvlan"}, "network 'x': driver 'macvlan'"),
        ("networks", {"ipam": {"config": [{"subnet": "10.0.0.0/8"}]}}, "network 'x': ipam"),
        ("networks", {"enable_ipv6": True}, "network 'x': enable_ipv6"),
        ("volumes", {"external": True}, "volume 'x': external"),
        ("volumes", {"driver": "nfs"}, "volume 'x': driver 'nfs'"),
        ("volumes", {"driver_opts": {"type": "nfs"}}, "volume 'x': driver_opts"),
        ("models", {"model": "x"}, "the project: models"),
    ],
)
def test_so_is_what_the_project_shares(kind: str, found: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(TaskUnsupportedError, match=says):
        read(tmp_path, {}, **{kind: {"x": found}})


def test_a_link_of_the_context_leads_to_no_file_outside(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/shadow")
    mount = {"type": "bind", "source": str(tmp_path / "link"), "target": "/x", "read_only": True}
    with pytest.raises(TaskUnsupportedError, match="only files of the task's environment directory"):
        read(tmp_path, {"volumes": [mount]})


def test_a_service_has_what_its_document_says(tmp_path: Path) -> None:
    service = read(
        tmp_path,
        {
            "command": ["a", "b c"],
            "entrypoint": None,
            "environment": {"A": "1", "UNSET": None},
            "depends_on": {"main": {"condition": "service_healthy"}, "away": {"required": False}},
            "restart": "on-failure:3",
            "mem_limit": "67108864",
            "deploy": {"resources": {"limits": {"cpus": 0.5, "memory": "1", "pids": 9}}},
            "shm_size": "8388608",
            "networks": {"default": {"aliases": ["d"]}},
            "container_name": "own",
            "tmpfs": ["/run:size=64m,mode=755"],
            "volumes": [
                {"type": "volume", "target": "/var/lib/x"},
                {"type": "volume", "source": "v", "target": "/v", "volume": {"nocopy": True, "subpath": "/a/"}},
                {"type": "bind", "source": str(tmp_path / "inside"), "target": "/in", "read_only": True},
                {"type": "bind", "source": str(tmp_path / "inside"), "target": "/own"},
                {"type": "bind", "source": str(tmp_path / "made"), "target": "/made", "bind": CREATE},
                {"type": "tmpfs", "target": "/t", "tmpfs": {"size": "1024"}},
            ],
            "ports": [{"target": 80}],
            "labels": {"a": "b"},
            "init": True,
            "pids_limit": -1,
            "configs": [{"source": "c", "target": "/etc/c"}, {"source": "d"}],
            "secrets": [{"source": "s", "target": "t"}],
            "stop_grace_period": "1m30s",
            "cap_drop": ["ALL", "NET_RAW"],
            "cap_add": ["CAP_CHOWN", "setuid", "KILL", "FOWNER", "FSETID", "SETPCAP", "DAC_OVERRIDE", "MKNOD"],
            "security_opt": ["no-new-privileges"],
        },
        configs={"c": {"content": "words"}, "d": {"file": str(tmp_path / "inside")}},
        secrets={"s": {"file": str(tmp_path / "inside")}},
    ).services["db"]
    assert service == Service(
        name="db",
        image="i",
        command=("a", "b c"),
        env={"A": "1"},
        depends_on=(Dependency("main", "service_healthy"),),
        restart=Restart("on-failure", 3),
        dropped=(6, 10, 13, 18, 29, 31),
        no_new_privileges=True,
        memory_bytes=64 << 20,
        cpus=0.5,
        shm_bytes=8 << 20,
        networks={"default": ("d", "own")},
        mounts=(
            Mount("volume", "/var/lib/x", "db.var.lib.x"),
            Mount("volume", "/v", "v", fills=False, part="a"),
            Mount("bind", "/in", str(tmp_path / "inside"), is_read_only=True),
            Mount("bind", "/own", str(tmp_path / "inside")),
            Mount("volume", "/made", str(tmp_path / "made")),
            Mount("tmpfs", "/t", size_bytes=1024),
            Mount("tmpfs", "/run", size_bytes=64 << 20, mode=0o755),
            Mount("bind", "/run/secrets/t", str(tmp_path / "inside"), is_read_only=True),
            Mount("bind", "/etc/c", "configs 'c'", is_read_only=True, text="words"),
            Mount("bind", "/d", str(tmp_path / "inside"), is_read_only=True),
        ),
        stop_grace_sec=90.0,
    )


def test_a_quota_is_a_number_of_processors(tmp_path: Path) -> None:
    for given, cpus in (({"cpu_quota": 50000}, 0.5), ({"cpu_quota": 50000, "cpu_period": 25000}, 2.0), ({}, None)):
        assert read(tmp_path, {"image": "i", **given}).services["db"].cpus == cpus
    assert read(tmp_path, {"image": "i", "cpu_quota": -1}).services["db"].cpus is None


def test_names_and_addresses_of_services_in_shared_networks() -> None:
    services = {
        "main": Service(name="main", networks={"back": (), "front": ("agent",)}),
        "db": Service(name="db", networks={"back": ("store",)}, hostname="dbhost"),
        "web": Service(name="web", networks={"front": ()}, extra_hosts=(("far", "10.0.0.9"),)),
    }
    project = Project(services, ("back", "front"), frozenset({"back"}))
    main, db, web = (Member(project, service) for service in services.values())
    assert main.addresses == [(0, "172.18.0.2"), (1, "172.19.0.2")]
    assert (main.has_way_out, db.has_way_out, web.has_way_out) == (True, False, True)
    local = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    assert hosts(db) == [*local, "172.18.0.2\tmain", "172.18.0.3\tdb store dbhost"]
    assert hosts(web) == [*local, "10.0.0.9\tfar", "172.19.0.2\tmain agent", "172.19.0.4\tweb own"]


def test_services_without_networks_share_one_where_the_task_has_no_public_network() -> None:
    services = {
        "db": Service(name="db", networks={"default": ()}, hostname="dbhost"),
        "main": Service(name="main", networks={"default": ()}),
        "named": Service(name="named", networks={"default": ("alias",)}),
        "beside": Service(name="beside", shares="named"),
        "alone": Service(name="alone"),
    }
    project = Project(services, ("default",), frozenset()).sharing()
    assert {name: service.shares for name, service in project.services.items()} == {
        "db": "main", "main": None, "named": None, "beside": "named", "alone": None
    }  # fmt: skip
    main, db, beside, alone = (Member(project, project.services[name]) for name in ("main", "db", "beside", "alone"))
    assert (main.has_way_out, db.has_way_out, db.addresses) == (True, False, [])
    local = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    others = ["172.18.0.4\tnamed alias", "172.18.0.4\tbeside"]
    assert hosts(main) == [*local, "127.0.0.1\tdb dbhost", "172.18.0.3\tmain own", *others]
    assert hosts(db) == [*local, "127.0.0.1\tdb dbhost", "127.0.0.1\tmain", *others]
    to_main = ["172.18.0.3\tdb dbhost", "172.18.0.3\tmain"]
    assert hosts(beside) == [*local, *to_main, "127.0.0.1\tnamed", "127.0.0.1\tbeside own"]
    assert hosts(alone) == [*local, "127.0.0.1\talone own"]


def hosts(member: Member) -> list[str]:
    """Return the lines of a service's ``/etc/hosts``."""
    return member._hosts(member.service.hostname or "own").splitlines()  # pyright: ignore[reportPrivateUsage]  # without a sandbox


IMAGES = Healthcheck(("old",), interval_sec=7.0, retries=5)


@pytest.mark.parametrize(
    ("own", "of_image", "expected"),
    [
        (None, None, None),
        (None, IMAGES, IMAGES),
        ({"disable": True}, IMAGES, None),
        ({"test": ["NONE"]}, IMAGES, None),
        ({"interval": "1m0.5s"}, IMAGES, Healthcheck(("old",), interval_sec=60.5, retries=5)),
        ({"interval": "1s"}, None, None),
        ({"interval": "0s", "timeout": "0s", "retries": 0}, IMAGES, IMAGES),
        ({"test": ["CMD", "a", "b"], "retries": 2}, IMAGES, Healthcheck(("a", "b"), interval_sec=7.0, retries=2)),
        (
            {"test": ["CMD-SHELL", "a b"], "timeout": "1ms"},
            None,
            Healthcheck(("/bin/sh", "-c", "a b"), timeout_sec=1e-3),
        ),
    ],
)
def test_a_healthcheck_replaces_the_images_key_by_key(
    own: dict[str, Any] | None, of_image: Healthcheck | None, expected: Healthcheck | None
) -> None:
    assert merged_healthcheck(own, of_image) == expected


@pytest.mark.parametrize(
    ("restart", "status", "restarts", "applies"),
    [
        (Restart(), 1, 0, False),
        (Restart("always"), 0, 99, True),
        (Restart("unless-stopped"), 0, 0, True),
        (Restart("on-failure"), 0, 0, False),
        (Restart("on-failure"), 1, 99, True),
        (Restart("on-failure", 3), 1, 2, True),
        (Restart("on-failure", 3), 1, 3, False),
    ],
)
def test_restarts(restart: Restart, status: int, restarts: int, applies: bool) -> None:
    assert restart.applies(status, restarts) is applies


@pytest.mark.parametrize(
    ("service", "restart"),
    [
        ({"deploy": {"restart_policy": {"condition": "unless-stopped"}}}, Restart("unless-stopped")),
        ({"deploy": {"restart_policy": {"condition": "any", "max_attempts": 2}}}, Restart("always", 2)),
        ({"deploy": {"restart_policy": {"max_attempts": 2}}}, Restart("no", 2)),
        ({"deploy": {"restart_policy": {"condition": "any"}}, "restart": "no"}, Restart()),
        ({"restart": "on-failure:0"}, Restart("on-failure")),
    ],
)
def test_restart_policies(service: dict[str, Any], restart: Restart, tmp_path: Path) -> None:
    assert read(tmp_path, service).services["db"].restart == restart


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ({"restart": "sometimes"}, "'db': no restart policy is called 'sometimes'"),
        ({"working_dir": "some/where"}, "'db': working_dir 'some/where' is not absolute"),
    ],
)
def test_what_docker_refuses_is_an_error_of_the_task(service: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=says) as caught:
        read(tmp_path, service)
    assert not isinstance(caught.value, TaskUnsupportedError)


def test_an_optional_dependency_that_starts_is_waited_for(tmp_path: Path) -> None:
    optional = {"condition": "service_healthy", "required": False}
    project = read(tmp_path, {"depends_on": {"main": optional, "absent": optional}})
    assert project.services["db"].depends_on == (Dependency("main", "service_healthy", is_optional=True),)


def test_durations() -> None:
    assert [duration_sec(text) for text in ("1s", "1h1m1s", "250ms", "0s")] == [1.0, 3661.0, 0.25, 0.0]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("sh", "-c", "sleep infinity"), True),
        (("/bin/bash", "-c", "exec tail -f /dev/null"), True),
        (("sleep", "infinity"), True),
        (("sleep", "10"), False),
        (("sh", "-c", "server & sleep infinity"), False),
        ((), False),
    ],
)
def test_a_command_that_only_keeps_a_container_alive_is_known(argv: tuple[str, ...], expected: bool) -> None:
    assert is_idle(argv) is expected


DOCKERFILE = """\
ARG BASE=debian \\
  OTHER=1
FROM $BASE AS First
ARG NAME
RUN echo $NAME
FROM first
RUN true
"""


def test_arguments_and_the_target_of_a_build() -> None:
    recipe = Recipe(arguments=(("NAME", "it's $5"), ("BASE", "b:1"), ("ABSENT", "x")), target="first")
    expected = "ARG BASE='b:1' OTHER=1\n\nFROM $BASE AS First\nARG NAME='it'\"'\"'s $5'\nRUN echo $NAME\n"
    assert chosen(DOCKERFILE, recipe) == expected
    assert chosen(DOCKERFILE, Recipe(target="1")) == DOCKERFILE
    for wrong, says in (
        (Recipe(target="absent"), "no stage 'absent'"),
        (Recipe(arguments=(("A", "a\nb"),)), "line break"),
    ):
        with pytest.raises(TaskError, match=says):
            chosen(DOCKERFILE, wrong)
