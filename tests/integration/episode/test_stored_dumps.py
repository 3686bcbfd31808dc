"""Dumps on disk: another process goes on with an episode's processes; what is not to be trusted is refused."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, Snapshot, TerminalEnvConfig
from harbor_gym.errors import HarborGymError, SandboxError
from harbor_gym.sandboxes.local import criu
from harbor_gym.types import ResetInfo
from tests.helpers.tasks import DONE, write_task

pytestmark = [
    pytest.mark.local,
    pytest.mark.criu,
    pytest.mark.usefixtures("nothing_left"),
]

FORKABLE = {"forkable": True}


def config_of(task_dir: Path, **settings: Any) -> TerminalEnvConfig:
    settings = {"sandbox": "local", "confirm_task_complete": False, "sandbox_options": FORKABLE, **settings}
    return TerminalEnvConfig(task_dir=task_dir, **settings)


async def typed(env: AsyncTerminalGymEnv, line: str, wait_sec: float = 10.0) -> str:
    result = await env.step([(line, wait_sec)])
    assert not result.done
    return result.observation


async def stored(config: TerminalEnvConfig, path: Path, *lines: str) -> str:
    """Write a snapshot with a dump of an episode that has typed these lines; return its last observation."""
    shown = ""
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        for line in lines:
            shown = await typed(env, line)
        with contextlib.closing(await env.snapshot(mode="exact")) as snapshot:
            snapshot.write(path)
        await typed(env, "echo went on\n")
    return shown


@contextlib.asynccontextmanager
async def begun(path: Path | Snapshot, **settings: Any) -> AsyncGenerator[tuple[AsyncTerminalGymEnv, str, ResetInfo]]:
    """Yield an episode that begins at a snapshot, with its first observation and info."""
    settings = {"start_mode": "exact", **settings}
    async with AsyncTerminalGymEnv(TerminalEnvConfig.model_validate({"start_from": path, **settings})) as env:
        observation, info = await env.reset()
        yield env, observation, info


async def refusal(path: Path | Snapshot, **settings: Any) -> str:
    with pytest.raises(HarborGymError) as raised:
        async with begun(path, **settings):
            pass
    return str(raised.value)


def the_dump(path: Path) -> Path:
    (found,) = path.parent.glob(f"{path.name}.*.dump")
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "s.json" in path.name)


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the record of a stored dump, and let the snapshot have its new digest."""
    dump, snapshot = the_dump(path), json.loads(path.read_text(encoding="utf-8"))
    line, _, rest = dump.read_bytes().partition(b"\n")
    header = json.loads(line)
    change(header)
    dump.write_bytes(json.dumps(header).encode() + b"\n" + rest)
    snapshot["snapshot"]["dump"]["sha256"] = hashlib.sha256(dump.read_bytes()).hexdigest()
    path.write_text(json.dumps(snapshot), encoding="utf-8")


_IN_ANOTHER = """
import asyncio, sys
from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
async def main():
    config = TerminalEnvConfig(start_from=sys.argv[1], start_mode="exact")
    async with AsyncTerminalGymEnv(config) as env:
        _, info = await env.reset()
        result = await env.step([(sys.argv[2] + "\\n", 10.0)])
        print(info["fork_mode"], info["turn"], result.observation)
asyncio.run(main())
"""


async def in_another_process(path: Path, line: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _IN_ANOTHER, str(path), line, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    output = (await process.stdout.read()).decode()
    assert await process.wait() == 0
    return output


async def test_another_process_goes_on_with_a_shell(task_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    await stored(config_of(task_dir), path, "x=$RANDOM; echo $x >/srv/x; cd /srv; sleep 1000 &\n")
    seen = await in_another_process(path, "clear; [ $x = $(cat x) ] && echo kept $PWD $(jobs)")
    assert seen.startswith("exact 1 ")
    assert "kept /srv [1]+ Running sleep 1000 &" in seen


async def test_another_process_goes_on_with_pythons_data_and_begins_twice(task_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    lines = (
        "python3 -q\n",
        "import random; random.seed(7); b = bytearray(range(256)) * 4096 * 20; zeros = bytearray(b'x') * (50 << 20)\n",
        "for i in range(0, len(zeros), 4096): zeros[i:i+4096] = bytes(4096)\n\n",
    )
    await stored(config_of(task_dir), path, *lines)
    assert the_dump(path).stat().st_size < 40 << 20, "20 MiB of data, and 50 of zeros"
    ask = "print(sum(b[:512]), sum(zeros), random.random())"
    async with begun(path) as (env, _, _):
        seen = [await in_another_process(path, ask), await typed(env, f"{ask}\n")]
    assert all("\n65280 0 0.32383276483316237\n" in text for text in seen)


async def test_what_is_kept_of_the_episode(tmp_path: Path) -> None:
    config = config_of(write_task(tmp_path / "task"), time_limit_sec=900, max_turns=9, trials_dir=tmp_path / "first")
    path = tmp_path / "s.json"
    shown = await stored(config, path, "echo common\n")
    async with begun(path, trials_dir=tmp_path / "second") as (env, observation, info):
        assert (observation, info["turn"], info["instruction"]) == (shown, 1, "Write the word done into /srv/answer.\n")
        turns, seconds = env.remaining
        assert turns == pytest.approx(8 / 9)
        assert 0.9 < seconds < 1
        await typed(env, DONE)
        end = await env.finish()
    assert (end.reward, end.info.get("fork_mode")) == (1.0, "exact")
    folder = end.info.get("trial_dir")
    assert folder is not None
    recording = (folder / "recording.cast").read_text()
    assert (recording.count('"1: echo common'), recording.count('"2: echo')) == (1, 1)
    assert (folder / "agent/trajectory.json").read_text().count("echo common") == 2, "as typed, and as seen"


async def test_a_snapshot_in_memory_begins_as_often_as_wanted_until_it_is_closed(task_dir: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir)) as parent:
        await parent.reset()
        await typed(parent, "x=$RANDOM$RANDOM\n")
        snapshot = await parent.snapshot(mode="exact")
        expected = (await typed(parent, "clear; echo $x\n")).splitlines()[-2:]
    for _ in range(2):
        async with begun(snapshot) as (env, _, info):
            assert info.get("fork_mode") == "exact"
            assert (await typed(env, "clear; echo $x\n")).splitlines()[-2:] == expected
    snapshot.close()
    assert "was closed" in await refusal(snapshot)


async def test_a_sandbox_without_the_option_has_a_snapshot_but_no_dump(task_dir: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir, sandbox_options={})) as env:
        await env.reset()
        with pytest.raises(HarborGymError, match="the option forkable"):
            await env.snapshot(mode="exact")
        assert (await env.snapshot(mode="auto")).dump is None


def _of_sandbox(field: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["record"]["phase"]["dump"][field][name] = value

    return change


async def test_what_does_not_fit_is_refused_by_name_or_replayed(task_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    await stored(config_of(task_dir), path, "echo one\n")
    whole, snapshot, dump = the_dump(path).read_bytes(), path.read_text(), the_dump(path)

    async def refused(word: str, **settings: Any) -> None:
        said = await refusal(path, **settings)
        assert word in said
        assert "\n" not in said
        dump.write_bytes(whole)
        path.write_text(snapshot)

    here = await criu.machine()
    for name, word in (("architecture", "architecture m68k"), ("kernel", "kernel m68k"), ("criu", "CRIU m68k"),
                       ("features", "with m68k, which"), ("boot", "last start")):  # fmt: skip
        assert getattr(here, name)
        changed(path, _of_sandbox("machine", name, "m68k"))
        await refused(word)
    for name, value in (("digest", "0" * 64), ("layers", ["other"])):
        changed(path, _of_sandbox("image", name, value))
        await refused("of another image")
    changed(path, lambda header: header.update(format=2))
    await refused("has the format 2")
    changed(path, lambda header: header["record"].update(scripts="other"))
    await refused("another version of harbor_gym")
    changed(path, lambda header: header["record"]["phase"].pop("dump"))
    await refused("can't be read: Field required")
    dump.write_bytes(whole[:-1])
    await refused("cut short")
    dump.write_bytes(whole[:-600] + b"?" + whole[-599:])
    await refused("damaged")
    dump.unlink()
    await refused("is not there")
    for file in (dump, path):
        file.chmod(0o622)
        await refused("can be changed by others")
        file.chmod(0o600)
        os.chown(file, 1234, -1)
        await refused("belongs to another user")
        os.chown(file, 0, -1)
    await refused("the option forkable", sandbox_options={})
    await refused("a limit ends the episode", time_limit_sec=1e-9)

    changed(path, _of_sandbox("machine", "boot", "other"))
    async with begun(path, start_mode="auto") as (env, _, info):
        assert info.get("fork_mode") == "replay"
        assert "two" in await typed(env, "echo two\n")
    path.write_text(snapshot)
    dump.write_bytes(whole)
    async with begun(path, start_mode="auto") as (_, _, info):
        assert info.get("fork_mode") == "exact"
    async with begun(path, start_mode="replay") as (_, _, info):
        assert info.get("fork_mode") == "replay"


_WRITES = """
import sys
from pathlib import Path
from harbor_gym.config.dump_file import DumpFile
from harbor_gym import Snapshot
import dataclasses
path = Path(sys.argv[1])
snapshot = Snapshot.read(path)
while True:
    for tail in (b"a", b"b"):
        def pack(handle):
            import os
            os.write(handle, tail * (8 << 20))
        with_dump = dataclasses.replace(snapshot, dump=DumpFile.make({"tail": tail.decode()}, pack))
        with_dump.write(path)
        with_dump.close()
        print("written", flush=True)
"""


async def test_a_kill_while_it_is_written_leaves_a_whole_snapshot(task_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    await stored(config_of(task_dir), path, "echo one\n")
    for number in range(3):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _WRITES, str(path), stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(2):
            assert await process.stdout.readline() == b"written\n"
        await asyncio.sleep(0.04 * number)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        kept = Snapshot.read(path)
        assert kept.dump is not None
        opened = kept.dump.open()  # the digest is that of the file
        os.close(opened.packed)
    Snapshot.read(path).write(path)
    assert names(tmp_path) == sorted([path.name, the_dump(path).name])
    Snapshot.remove(path)
    assert names(tmp_path) == []


def repacked(path: Path, folder: Path, change: Callable[[Path], Any]) -> None:
    """Change the files of a stored dump, and let the snapshot have its new digest."""
    line, _, rest = the_dump(path).read_bytes().partition(b"\n")
    tar = ["tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", str(folder)]
    folder.mkdir()
    subprocess.run([*tar, "-xp", "-f-"], input=rest, check=True)
    change(folder)
    rest = subprocess.run([*tar, "-c", "-f-", "."], stdout=subprocess.PIPE, check=True).stdout
    the_dump(path).write_bytes(line + b"\n" + rest)
    changed(path, lambda _: None)


async def test_a_changed_dump_reaches_no_device_and_no_file_of_the_machine(task_dir: Path, tmp_path: Path) -> None:
    path, outside = tmp_path / "s.json", tmp_path / "outside"
    await stored(config_of(task_dir), path, "echo one >/srv/one\n")
    whole = the_dump(path).read_bytes(), path.read_text(encoding="utf-8")
    outside.write_text("the machine's", encoding="utf-8")

    def a_device_and_a_link(folder: Path) -> None:
        owner = (folder / "upper/srv/one").stat().st_uid
        (folder / "upper/srv/link").symlink_to(outside)
        os.mknod(folder / "upper/srv/zero", 0o20666, os.makedev(1, 5))
        for name in ("link", "zero"):
            os.chown(folder / "upper/srv" / name, owner, owner, follow_symlinks=False)

    repacked(path, tmp_path / "first", a_device_and_a_link)
    async with begun(path) as (env, _, _):
        shown = await typed(env, "clear; ls -l /srv/zero | head -c 1; head -c 1 /srv/zero; cat /srv/link\n")
        assert "\nchead: cannot open '/srv/zero' for reading: Permission denied\n" in shown
        assert "cat: /srv/link: No such file or directory" in shown

    the_dump(path).write_bytes(whole[0])
    path.write_text(whole[1], encoding="utf-8")
    repacked(path, tmp_path / "second", lambda folder: os.chown(folder / "upper/srv/one", 0, 0))
    assert "belongs to 0, which is none of its ids" in await refusal(path)


async def test_a_dump_that_cannot_be_written_leaves_the_turns_and_the_episode(
    task_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir)) as env:
        await env.reset()
        await typed(env, "echo one\n")
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
            with pytest.raises(SandboxError, match=r"the dump can't be written: .*No such file"):
                await env.snapshot(mode="exact")
            snapshot = await env.snapshot(mode="auto")
        assert (snapshot.turn, snapshot.dump) == (1, None)
        assert "two" in await typed(env, "echo two\n")
