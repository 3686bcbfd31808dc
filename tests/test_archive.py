"""What is packed for a sandbox, without one."""

import tarfile
from pathlib import Path

from harbor_gym.sandboxes import archive


def test_a_packed_directory_says_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "nested" / "empty").mkdir(parents=True)
    (tmp_path / "nested" / "file").write_text("x")
    (tmp_path / "link").symlink_to("nested/file")
    with archive.pack(tmp_path) as packed, tarfile.open(fileobj=packed) as tar:
        members = {member.name: member for member in tar}
    # With an entry for ".", unpacking would hand the target, a user's home perhaps, to root.
    assert set(members) == {"nested", "nested/empty", "nested/file", "link"}
    assert members["link"].issym()
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
