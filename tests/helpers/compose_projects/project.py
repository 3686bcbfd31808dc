"""Small whole tasks, each with a Compose file of its own, for comparing Docker and the local sandbox.

``main`` has a prebuilt image, unless a project has a Dockerfile. ``BASE`` stands for the image's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.tasks import BASE, write_task

SERVE = (
    "perl -MIO::Socket::INET -e '$$l = IO::Socket::INET->new(LocalPort => 80, Listen => 9); "
    "print {$$l->accept} qq($$ARGV[0]\\n) while 1'"
)
"""A command that says the word after it to whoever connects to port 80. A Compose file has it by this name."""

EXTRA = "extra.yaml"
"""A file of a project with which the run is started."""

ASK = (
    "asked() { timeout 5 bash -c \"head -n 1 </dev/tcp/$1/80\" 2>&1 | grep -oE '^[a-z]+$|refused|not known|in name'; };"
)
"""Begins a text that asks a host for its word by ``asked HOST``."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A task whose services are compared.

    A start that fails is compared as well: ``local`` and ``docker`` are patterns of what each of them says then.
    """

    compose: str
    looks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Service, or USER@SERVICE → the command whose output is compared."""

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further files of the environment directory; those that begin with ``#!`` can be executed."""

    solve: str = "true"
    """What the agent runs in ``main`` before anything is looked at."""

    ends: tuple[str, ...] = ()
    """Services that end after this, and are waited for."""

    verify: str = "true"
    """What earns the reward 1, in ``main``."""

    toml: str = ""
    """Further lines of the table ``[environment]``."""

    local: str = ""
    docker: str = ""


def write_project(task_dir: Path, project: Project) -> Path:
    """Write the task of a project; return its directory."""
    builds = "environment/Dockerfile" if "Dockerfile" in project.files else ""
    image = "" if builds else f'docker_image = "{BASE}"\n'
    test_sh = f"#!/bin/bash\nif ({project.verify}); then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n"
    write_task(task_dir, toml=f"[environment]\n{image}{project.toml}\n", test_sh=test_sh)
    if not builds:
        (task_dir / "environment/Dockerfile").unlink()
    for name, text in {**project.files, "docker-compose.yaml": project.compose}.items():
        path = task_dir / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("BASE", BASE).replace("SERVE", SERVE), encoding="utf-8")
        if text.startswith("#!"):
            path.chmod(0o755)
    return task_dir
