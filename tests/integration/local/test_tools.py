"""A tmux for images without one: real sandboxes of images that lack it, have an old one, or have busybox alone."""

import shlex
from pathlib import Path

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import TerminalStartError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.terminal import open_terminal, tools
from harbor_gym.terminal.tools import bundle, ensure_tmux
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.sandboxes.terminal_environments import enter

pytestmark = pytest.mark.local

DEBIAN = "FROM debian:bookworm-slim\n"
NO_TMUX = f"{DEBIAN}RUN rm -f /usr/bin/tmux && useradd --create-home dev\n"
BUSYBOX = """\
FROM debian:bookworm-slim AS packages
RUN apt-get update && apt-get install -y --no-install-recommends busybox-static
FROM scratch
COPY --from=packages /bin/busybox /bin/busybox
RUN ["/bin/busybox", "sh", "-c", "/bin/busybox --install -s /bin && mkdir -p /etc /root /tmp && chmod 1777 /tmp \
&& echo root:x:0:0:root:/root:/bin/sh >/etc/passwd && echo dev:x:1000:1000:dev:/tmp:/bin/sh >>/etc/passwd"]
"""
IMAGES = {
    "no tmux": (NO_TMUX, ["tmux"]),
    "old tmux": (f"{NO_TMUX}RUN printf '#!/bin/sh\\necho tmux 3.0a\\n' >/bin/tmux && chmod +x /bin/tmux\n", ["tmux"]),
    "no bash": (f"{DEBIAN}RUN rm -f /bin/bash && useradd --create-home dev\n", ["bash"]),
    "no locale": (f"{NO_TMUX}RUN rm -rf /usr/lib/locale\n", ["tmux"]),
    "no terminfo": (f"{NO_TMUX}RUN rm -rf /lib/terminfo /usr/share/terminfo /etc/terminfo\n", ["tmux"]),
    "busybox": (BUSYBOX, ["bash", "tmux"]),
}  # fmt: skip


async def talk(sandbox: LocalEnvironment, tmux: str, user: str) -> str:
    """Let a program in a pane of ``tmux`` answer; return the screen."""
    server = f"env -i PATH=/usr/bin:/bin LC_ALL=C {tmux} -S /tmp/socket-{user} -f /dev/null"
    program = 'printf \'é漢😀 %s\\n\' "$PATH"; read line; echo "got $line"; sleep 100'
    script = f"""
        await() {{
            for i in $(seq 100); do
                screen=$({server} capture-pane -p -t main)
                case $screen in *"$1"*) return ;; esac
                sleep 0.1
            done
        }}
        {server} new-session -d -s main -x 80 -y 10 sh -c {shlex.quote(program)} || exit 1
        await 'é漢'
        {server} send-keys -t main 'ünï' Enter
        await 'got ü'
        {server} kill-server
        printf '%s\\n' "$screen"
    """
    return await output(sandbox, script, user=user)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("user", ["root", "dev"])
async def test_what_is_missing_is_brought_along(tmp_path: Path, image: str, user: str) -> None:
    dockerfile, missing = IMAGES[image]
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile)) as sandbox:
        before = await output(sandbox, "find / -xdev -path '*tmux-tools*' -prune -o -type f -print | sort | md5sum")
        directory = await ensure_tmux(sandbox, user=user)
        assert directory is not None
        found = await output(sandbox, f"ls {directory}")
        assert [tool for tool in ("bash", "tmux") if tool in found.split()] == missing
        tmux = f"{directory}/tmux" if "tmux" in missing else "tmux"
        screen = await talk(sandbox, tmux, user)
        # Wide characters, typed text, and the image's own PATH: nothing is lost and nothing added.
        assert screen.split("\n")[0].split() == ["é漢😀", "/usr/bin:/bin"]
        assert "got ünï" in screen
        if "bash" in missing:
            script = "x=(a é); echo ${#x[1]} $BASH"
            printed = await output(sandbox, f"LC_ALL=C.UTF-8 {directory}/bash -c {shlex.quote(script)} 2>&1", user=user)
            assert printed == f"1 {directory}/bash"
        after = await output(sandbox, "find / -xdev -path '*tmux-tools*' -prune -o -type f -print | sort | md5sum")
        assert after == before


async def test_a_session_has_the_hosts_tmux_where_the_images_is_old(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=IMAGES["old tmux"][0])) as sandbox:
        terminal = await open_terminal(sandbox, TerminalConfig())
        turn = await enter(terminal, "tmux -V; (exit 3)\n")
        assert (turn.waits, turn.exit_code) == (("prompt",), 3)
        assert "\ntmux 3.0a\n" in turn.text, "the policy has the image's"
        await terminal.close()


@pytest.mark.parametrize("user", [None, "dev"])
async def test_a_good_image_is_left_alone(tmp_path: Path, user: str | None) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=f"{DEBIAN}RUN useradd dev\n")) as sandbox:
        assert await ensure_tmux(sandbox, user=user) is None
        assert await output(sandbox, "find / -xdev -name '*tmux-tools*'") == ""


async def test_what_was_brought_along_is_used_again(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=NO_TMUX)) as sandbox:
        first = await ensure_tmux(sandbox)
        inode = await output(sandbox, f"stat -c %i {first}/tmux")
        assert await ensure_tmux(sandbox, user="dev") == first
        assert await output(sandbox, f"stat -c %i {first}/tmux") == inode


async def test_another_place_where_the_first_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_PLACES", ("/proc", "/dev/null", "/opt"))
    async with running(make_sandbox(tmp_path, dockerfile=NO_TMUX)) as sandbox:
        assert (await ensure_tmux(sandbox) or "").startswith("/opt/.tmux-tools-")


async def test_what_does_not_work_is_brought_again(tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=NO_TMUX)) as sandbox:
        first = await ensure_tmux(sandbox)
        await output(sandbox, f"rm {first}/lib/libc.so.6")
        assert await ensure_tmux(sandbox) == first
        assert await output(sandbox, f"{first}/tmux -V")


# --- missing programs are reported in one line ----------------------------------------------------------------------


async def refusal(sandbox: LocalEnvironment) -> str:
    with pytest.raises(TerminalStartError) as caught:
        await ensure_tmux(sandbox)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("No terminal in sandbox 'test__env': the image has no tmux")
    assert "apt-get install -y tmux" in message
    return message


async def test_another_processor(tmp_path: Path) -> None:
    dockerfile = f"{NO_TMUX}RUN printf '#!/bin/sh\\necho riscv64\\n' >/usr/bin/uname\n"
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile)) as sandbox:
        assert "the sandbox's processor is riscv64, and the host's " in await refusal(sandbox)


async def test_nowhere_to_put_it(tmp_path: Path) -> None:
    dockerfile = f"{NO_TMUX}RUN rm /usr/bin/head\n"
    async with running(make_sandbox(tmp_path, dockerfile=dockerfile)) as sandbox:
        assert "head: not found" in await refusal(sandbox)
        assert await output(sandbox, "find / -xdev -name '*tmux-tools*'") == ""


async def test_a_host_without_tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(make_sandbox(tmp_path, dockerfile=NO_TMUX)) as sandbox:
        monkeypatch.setenv("PATH", str(tmp_path))
        bundle.find_content.cache_clear()
        try:
            assert "none can be brought along from the host: the host has no tmux either" in await refusal(sandbox)
            (tmp_path / "tmux").write_text("#!/bin/sh\n")
            (tmp_path / "tmux").chmod(0o755)
            assert f"the host's {tmp_path}/tmux is no program but a script" in await refusal(sandbox)
        finally:
            bundle.find_content.cache_clear()


async def test_the_bundle_is_made_once() -> None:
    first = await bundle.ensure_bundle()
    made = first.path.stat().st_mtime_ns
    again = await bundle.ensure_bundle()
    assert (again, again.path.stat().st_mtime_ns) == (first, made)
