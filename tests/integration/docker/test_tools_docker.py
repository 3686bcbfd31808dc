"""A tmux for containers of images without one."""

import subprocess
import uuid
from pathlib import Path

import pytest

from harbor_gym.errors import TerminalStartError
from harbor_gym.terminal.tools import ensure_tmux
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE, write_task
from tests.integration.docker.test_docker import started
from tests.integration.local.test_tools import BUSYBOX

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NO_BASH = BUSYBOX.replace("busybox-static\n", "busybox-static bash-static\n")  # so that both have one first stage
WITH_BASH = NO_BASH.replace("COPY", "COPY --from=packages /bin/bash-static /bin/bash\nCOPY")
NO_TMUX = f"FROM {BASE}\nRUN rm -f /usr/bin/tmux && useradd --create-home dev\n"


@pytest.fixture(autouse=True)
def _docker() -> None:
    require_engine("docker")
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)


@pytest.fixture
def name() -> str:
    return f"hgtest-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("dockerfile", [NO_TMUX, WITH_BASH], ids=["no tmux", "busybox and bash"])
async def test_a_container_gets_a_tmux(tmp_path: Path, name: str, dockerfile: str) -> None:
    task = write_task(tmp_path / "task", dockerfile=dockerfile)
    async with started(task, name) as sandbox:
        tools = await ensure_tmux(sandbox, user="dev")
        assert tools is not None
        tmux = f"{tools}/tmux -S /tmp/socket -f /dev/null"
        script = f"""
            {tmux} new-session -d -s main 'echo é漢; read line; echo "got $line"; sleep 100'
            {tmux} send-keys -t main ünï Enter
            for i in $(seq 100); do
                {tmux} capture-pane -p -t main | grep 'got ü' && break
                sleep 0.1
            done
            {tmux} kill-server
        """
        shown = await sandbox.exec(script, user="dev")
        assert (shown.stdout or "").strip() == "got ünï"
        assert await ensure_tmux(sandbox) == tools


async def test_a_container_that_harbor_itself_cannot_use(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "task", dockerfile=NO_BASH)
    async with started(task, name) as sandbox:
        with pytest.raises(TerminalStartError, match=r"can't run a command at all.*install one") as caught:
            await ensure_tmux(sandbox)
        assert "\n" not in str(caught.value)
