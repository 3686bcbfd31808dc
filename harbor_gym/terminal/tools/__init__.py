"""The host's tmux and bash for images without them or with too old a tmux, installed without a network."""

import re
import secrets
from typing import TYPE_CHECKING

from harbor_gym._runtime.shell_text import QUIET, Marked
from harbor_gym.errors import TerminalStartError
from harbor_gym.terminal.sandbox_exec import lost_for_all_else, run_in_sandbox
from harbor_gym.terminal.tools.bundle import Bundle, BundleError, ensure_bundle

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

MIN_TMUX = (3, 1)
"""The oldest tmux that the terminal's scripts can work with: the first with a pane's path, which shows prompts."""

_PLACES = ("/run", "/opt", "/var/tmp")
"""Places for the tools' directory, tried in order: an environment's upload may miss a file system mounted over one."""

_EXEC_TIMEOUT_SEC = 60
_VERSION = re.compile(r"(\d+)\.(\d+)")


async def ensure_tmux(environment: "BaseEnvironment", *, user: str | int | None = None) -> str | None:
    """Make sure that the sandbox has a tmux of at least :data:`MIN_TMUX` and a bash, for a session of ``user``.

    A missing program is copied from the host into a directory of its own. The image's files, its PATH and its libraries
    stay as they are, and programs that were installed before are used again.

    Returns:
        The directory with ``tmux`` or ``bash`` or both, whichever the image lacks: call them by their path, or put it
        first on PATH. None: the image's own are fine.

    Raises:
        TerminalStartError: The host's programs would not run in this sandbox, or can't be copied there.
        SandboxLostError: The sandbox is gone.
        SandboxTimeoutError: The sandbox did not answer.
    """
    user = user if user is not None else environment.default_user
    machine, missing = await _probe(environment, user)
    if not missing:
        return None
    try:
        bundle = await ensure_bundle()
        if machine != bundle.machine:
            raise BundleError(f"the sandbox's processor is {machine or 'unknown'}, and the host's {bundle.machine}")
        return await _install(environment, bundle, list(missing))
    except (BundleError, OSError) as error:
        lacks = " and ".join(missing.values())
        raise TerminalStartError(
            f"No terminal in sandbox {environment.session_id!r}: the image has {lacks}, and none can be brought along "
            f"from the host: {error}. Install {' and '.join(missing)} in the task's environment/Dockerfile "
            f"(Debian: `RUN apt-get update && apt-get install -y {' '.join(missing)}`)."
        ) from error


def path_prefix(tools: str | None) -> str:
    """Return the beginning of a shell command that finds the tools of :func:`ensure_tmux` before the image's own."""
    return f'PATH="{tools}:$PATH"; ' if tools else ""


async def _probe(environment: "BaseEnvironment", user: str | int | None) -> tuple[str, dict[str, str]]:
    """Return the processor, and each missing tool with a description of the image's."""
    nonce = f"@{secrets.token_hex(8)}"
    command = f'printf "{nonce} %s\\n" "$(uname -m)" "$(tmux -V 2>/dev/null)" "$(command -v bash)"'
    answer = await _run(environment, command, user, "look for tmux")
    found = [line.removeprefix(nonce).strip() for line in answer.splitlines() if line.startswith(nonce)]
    if len(found) != 3:
        # Harbor's Docker environment, for one, runs every command with the image's own bash.
        raise TerminalStartError(
            f"No terminal in sandbox {environment.session_id!r}: it can't run a command at all: "
            f"{' '.join(answer.split())[-300:]!r}. If it has no bash, install one in the task's environment/Dockerfile."
        )
    machine, version, bash = found
    missing: dict[str, str] = {}
    if not version:
        missing["tmux"] = "no tmux"
    elif (numbers := _VERSION.search(version)) and tuple(map(int, numbers.groups())) < MIN_TMUX:
        missing["tmux"] = f"{version} (at least {MIN_TMUX[0]}.{MIN_TMUX[1]} is needed)"
    if not bash:
        missing["bash"] = "no bash"
    return machine, missing


async def _install(environment: "BaseEnvironment", bundle: Bundle, tools: list[str]) -> str:
    """Install ``tools``, unless they are already there; return their directory."""
    problem = ""
    for place in _PLACES:
        directory = f"{place}/.tmux-tools-{bundle.name}"
        # tmux checks its locale before it prints its version.
        calls = " && ".join(f"{directory}/{tool} {'-V' if tool == 'tmux' else '--version'}" for tool in tools)
        check = f"{calls} && echo works"
        state = await _run(
            environment,
            f"( {check} ) 2>/dev/null || {{ mkdir -p {directory} && echo made; }} 2>&1",
            "root",
            "make a directory",
        )
        if state.endswith("works"):
            return directory
        if state.endswith("made"):
            await _upload(environment, bundle, f"{directory}/install")
            script = f"{{ sh {directory}/install {' '.join(tools)} && {check} || rm -rf {directory}; }} 2>&1"
            state = await _run(environment, script, "root", "install tmux")
            if state.endswith("works"):
                return directory
        problem = state
    raise BundleError(" ".join(problem.split())[-300:])


async def _upload(environment: "BaseEnvironment", bundle: Bundle, target: str) -> None:
    with lost_for_all_else(environment, f"take the file {target}"):
        await environment.upload_file(bundle.path, target)


async def _run(environment: "BaseEnvironment", command: str, user: str | int | None, purpose: str) -> str:
    marked = Marked(command)
    result = await run_in_sandbox(
        environment, marked.command, timeout_sec=_EXEC_TIMEOUT_SEC, user=user, purpose=purpose, env=QUIET
    )
    return marked.output(result.stdout or "").strip()
