"""Trees of files that change while they are sent."""

import os
import socket
from pathlib import Path

import pytest

from harbor_gym.sandboxes.archive.trees.records import END, Allowance, Stream
from harbor_gym.sandboxes.archive.trees.sending import Sender


def test_a_link_that_became_a_file_before_it_was_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "swapped").write_text("a file by now")
    (tmp_path / "link").symlink_to("nowhere")
    was_link, real_stat = (tmp_path / "link").lstat(), os.stat

    def look(path: bytes, **options: object) -> os.stat_result:
        return was_link if path == b"swapped" else real_stat(path, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]

    near, far = socket.socketpair()
    handle = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with near, far, monkeypatch.context() as patch:
            patch.setattr("harbor_gym.sandboxes.archive.trees.sending.os.stat", look)
            Sender(Stream(near.fileno()), Allowance(1000)).send_tree(handle)
            assert Stream(far.fileno()).receive().kind == END
    finally:
        os.close(handle)
