"""No folder of the repository holds more files than a reader keeps in mind."""

import subprocess
from collections import Counter
from pathlib import PurePosixPath

from tests.helpers.paths import ROOT

MOST = 15


def test_no_folder_has_more_than_fifteen_files() -> None:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    files = Counter(str(PurePosixPath(path).parent) for path in listed)
    del files["."]  # what belongs at the top is fixed
    assert len(files) > 100, "the repository's folders"
    assert {folder: count for folder, count in files.items() if count > MOST} == {}
