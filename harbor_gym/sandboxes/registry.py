"""Sandboxes by name: the values of ``--env`` and ``TerminalEnvConfig.sandbox``, and the check before a start."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime import harbor_versions, rootless
from harbor_gym._runtime.cache import require_cache
from harbor_gym._runtime.disks import require_temporary
from harbor_gym._runtime.errors import HarborGymError, MissingDependencyError, UsageError
from harbor_gym.sandboxes.extensions import SupportsSharedSetup

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment
    from harbor.models.trial.config import EnvironmentConfig

LOCAL = "local"
"""Name of the sandbox that needs no daemon."""

_LOCAL_IMPORT_PATH = "harbor_gym.sandboxes.local.environment:LocalEnvironment"
_DOCKER_IMPORT_PATH = "harbor_gym.sandboxes.docker.environment:DockerEnvironment"
APPTAINER = "apptainer"
"""Name of the sandbox for machines without Docker and users without root."""

_APPTAINER_IMPORT_PATH = "harbor_gym.sandboxes.apptainer.environment:ApptainerEnvironment"
_OWN = {LOCAL: _LOCAL_IMPORT_PATH, "docker": _DOCKER_IMPORT_PATH, APPTAINER: _APPTAINER_IMPORT_PATH}
"""Name → class of this package."""

_NAMES = {path: name for name, path in _OWN.items()}
_PROGRAMS = {"singularity": "singularity", "sbx": "sbx"}
"""Name of Harbor's → the program that it starts without looking for it first."""

_PROBE_TIMEOUT_SEC = 20
"""Generous for ``docker compose version``: a daemon that starts many containers answers slowly."""


def sandbox_names() -> list[str]:
    """Return every name that :func:`environment_config` accepts, those of this package first, then Harbor's."""
    from harbor.models.environment_type import EnvironmentType

    return [LOCAL, APPTAINER, *sorted(kind.value for kind in EnvironmentType)]


def environment_config(name: str, *, options: Mapping[str, Any] | None = None) -> EnvironmentConfig:
    """Return Harbor's configuration of a sandbox by its name. Starts no sandbox.

    Args:
        name: ``local``, ``apptainer``, a Harbor environment type (``docker``, ``daytona``, …), or
            ``module.path:Class``.
        options: Keyword arguments for the sandbox's class (Harbor's ``environment.kwargs``).

    Raises:
        UsageError: There is no such name, or this package's class has no such option; the message lists near matches.
    """
    from harbor.models.environment_type import EnvironmentType
    from harbor.models.trial.config import EnvironmentConfig

    kwargs = dict(options or {})
    if name in _OWN:
        _check_options(name, kwargs)
        return EnvironmentConfig(import_path=_OWN[name], kwargs=kwargs)
    if ":" in name:
        return EnvironmentConfig(import_path=name, kwargs=kwargs)
    try:
        kind = EnvironmentType(name)
    except ValueError:
        raise UsageError(_unknown_name(name)) from None
    return EnvironmentConfig(type=kind, kwargs=kwargs)


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Read a sandbox's options from a command line, ``NAME=VALUE`` each.

    Args:
        texts: A value that is JSON is parsed (a number, true, a list); any other is text.

    Raises:
        UsageError: One has no name, or two have the same.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"a sandbox option is NAME=VALUE, got {text!r}")
        if name in options:
            raise UsageError(f"the sandbox option {name} is given twice")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def takes_setup(name: str) -> bool:
    """Return whether a sandbox's class takes a ``setup_command``, which it may run once for many sandboxes."""
    return name in _OWN or name in _NAMES


def shares_setup(name: str, started: BaseEnvironment) -> bool:
    """Return whether a started sandbox uses files that its ``setup_command`` wrote once for many sandboxes."""
    return takes_setup(name) and (not isinstance(started, SupportsSharedSetup) or started.shares_setup)


_passed: set[str] = set()
"""The sandbox types that passed :func:`preflight` in this process; a failure is not remembered."""


def has_passed(name: str) -> bool:
    """Return whether sandboxes of this name passed their checks in this process."""
    return name in _passed


def preflight(config: EnvironmentConfig) -> None:
    """Check that a sandbox of this kind can start here: keys, optional packages, daemons. Starts nothing.

    Blocks for as long as the kind's own checks take (``docker info``, 0.1 s); call it outside the event loop.

    Raises:
        MissingDependencyError: A package, a program or a daemon that the kind needs is missing.
        UsageError: A setting is missing (an API key), the import path leads nowhere, or the cache that our own
            sandboxes need, or TMPDIR, can't be written to.
    """
    from harbor.environments.factory import EnvironmentFactory

    require_temporary()
    if config.import_path in _NAMES:  # Harbor's own sandboxes keep nothing there
        require_cache()
    label = sandbox_name(config)
    if (program := _PROGRAMS.get(label)) is not None and shutil.which(program) is None:
        raise MissingDependencyError(f"sandbox {label!r}: the program {program} is not installed")
    try:
        harbor_versions.run_preflight(config)
        EnvironmentFactory.validate_resource_policies(config)
    except HarborGymError:
        raise
    except ImportError as exc:
        raise MissingDependencyError(f"sandbox {label!r}: {_one_line(exc)}") from exc
    except (SystemExit, ValueError, TypeError, AttributeError) as exc:
        kind = MissingDependencyError if label == "docker" else UsageError
        asked = exc.__context__  # Harbor takes each failure of Docker's client for a daemon that does not run
        said = os.fsdecode(asked.stderr or b"") if isinstance(asked, subprocess.CalledProcessError) else ""
        why = ": ".join(filter(None, rootless.docker_refusal(said)))
        raise kind(f"sandbox {label!r}: {why or _one_line(exc)}") from exc
    _require_extra(label)
    if label == "docker":
        _require_compose()
    _passed.add(label)


def sandbox_name(config: EnvironmentConfig) -> str:
    """Return the name by which :func:`environment_config` returns a configuration of this kind."""
    if config.import_path in _NAMES:
        return _NAMES[config.import_path]
    if config.import_path is not None:
        return config.import_path
    return config.type.value if config.type is not None else "docker"


def _unknown_name(name: str) -> str:
    names = sandbox_names()
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return f"no sandbox is called {name!r}; {hint} (a class of your own: module.path:Class)"


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse unknown options of a class: Harbor's base class accepts and ignores any option."""
    if not options:
        return
    path, _, class_name = _OWN[name].partition(":")
    kind = getattr(importlib.import_module(path), class_name)
    own: set[str] = set(kind.own_options.model_fields)
    known = own | {
        parameter.name
        for base in inspect.getmro(kind)
        if "__init__" in vars(base)
        for parameter in inspect.signature(base.__init__).parameters.values()
        if parameter.name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    for option in sorted(set(options) - known):
        near = difflib.get_close_matches(option, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"its own are {', '.join(sorted(own))}"
        raise UsageError(f"sandbox {name!r} has no option {option!r}; {hint}")


def _one_line(exc: BaseException) -> str:
    """Return the exception's message on one line; of alternative install commands only the first."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    install = re.search(r"pip install '?([^' ]+)'?", text)
    if isinstance(exc, ImportError) and install:
        return f'it needs an optional package: pip install "{install[1]}"'
    return text


def _require_extra(label: str) -> None:
    """Check that the extra of Harbor with this name, if there is one, is installed.

    Some of Harbor's environments check that only after a trial has begun.
    """
    for requirement in importlib.metadata.requires("harbor") or []:
        if not re.search(rf"""extra == ['"]{re.escape(label)}['"]""", requirement):
            continue
        package = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise MissingDependencyError(
                f'sandbox {label!r}: it needs the package {package}: pip install "harbor[{label}]"'
            ) from None


def _require_compose() -> None:
    """Check that the Docker client has Compose v2, with which Harbor runs every Docker sandbox."""
    try:
        done = subprocess.run(
            ["docker", "compose", "version", "--short"], capture_output=True, check=False, timeout=_PROBE_TIMEOUT_SEC
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise MissingDependencyError(f"sandbox 'docker': `docker compose version` did not answer: {exc}") from exc
    if done.returncode != 0:
        raise MissingDependencyError(
            "sandbox 'docker': the Docker client has no Compose v2 (`docker compose version` fails); install "
            "docker-compose-v2 (Ubuntu), docker-compose (Debian 13) or docker-compose-plugin (Docker's own packages)"
        )
