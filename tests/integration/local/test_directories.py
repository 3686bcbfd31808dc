"""Harbor's five calls about directories answer as its own shell commands would, on any files of a policy."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment

from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

_TREE = """\
mkdir -p /srv/full/deep/er /srv/own /srv/target
touch /srv/full/deep/er/file /srv/full/.hidden /srv/file /srv/target/kept
ln -s target /srv/link; ln -s /srv/nothing /srv/dangling; ln -s loop /srv/loop; mkfifo /srv/pipe; chmod 700 /srv/own
ln -s /srv /short; touch /srv/own/file; ln -s /proc/self/fd/1 /srv/magic
chmod 750 /srv/full; chown dev /srv/full
"""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A sandbox with a tree of all kinds of files."""
    async with running(make_sandbox(tmp_path / "sandbox")) as made:
        await output(made, _TREE)
        yield made


_PATHS = (
    *("/", "/srv", "/srv/file", "/srv/link", "/srv/link/kept", "/srv/dangling", "/srv/loop", "/srv/pipe", "/srv/own"),
    *(
        "/srv/own/file",
        "/short/file",
        "/short/../short/link/..",
        "/srv/none",
        "/srv/file/",
        "relative",
        ".",
        "/dev/null",
    ),
)


async def test_looking_answers_as_test_does(sandbox: LocalEnvironment) -> None:
    for path in _PATHS:
        for user in ("root", "dev", None):
            found = (await sandbox.is_dir(path, user), await sandbox.is_file(path, user))
            harbors = (
                await BaseEnvironment.is_dir(sandbox, path, user),
                await BaseEnvironment.is_file(sandbox, path, user),
            )
            assert found == harbors, (path, user)
    with pytest.raises(SandboxError, match="'nobody-known'"):
        await sandbox.is_dir("/srv", "nobody-known")


_SHOW = "cd /srv && find . -printf '%P %y %m %u %l\\n' | sort; stat -c '%a %U' /short/target"
_CALLS = {
    "ensure": {"dirs": ["/srv/a/b", "/srv/link/c", "/short/d", "/srv/full"]},
    "ensure as the user": {"dirs": ["/srv/full/mine/too"], "chmod": False},
    "empty": {"dirs": ["/srv/full", "/srv/file", "/srv/link", "/srv/dangling", "/srv/new/one", "/srv/pipe"]},
    "empty and keep modes": {"dirs": ["/srv/full", "/srv/own", "/short/new"], "chmod": False},
    "reset": {
        "remove_dirs": ["/srv/full", "/srv/link", "/srv/none", "/srv/file", "/short/own"],
        "create_dirs": ["/srv/full/new", "/srv/target"],
        "chmod_dirs": ["/srv/full", "/short/target"],
    },
}


@pytest.mark.parametrize("call", _CALLS)
async def test_what_is_made_is_what_harbors_commands_make(tmp_path: Path, call: str) -> None:
    seen: list[tuple[str, int]] = []
    for kind in (LocalEnvironment, BaseEnvironment):
        async with running(make_sandbox(tmp_path / kind.__name__)) as sandbox:
            await output(sandbox, _TREE)
            with sandbox.with_default_user("dev"):
                method = getattr(kind, f"{call.split()[0]}_dirs")
                result = await method(sandbox, **_CALLS[call])
            seen.append((await output(sandbox, _SHOW, user="root"), result.return_code))
    assert seen[0] == seen[1]


async def test_nothing_that_is_asked_for_is_nothing(sandbox: LocalEnvironment) -> None:
    assert await sandbox.ensure_dirs([]) is None
    assert await sandbox.empty_dirs([]) is None


_REFUSED = {
    "ensure_dirs": {"dirs": ["/home/dev/away/new", "/srv/more"]},
    "empty_dirs": {"dirs": ["/home/dev/away/kept", "/srv/more"]},
    "reset_dirs": {"remove_dirs": ["/home/dev/away/kept"], "create_dirs": ["/srv/more"]},
}


@pytest.mark.parametrize("call", _REFUSED)
async def test_root_goes_nowhere_that_an_ordinary_user_sends_it(sandbox: LocalEnvironment, call: str) -> None:
    await output(sandbox, "ln -s /etc ~/away", user="dev")
    await output(sandbox, "mkdir /etc/kept; touch /etc/kept/file")
    result = await getattr(sandbox, call)(**_REFUSED[call])
    assert result.return_code == 1
    assert "link away" in result.stderr
    assert await output(sandbox, "ls /etc/kept; ls -d /etc/new 2>/dev/null || :; stat -c %a /etc/kept") == "file\n755"


async def test_a_link_of_proc_or_one_without_end_leads_nowhere(sandbox: LocalEnvironment) -> None:
    for name in ("magic", "loop"):
        result = await sandbox.ensure_dirs([f"/srv/{name}/reached"])
        assert result is not None
        assert result.return_code == 1
    assert await output(sandbox, "ls -d /srv/*/reached 2>/dev/null || :") == ""


async def test_the_view_is_where_they_work_while_it_is_there(sandbox: LocalEnvironment) -> None:
    await sandbox.enter_verifier_view([])
    await sandbox.ensure_dirs(["/srv/in the view"])
    assert (await sandbox.is_dir("/srv/in the view"), await sandbox.is_dir("/srv/full")) == (True, False)
    await sandbox.leave_verifier_view()
    assert (await sandbox.is_dir("/srv/in the view"), await sandbox.is_dir("/srv/full")) == (False, True)
