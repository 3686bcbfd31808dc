"""Requirements on uploads and downloads."""

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path

from harbor_gym.testing.conformance.behaviours import Family, expect, expect_equal, refused
from harbor_gym.testing.conformance.probe import Probe

UPLOADS = Family[Probe]("uploads")
DOWNLOADS = Family[Probe]("downloads")

_LARGE_BYTES = 8 << 20
_ODD_NAMES = ("with space", "-dash", "quote'\"", "new\nline", "ünï", "$HOME", "a;b", "*")
_BINARY = bytes(range(256)) * 8 + b"\r\n\0\n"


async def _file(probe: Probe, content: bytes, *, name: str = "file", mode: int = 0o644) -> Path:
    path = probe.folder() / name
    await asyncio.to_thread(path.write_bytes, content)
    path.chmod(mode)
    return path


async def _download(probe: Probe, path: str) -> bytes:
    back = probe.folder() / "back"
    await probe.sandbox.download_file(path, back)
    return await asyncio.to_thread(back.read_bytes)


@UPLOADS.behaviour
async def a_file_arrives_byte_for_byte(probe: Probe) -> None:
    """``upload_file`` transfers every byte value unchanged."""
    await probe.sandbox.upload_file(await _file(probe, _BINARY), "/srv/binary")
    expect_equal(await _download(probe, "/srv/binary"), _BINARY, "the file's content")


@UPLOADS.behaviour
async def an_uploaded_file_is_what_commands_see(probe: Probe) -> None:
    """Transfers and commands share one file system."""
    await probe.sandbox.upload_file(await _file(probe, b"seen\n"), "/srv/seen")
    expect_equal(await probe.output("cat /srv/seen"), "seen", "what cat sees")


@UPLOADS.behaviour
async def a_files_folder_is_made_on_the_way(probe: Probe) -> None:
    """``upload_file`` makes the parent folders of its target."""
    await probe.sandbox.upload_file(await _file(probe, b"deep\n"), "/srv/new/deep/file")
    expect_equal(await probe.output("cat /srv/new/deep/file"), "deep", "the file's content")


@UPLOADS.behaviour
async def an_upload_overwrites(probe: Probe) -> None:
    """An existing file is replaced, also by a shorter one."""
    for content in (b"a longer first text\n", b"short\n"):
        await probe.sandbox.upload_file(await _file(probe, content), "/srv/again")
    expect_equal(await probe.output("cat /srv/again"), "short", "the file's content")


@UPLOADS.behaviour
async def an_executable_stays_one(probe: Probe) -> None:
    """``upload_file`` and ``upload_dir`` keep a file's execute permission."""
    script = await _file(probe, b"#!/bin/sh\necho ran\n", name="run.sh", mode=0o755)
    await probe.sandbox.upload_file(script, "/srv/run-file.sh")
    await probe.sandbox.upload_dir(script.parent, "/srv/run-dir")
    expect_equal(await probe.output("/srv/run-file.sh; /srv/run-dir/run.sh"), "ran\nran", "the output of the scripts")


@UPLOADS.behaviour
async def an_empty_file_arrives(probe: Probe) -> None:
    """An empty file is transferred as an empty file."""
    await probe.sandbox.upload_file(await _file(probe, b""), "/srv/empty")
    expect(await probe.sandbox.is_file("/srv/empty"), "the empty file is not there")
    expect_equal(await _download(probe, "/srv/empty"), b"", "the file's content")


@UPLOADS.behaviour
async def a_large_file_goes_there_and_back(probe: Probe) -> None:
    """Eight megabytes arrive complete in both directions."""
    content = os.urandom(_LARGE_BYTES)
    await probe.sandbox.upload_file(await _file(probe, content), "/srv/large")
    back = hashlib.sha256(await _download(probe, "/srv/large")).hexdigest()
    expect_equal(back, hashlib.sha256(content).hexdigest(), "checksum after the round trip")


@UPLOADS.behaviour
async def odd_names_are_names(probe: Probe) -> None:
    """Spaces, quotes, line feeds, leading dashes and shell characters in names have no effect, alone or in a folder."""
    source = probe.folder()
    for number, name in enumerate(_ODD_NAMES):
        (source / name).write_text(f"{number}\n", encoding="utf-8")
    await probe.sandbox.upload_dir(source, "/srv/odd names/-dir")
    back = probe.folder() / "back"
    await probe.sandbox.download_dir("/srv/odd names/-dir", back)
    expect_equal(sorted(path.name for path in back.iterdir()), sorted(_ODD_NAMES), "names after the round trip")
    odd = _ODD_NAMES[0]
    await probe.sandbox.upload_file(source / odd, f"/srv/odd names/{odd}")
    expect_equal(await _download(probe, f"/srv/odd names/{odd}"), b"0\n", "the single file's content")


@UPLOADS.behaviour
async def a_folders_contents_arrive_with_all_below(probe: Probe) -> None:
    """``upload_dir`` makes the target and puts the contents into it, with nested and empty folders."""
    source = probe.folder()
    (source / "a" / "b").mkdir(parents=True)
    (source / "nothing").mkdir()
    (source / "top").write_text("1\n", encoding="utf-8")
    (source / "a" / "b" / "leaf").write_text("2\n", encoding="utf-8")
    await probe.sandbox.upload_dir(source, "/srv/tree/of/files")
    expect_equal(await probe.output("cat top a/b/leaf", cwd="/srv/tree/of/files"), "1\n2", "contents")
    expect(await probe.sandbox.is_dir("/srv/tree/of/files/nothing"), "the empty folder is missing")


@UPLOADS.behaviour
async def an_empty_folder_arrives(probe: Probe) -> None:
    """``upload_dir`` of an empty folder makes the target."""
    await probe.sandbox.upload_dir(probe.folder(), "/srv/empty folder")
    expect(await probe.sandbox.is_dir("/srv/empty folder"), "the target is not there")


@UPLOADS.behaviour
async def a_folder_is_added_to_one_that_is_there(probe: Probe) -> None:
    """``upload_dir`` into an existing folder replaces files of the same name and leaves the others."""
    await probe.output("mkdir -p /srv/merged; echo old > /srv/merged/same; echo kept > /srv/merged/other")
    source = probe.folder()
    (source / "same").write_text("new\n", encoding="utf-8")
    await probe.sandbox.upload_dir(source, "/srv/merged")
    expect_equal(await probe.output("cat /srv/merged/same /srv/merged/other"), "new\nkept", "contents")


@UPLOADS.behaviour
async def a_link_in_a_folder_reads_as_its_target(probe: Probe) -> None:
    """A relative link in an uploaded folder is kept, or replaced by its target: it reads the same."""
    source = probe.folder()
    (source / "real").write_text("content\n", encoding="utf-8")
    (source / "link").symlink_to("real")
    await probe.sandbox.upload_dir(source, "/srv/linked")
    expect_equal(await probe.output("cat /srv/linked/link"), "content", "what the link reads as")


@UPLOADS.behaviour
async def an_upload_that_has_no_source_raises(probe: Probe) -> None:
    """``upload_file`` and ``upload_dir`` raise if the source does not exist."""
    missing = probe.folder() / "missing"
    with refused("upload_file of a missing file"):
        await probe.sandbox.upload_file(missing, "/srv/x")
    with refused("upload_dir of a missing folder"):
        await probe.sandbox.upload_dir(missing, "/srv/x")


@UPLOADS.behaviour
async def an_upload_follows_no_link_to_the_host(probe: Probe) -> None:
    """A link planted in the sandbox to a folder of the host does not make an upload write there."""
    outside = probe.folder()
    await probe.output(f"ln -sfn {outside} /srv/trap")
    with contextlib.suppress(Exception):  # to refuse is as good
        await probe.sandbox.upload_file(await _file(probe, b"x"), "/srv/trap/planted")
    expect_equal(list(outside.iterdir()), [], "files written to the host's folder")


# --- downloads -------------------------------------------------------------------------------------------------------


@DOWNLOADS.behaviour
async def a_file_comes_back_byte_for_byte(probe: Probe) -> None:
    """``download_file`` returns a file that a command wrote."""
    await probe.output(r"printf 'a\0b\377\r\n' > /srv/written")
    expect_equal(await _download(probe, "/srv/written"), b"a\0b\xff\r\n", "the file's content")


@DOWNLOADS.behaviour
async def a_download_overwrites(probe: Probe) -> None:
    """An existing file of the host is replaced, also by a shorter one."""
    await probe.output("echo short > /srv/fresh")
    target = await _file(probe, b"a longer text that was here before\n")
    await probe.sandbox.download_file("/srv/fresh", target)
    expect_equal(target.read_bytes(), b"short\n", "the file's content")


@DOWNLOADS.behaviour
async def a_folder_comes_back_with_all_below(probe: Probe) -> None:
    """``download_dir`` makes the target and puts the contents into it, with nested and empty folders and modes."""
    await probe.output("mkdir -p /srv/out/a/b /srv/out/nothing; echo 1 > /srv/out/a/b/leaf; echo 2 > /srv/out/run.sh")
    await probe.output("chmod 755 /srv/out/run.sh; chmod 644 /srv/out/a/b/leaf")
    back = probe.folder() / "made" / "on the way"
    await probe.sandbox.download_dir("/srv/out", back)
    expect_equal((back / "a" / "b" / "leaf").read_text(encoding="utf-8"), "1\n", "the leaf's content")
    expect((back / "nothing").is_dir(), "the empty folder is missing")
    expect(os.access(back / "run.sh", os.X_OK), "the script is not executable any more")


@DOWNLOADS.behaviour
async def a_downloaded_folder_is_added_to_one_that_is_there(probe: Probe) -> None:
    """``download_dir`` into an existing folder replaces files of the same name and leaves the others."""
    await probe.output("mkdir -p /srv/news; echo new > /srv/news/same")
    back = probe.folder()
    (back / "same").write_text("old\n", encoding="utf-8")
    (back / "other").write_text("kept\n", encoding="utf-8")
    await probe.sandbox.download_dir("/srv/news", back)
    expect_equal(
        [(back / name).read_text(encoding="utf-8") for name in ("same", "other")], ["new\n", "kept\n"], "contents"
    )


@DOWNLOADS.behaviour
async def a_download_without_a_source_raises(probe: Probe) -> None:
    """``download_file`` and ``download_dir`` raise if the source does not exist, and make no empty file instead."""
    back = probe.folder()
    with refused("download_file of a missing file"):
        await probe.sandbox.download_file("/no/such/file", back / "file")
    with refused("download_dir of a missing folder"):
        await probe.sandbox.download_dir("/no/such/folder", back / "folder")


@DOWNLOADS.behaviour
async def a_download_leads_to_nothing_of_the_host(probe: Probe) -> None:
    """Links planted in the sandbox to a file of the host bring back nothing of that file."""
    secret = probe.folder() / "secret"
    secret.write_text("hunter2", encoding="utf-8")
    await probe.output(f"mkdir -p /srv/bait; ln -sfn {secret} /srv/bait/link; ln -sfn {secret.parent} /srv/bait/folder")
    back = probe.folder() / "back"
    with contextlib.suppress(Exception):  # to refuse is as good
        await probe.sandbox.download_dir("/srv/bait", back)
    for path in (back / "link", back / "folder" / "secret"):
        expect(not path.exists(), f"{path.relative_to(back)} of the downloaded folder reads as {secret} of the host")
    try:
        read = await _download(probe, "/srv/bait/link")
    except Exception:  # to refuse is as good
        return
    expect_equal(read, b"", "what a downloaded link to a file of the host holds")


@DOWNLOADS.behaviour
async def a_pipe_in_a_folder_stops_no_download(probe: Probe) -> None:
    """A FIFO among the files neither blocks ``download_dir`` nor makes it lose the rest."""
    await probe.output(
        "mkdir -p /srv/piped; [ -e /srv/piped/pipe ] || mkfifo /srv/piped/pipe; echo 1 > /srv/piped/file"
    )
    back = probe.folder() / "back"
    await probe.sandbox.download_dir("/srv/piped", back)
    expect_equal((back / "file").read_text(encoding="utf-8"), "1\n", "the file's content")


@DOWNLOADS.behaviour
async def a_download_can_leave_files_out(probe: Probe) -> None:
    """``download_dir_with_exclusions``, by which Harbor collects artifacts, skips the files that match the patterns."""
    await probe.output("mkdir -p /srv/some/cache; echo 1 > /srv/some/file; echo 2 > /srv/some/cache/big")
    back = probe.folder() / "back"
    back.mkdir()
    await probe.sandbox.download_dir_with_exclusions(source_dir="/srv/some", target_dir=back, exclude=["cache"])
    expect_equal((back / "file").read_text(encoding="utf-8"), "1\n", "the file's content")
    expect(not (back / "cache").exists(), "what was excluded came along")


@DOWNLOADS.behaviour
async def is_file_and_is_dir_tell_kinds_apart(probe: Probe) -> None:
    """``is_file`` and ``is_dir`` tell files, folders and missing paths apart, with any name."""
    await probe.output("mkdir -p '/srv/kinds/a dir'; echo x > \"/srv/kinds/it's a file\"")
    for path, file, folder in (
        ("/srv/kinds/a dir", False, True),
        ("/srv/kinds/it's a file", True, False),
        ("/srv/kinds/missing", False, False),
    ):
        found = (await probe.sandbox.is_file(path), await probe.sandbox.is_dir(path))
        expect_equal(found, (file, folder), f"is_file and is_dir of {path!r}")
