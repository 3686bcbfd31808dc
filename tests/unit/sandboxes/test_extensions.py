"""The abilities of sandbox classes beyond Harbor's: asked by protocol, in the form that its contract names."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.docker.docker import DockerEnvironment as HarborsDocker

from harbor_gym.sandboxes import extensions, shares_setup
from harbor_gym.sandboxes.docker.environment import DockerEnvironment
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.terminal.transports.attach import has_pipes
from harbor_gym.testing import FakeEnvironment

SUPPORTED: dict[type[BaseEnvironment], set[str]] = {
    LocalEnvironment: {
        *("SupportsExecArgv", "SupportsExecPipes", "SupportsVerifierView", "SupportsCleanUp", "SupportsIsUp"),
        *("SupportsSetUpView", "SupportsWrittenPaths", "ReportsServices", "DeclaresKnownFailures"),
        *("SupportsProcessCopies", "SupportsSharedView", "SupportsBuild", "DeclaresCutRewards"),
    },
    DockerEnvironment: {
        *("SupportsExecArgv", "SupportsIsUp", "SupportsSharedSetup", "SupportsUnblocking", "DeclaresKnownFailures"),
        "DeclaresCutRewards",
    },
    HarborsDocker: set(),
    FakeEnvironment: {"SupportsTerminal", "DeclaresKnownFailures"},
}


def protocols() -> Iterator[type[Any]]:
    for name, kind in vars(extensions).items():
        if name.startswith(("Supports", "Reports", "Declares")) and name != "SupportsExec":
            yield kind


def unstarted(kind: type[BaseEnvironment]) -> BaseEnvironment:
    return object.__new__(kind)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_each_class_offers_what_is_known_of_it(kind: type[BaseEnvironment]) -> None:
    assert {protocol.__name__ for protocol in protocols() if isinstance(unstarted(kind), protocol)} == SUPPORTED[kind]


@pytest.mark.parametrize("kind", SUPPORTED)
def test_methods_take_what_their_contract_names(kind: type[BaseEnvironment]) -> None:
    for protocol in (*protocols(), extensions.SupportsExec):
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if name.startswith("_") or not (protocol.__name__ in SUPPORTED[kind] or name == "exec"):
                continue
            wanted, had = (inspect.signature(item).parameters for item in (method, getattr(kind, name)))
            assert [name for name in had if name in wanted] == list(wanted), f"{kind.__name__}.{name}"
            for own in set(had) - set(wanted):
                assert had[own].default is not inspect.Parameter.empty, f"{kind.__name__}.{name} needs {own}"


def test_an_ability_set_to_none_is_taken_away() -> None:
    class WithoutArgv(LocalEnvironment):
        exec_argv: Any = None

    assert has_pipes(unstarted(LocalEnvironment))
    assert not has_pipes(unstarted(WithoutArgv))
    assert not isinstance(unstarted(WithoutArgv), extensions.SupportsExecArgv)


def test_what_a_foreign_class_reports_is_taken_over() -> None:
    class Foreign(FakeEnvironment):
        shares_setup = False

    assert not shares_setup("docker", unstarted(Foreign))
    assert shares_setup("docker", unstarted(FakeEnvironment))


def test_no_ability_is_asked_for_by_its_name() -> None:
    members = {name for protocol in protocols() for name in vars(protocol) if not name.startswith("_")}
    package = Path(inspect.getfile(extensions)).parents[1]
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=name), *_]):
                    assert name not in members, f"{file}:{node.lineno} asks for {name}"
                case _:
                    pass
