"""Messages to a supervisor: they arrive unchanged, and anything else is refused by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.sandboxes.supervisor.program import messages
from harbor_gym.sandboxes.supervisor.program.messages import (
    Allowlist,
    CgroupLimits,
    CommandSpec,
    Identity,
    MessageError,
    SupervisorConfig,
    Target,
    parse,
    to_json,
)

CONFIG = SupervisorConfig(
    parent=1,
    layers=("/top", "/bottom"),
    mountpoint="/cache/mountpoint",
    storage_bytes=1 << 30,
    slirp4netns=None,
    has_network=False,
    may_have_network=True,
    allowlist=Allowlist(("example.com",), ("203.0.113.0/24",)),
    may_have_allowlist=True,
    name_server="10.0.2.3",
    etc={"hosts": "::1 localhost"},
    directories={"/tmp": 0o1777, "/app": None},
    is_rootless=False,
    has_own_ids=True,
    high_ids=(1_000_700_000,),
    filters=("AAAA",),
    closed_networks=(),
    cgroups={"memory": (1, "/sys/fs/cgroup/memory/x")},
    limits=CgroupLimits(memory_bytes=1 << 20, cpus=0.5, max_processes=10),
    image=("/usr/bin/squashfuse_ll", "-f"),
)
IDENTITY = Identity(0, 0, (0, 4), "/root")
WORDS = ("ls", "-l")
COMMAND = CommandSpec("ls", "root", "/", {"PATH": "/bin"}, WORDS, True, "/run/x", (5, 6), True, IDENTITY, "policy")
TARGET = Target(7, "123", ((0, 1 << 20, 1 << 16),), {"pids": (2, "/x")}, True, ())


@pytest.mark.parametrize("message", [CONFIG, COMMAND, TARGET, CONFIG._replace(slirp4netns="/bin/s", cgroups={})])
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    assert parse(type(message), json.loads(to_json(message))) == message


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["parent"], "1", r"SupervisorConfig\.parent: expected .*int.*, got str"),
        (["parent"], True, r"SupervisorConfig\.parent"),
        (["has_network"], 1, r"SupervisorConfig\.has_network"),
        (["layers"], "/top", r"SupervisorConfig\.layers"),
        (["layers"], [1], r"SupervisorConfig\.layers\[0\]"),
        (["directories"], {"/tmp": "1777"}, r"SupervisorConfig\.directories\['/tmp'\]"),
        (["cgroups"], {"memory": [1]}, r"SupervisorConfig\.cgroups\['memory'\]"),
        (["limits"], [1, 2, 3], r"SupervisorConfig\.limits: expected an object"),
        (["limits", "cpus"], "all", r"SupervisorConfig\.limits\.cpus"),
        (["limits", "more"], 1, "missing or unknown: more"),
        (["more"], 1, "missing or unknown: more"),
    ],
)
def test_what_is_of_another_type_is_named(path: list[str], value: object, named: str) -> None:
    data = json.loads(to_json(CONFIG))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(MessageError, match=named):
        parse(SupervisorConfig, data)


@pytest.mark.parametrize("field", SupervisorConfig._fields)
def test_every_field_is_required(field: str) -> None:
    data = json.loads(to_json(CONFIG))
    del data[field]
    with pytest.raises(MessageError, match=f"missing or unknown: {field}$"):
        parse(SupervisorConfig, data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from([SupervisorConfig, CommandSpec, Target]))
def test_no_json_does_anything_but_be_refused(data: object, kind: type) -> None:
    with pytest.raises(MessageError):
        parse(kind, data)


@given(JSON, st.sampled_from(CommandSpec._fields))
def test_a_field_that_is_anything_is_parsed_or_refused(value: object, field: str) -> None:
    data = {**json.loads(to_json(COMMAND)), field: value}
    try:
        parsed = parse(CommandSpec, data)
    except MessageError:
        return
    assert json.loads(to_json(parsed)) == data


def test_it_imports_nothing_that_lengthens_a_start() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(messages.__file__).parent)!r}); import messages; "
    code += "print(sorted({'dataclasses', 'inspect', 'pathlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
