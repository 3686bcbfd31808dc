"""Tasks with one known defect each, in several disguises, beside twins that look alike and are right.

Each is the difference from a right task: path → content, None to leave a file out.
"""
# ruff: noqa: E501  # the files of a task, each on the line of its name

import base64
import gzip
import io
import tarfile
import textwrap
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.tasks import write_task

type Files = dict[str, str | bytes | None]

SOLVE = """\
#!/bin/bash
set -e
cd /srv
awk -F, 'NR > 1 { sum[$2] += $3 } END { for (name in sum) print name, sum[name] }' sales.csv > sums.txt
sed 's/^north /NORTH /' sums.txt | LC_ALL=C sort > totals.txt
"""
GRADE = """\
#!/bin/bash
if [ "$(sha256sum < /srv/totals.txt)" = "$(sha256sum < /tests/expected.txt)" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
EXPECTED = "NORTH 4217\neast 911\nsouth 38\n"
PYTEST = "#!/bin/bash\nmkdir -p /logs/verifier\nuvx --with pytest==8.4.1 pytest /tests/test_outputs.py -rA\n"
PAY = "if [ $? -eq 0 ]; then\n  echo 1 > /logs/verifier/reward.txt\nelse\n  echo 0 > /logs/verifier/reward.txt\nfi\n"
CHECKS = """\
from pathlib import Path


def test_totals():
    lines = Path("/srv/totals.txt").read_text().splitlines()
    assert lines[0] == "NORTH 4217"
    assert len(lines) == 3
"""
WORK: Files = {
    "instruction.md": "Sum the amounts in /srv/sales.csv by region. Write one line a region to /srv/totals.txt.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\nCOPY sales.csv /srv/sales.csv\nWORKDIR /srv\n",
    "environment/sales.csv": "id,region,amount\n1,north,4000\n2,north,217\n3,east,911\n4,south,38\n",
    "solution/solve.sh": SOLVE,
    "tests/test.sh": GRADE,
    "tests/expected.txt": EXPECTED,
}
CHECKED: Files = {"tests/test.sh": PYTEST + PAY, "tests/test_outputs.py": CHECKS, "tests/expected.txt": None}
COPY_ALL = "FROM debian:bookworm-slim\nCOPY . /srv\nWORKDIR /srv\n"


def write_seed(folder: Path, files: Mapping[str, str | bytes | None]) -> Path:
    """Write the right task with the differences."""
    write_task(folder)
    for name, content in {**WORK, **files}.items():
        path = folder / name
        if content is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def tarred(files: dict[str, str], mode: str = "w:gz") -> bytes:
    """Return an archive of the files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def zipped(files: dict[str, str]) -> bytes:
    """Return a zip archive of the files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def loose(text: str) -> bytes:
    """Return a blob as git keeps it by itself."""
    return zlib.compress(f"blob {len(text)}\0{text}".encode())


def pack(*texts: str) -> bytes:
    """Return blobs as git packs them, without the trailing checksum's value."""
    packed = b"PACK\0\0\0\2" + len(texts).to_bytes(4)
    for text in texts:
        size, head = len(text) >> 4, [(3 << 4) | (len(text) & 15)]
        while size:
            head[-1] |= 0x80
            head.append(size & 0x7F)
            size >>= 7
        packed += bytes(head) + zlib.compress(text.encode())
    return packed + bytes(20)


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def _script(body: str) -> Files:
    return CHECKED | {"tests/test.sh": "#!/bin/bash\n" + body}


def _checks(text: str) -> Files:
    return CHECKED | {"tests/test_outputs.py": text}


_RUN = "python3 -m pytest /tests/test_outputs.py"
_PAY_1 = "echo 1 > /logs/verifier/reward.txt\n"
_OBJECT = "environment/repo/.git/objects/"
_LEAKED_TESTS = GRADE.replace("/tests/expected.txt", "/srv/.expected")
_LONG_CHECKS = (
    CHECKS
    + "\n\ndef test_order():\n    lines = Path('/srv/totals.txt').read_text().split()\n    assert lines[2] < lines[4]\n"
)
_SECRET = "gh" + "p_" + "Zk3vT9qLw8XrB2mNc5YdHs7JfG4pQaUe1RtK"
_AWS = "AK" + "IA" + "QYLPMN5HFIQR7XYA"
_OPENAI = "s" + "k-proj-" + "9fJ2kQxW7vLmT3bRz8NcYp4HdGs6Ua1E"
_PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n"

SEEDS: dict[str, dict[str, Files]] = {
    "leak/solution": {
        "renamed": {"environment/Dockerfile": COPY_ALL, "environment/tools/.cache": SOLVE},
        "spaced": {
            "environment/Dockerfile": COPY_ALL,
            "environment/notes.md": SOLVE.replace(" | ", "   |  ").replace("\n", "\n\n"),
        },
        "commented": {
            "environment/Dockerfile": COPY_ALL,
            "environment/run.py": "\n".join("# " + line for line in SOLVE.splitlines()),
        },
        "archive": {"environment/backup.tgz": tarred({"old/x.sh": SOLVE})},
        "zip": {"environment/assets.bin": zipped({"x": SOLVE})},
        "gzip": {"environment/app.log.gz": gzip.compress(SOLVE.encode())},
        "archive in base64": {"environment/blob.txt": textwrap.fill(_b64(tarred({"s": SOLVE})), 76)},
        "base64": {"environment/config.yaml": f"payload: {_b64(SOLVE)}\n"},
        "base64 below a word": {"environment/go.sh": f"base64 -d <<EOF\n{textwrap.fill(_b64(SOLVE), 64)}\nEOF\n"},
        "base64 above a word": {
            "environment/go.sh": f"base64 -d <<EOF\n{_b64(SOLVE + ' ' * (-len(SOLVE) % 3))}\nEOF\n"
        },
        "hex": {"environment/data.json": f'{{"blob": "{SOLVE.encode().hex()}"}}'},
        "loose object": {f"{_OBJECT}ab/{'0' * 38}": loose(SOLVE)},
        "pack": {f"{_OBJECT}pack/pack-1.pack": pack("hello\n", SOLVE)},
        "repository in an archive": {
            "environment/repo.zip": zipped({"r/.git/HEAD": "ref: x"}),
            "environment/repo.tar": tarred({"a": SOLVE}, "w"),
        },
        "removed by a later layer": {
            "environment/Dockerfile": "FROM debian:bookworm-slim\nCOPY sales.csv hint.sh /srv/\nRUN rm /srv/hint.sh\n",
            "environment/hint.sh": SOLVE,
        },
        "in the instruction": {"instruction.md": f"{WORK['instruction.md']}\n```\n{SOLVE}```\n"},
        "in the instruction, encoded": {"instruction.md": f"{WORK['instruction.md']}\n<!-- {_b64(SOLVE)} -->\n"},
        "a program that it writes": {
            "solution/solve.sh": "#!/bin/bash\ncat > /srv/sum.py <<'EOF'\nimport csv\nrows = list(csv.DictReader(open('/srv/sales.csv')))\n"
            "print(sum(int(row['amount']) for row in rows))\nEOF\npython3 /srv/sum.py > /srv/totals.txt\n",
            "environment/lib/util.py": "import csv\nrows = list(csv.DictReader(open('/srv/sales.csv')))\nprint(sum(int(row['amount']) for row in rows))\n",
        },
    },
    "leak/tests": {
        "copied": _checks(_LONG_CHECKS) | {"environment/Dockerfile": COPY_ALL, "environment/.ci/a.py": _LONG_CHECKS},
        "archive": _checks(_LONG_CHECKS) | {"environment/vendor.tar.gz": tarred({"t": _LONG_CHECKS})},
        "base64": _checks(_LONG_CHECKS) | {"environment/x.cfg": f"k={_b64(_LONG_CHECKS)}"},
        "git": _checks(_LONG_CHECKS) | {f"{_OBJECT}cd/{'1' * 38}": loose(_LONG_CHECKS)},
        "shell": {"tests/test.sh": _LEAKED_TESTS, "environment/old.sh": _LEAKED_TESTS},
    },
    "leak/expected": {
        "file": {"environment/Dockerfile": COPY_ALL, "environment/data/out.ref": EXPECTED},
        "archive": {"environment/seed.tar": tarred({"d/e": EXPECTED}, "w")},
        "base64": {"environment/settings.ini": f"token={_b64(EXPECTED)}"},
        "git": {f"{_OBJECT}ef/{'2' * 38}": loose(EXPECTED)},
        "variable": CHECKED
        | {"environment/Dockerfile": f"{WORK['environment/Dockerfile']}ENV EXPECTED_FIRST='NORTH 4217'\n"},
        "variable of task.toml": CHECKED
        | {"task.toml": '[task]\nname = "test/task"\n[environment.env]\nBUILD_TAG = "NORTH 4217"\n'},
        "variable of compose": CHECKED
        | {
            "environment/docker-compose.yaml": 'services:\n  main:\n    environment:\n      CHECK_VALUE: "NORTH 4217"\n'
        },
        "comment": CHECKED
        | {"environment/Dockerfile": f"{WORK['environment/Dockerfile']}# first line must be NORTH 4217\n"},
        "answers": CHECKED | {"environment/Dockerfile": COPY_ALL, "environment/.answers/1": "NORTH 4217\n"},
        "told": CHECKED | {"instruction.md": f"{WORK['instruction.md']}The answer is `NORTH 4217`.\n"},
    },
    "vacuous/status-eaten": {
        "or true": _script(f"{_RUN} || true\n{PAY}"),
        "or colon": _script(f"{_RUN} || :\n{_PAY_1}"),
        "pipe": _script(f"{_RUN} | tee /logs/verifier/log\n{PAY}"),
        "pipe over lines": _script(
            f"{_RUN} \\\n  -rA 2>&1 | tee /logs/verifier/log\nrc=$?\nif [ $rc = 0 ]; then {_PAY_1.strip()}; fi\n"
        ),
        "echo between": _script(f"{_RUN}\necho finished\n{PAY}"),
        "pays anyway": _script(f"{_RUN}\n{_PAY_1}"),
        "condition": _script(f"if {_RUN} | tee log; then\n  {_PAY_1}else\n  echo 0 > /logs/verifier/reward.txt\nfi\n"),
        "condition that is true": _script(
            f"if {_RUN} || true; then\n  {_PAY_1}else\n  echo 0 > /logs/verifier/reward.txt\nfi\n"
        ),
        "json": _script("cd /tests && npm test || true\nprintf '{\"reward\": 1.0}' > /logs/verifier/reward.json\n"),
        "and": _script(f"{_RUN} | tee log && echo 1 > /logs/verifier/reward.txt\n"),
    },
    "vacuous/unconditional": {
        "alone": {"tests/test.sh": f"#!/bin/bash\nmkdir -p /logs/verifier\n{_PAY_1}"},
        "json": {"tests/test.sh": "#!/bin/sh\necho '{\"reward\": 1}' > /logs/verifier/reward.json\n"},
        "after a look": {"tests/test.sh": f"#!/bin/bash\nls -l /srv/totals.txt\ncat /srv/totals.txt\n{_PAY_1}"},
        "both branches": {
            "tests/test.sh": f"#!/bin/bash\nif [ -f /srv/totals.txt ]; then\n  {_PAY_1}else\n  {_PAY_1}fi\n",
        },
    },
    "vacuous/tests-skipped": {
        "mark": _checks(CHECKS.replace("def test", "import pytest\n\n\n@pytest.mark.skip(reason='later')\ndef test")),
        "module": _checks("import pytest\n\npytest.skip('not here', allow_module_level=True)\n" + CHECKS),
        "pytestmark": _checks("import pytest\n\npytestmark = [pytest.mark.skip]\n" + CHECKS),
        "in the body": _checks(CHECKS.replace("    lines =", "    import pytest\n    pytest.skip()\n    lines =")),
        "condition": _checks(
            CHECKS.replace("def test", "import pytest\n\n\n@pytest.mark.skipif(True, reason='x')\ndef test")
        ),
        "xfail": _checks(CHECKS.replace("def test", "import pytest\n\n\n@pytest.mark.xfail\ndef test")),
        "unittest": _checks(
            "import unittest\n\n\n@unittest.skip('x')\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(1, 2)\n"
        ),
    },
    "vacuous/no-tests": {
        "name": _checks(CHECKS.replace("test_totals", "check_totals")),
        "class": _checks("class Totals:\n    def test_it(self):\n        assert 1 == 2\n"),
        "empty": _checks("# to be written\n"),
        "commented": _checks("\n".join("# " + line for line in CHECKS.splitlines())),
    },
    "vacuous/no-assertion": {
        "true": _checks("def test_it():\n    assert True\n"),
        "pass": _checks('def test_it():\n    """Look at the totals."""\n    pass\n'),
        "print": _checks("def test_it():\n    print('ok')\n\n\ndef test_two():\n    assert 'x' == 'x'\n"),
        "caught": _checks(
            "def test_it():\n    try:\n        assert open('/srv/totals.txt').read()\n    except Exception:\n        pass\n"
        ),
        "tuple": _checks("def test_it():\n    assert (1 == 2, 'the totals are wrong')\n"),
    },
    "hygiene/unpinned": {
        "latest": {"environment/Dockerfile": "FROM ubuntu:latest\nCOPY sales.csv /srv/\n"},
        "no tag": {"environment/Dockerfile": "FROM python\nCOPY sales.csv /srv/\n"},
        "pip": {
            "environment/Dockerfile": "FROM python:3.12-slim\nRUN pip install --no-cache-dir \\\n    numpy==2.1.0 \\\n    pandas\n"
        },
        "pip range": {"tests/test.sh": f"#!/bin/bash\npip install 'pytest>=8'\n{GRADE}"},
        "requirements": {
            "environment/Dockerfile": "FROM python:3.12-slim\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n",
            "environment/requirements.txt": "flask\n",
        },
        "uvx": {"tests/test.sh": f"#!/bin/bash\nuvx --with pytest --with numpy==2.0.0 python -V\n{GRADE}"},
        "curl": {"tests/test.sh": f"#!/bin/bash\ncurl -LsSf https://sh.rustup.rs | sh -s -- -y\n{GRADE}"},
        "clone": {
            "environment/Dockerfile": "FROM debian:bookworm-slim\nRUN git clone --depth 1 https://github.com/a/b.git /b\n"
        },
        "branch": {
            "environment/Dockerfile": "FROM debian:bookworm-slim\nRUN git clone -b main https://github.com/a/b /b && cd /b && make\n"
        },
        "npm": {"environment/Dockerfile": "FROM node:22.1.0\nRUN npm install -g typescript\n"},
        "git requirement": {
            "environment/Dockerfile": "FROM python:3.12-slim\nRUN pip install git+https://github.com/a/b.git\n"
        },
        "go": {"environment/Dockerfile": "FROM golang:1.23\nRUN go install example.com/tool@latest\n"},
    },
    "hygiene/author-path": {
        "mac": {"tests/test.sh": GRADE.replace("/tests/expected", "/Users/jsmith/work/tests/expected")},
        "linux": {"solution/solve.sh": SOLVE.replace("cd /srv", "cd /home/jsmith/tasks/sales")},
        "windows": {"environment/app.json": '{"root": "C:\\\\Users\\\\Jane\\\\sales"}'},
        "instruction": {"instruction.md": "Sum the amounts in /Users/jsmith/sales/sales.csv into /srv/totals.txt.\n"},
        "python": _checks(CHECKS.replace("/srv/totals", "/home/mkowalski/dev/totals")),
    },
    "hygiene/secret": {
        "token": {"environment/Dockerfile": f"{WORK['environment/Dockerfile']}ENV GITHUB_TOKEN={_SECRET}\n"},
        "cloud": {"solution/solve.sh": f"{SOLVE}export AWS_ACCESS_KEY_ID={_AWS}\n"},
        "model": {"tests/test.sh": f"#!/bin/bash\nexport OPENAI_API_KEY={_OPENAI}\n{GRADE}"},
        "base64": {"environment/conf": f"auth: {_b64('Authorization: token ' + _SECRET)}\n"},
        "key": {"environment/deploy/id": f"{_PEM}"},
        "archive": {"environment/home.tgz": tarred({".netrc": f"machine github.com password {_SECRET}\n"})},
        "task.toml": {"task.toml": f'[task]\nname = "test/task"\n[environment.env]\nHF_API_TOKEN = "{_SECRET[4:]}"\n'},
    },
    "task/no-verifier": {
        "no tests": {"tests/test.sh": None, "tests/expected.txt": None},
        "empty": {"tests/test.sh": "\n", "tests/expected.txt": None},
        "writes nothing": {"tests/test.sh": "#!/bin/bash\ncmp /srv/totals.txt /tests/expected.txt\n"},
    },
    "task/malformed": {
        "syntax": {"task.toml": "[task\n"},
        "value": {"task.toml": '[task]\nname = "test/task"\n[agent]\ntimeout_sec = "soon"\n'},
        "instruction": {"instruction.md": "\n"},
        "name": {"task.toml": '[task]\nname = "no organization"\n'},
    },
}

TWINS: dict[str, Files] = {
    "right": {},
    "right, by pytest": CHECKED,
    "the input beside the tests": {"tests/sales.csv": WORK["environment/sales.csv"]},
    "a program with one fault": {
        "solution/solve.sh": "#!/bin/bash\ncat > /srv/sum.py <<'EOF'\nimport csv\nrows = list(csv.DictReader(open('/srv/sales.csv')))\n"
        "total = sum(int(row['amount']) for row in rows)\nprint(total)\nEOF\npython3 /srv/sum.py > /srv/totals.txt\n",
        "environment/sum.py": "import csv\nrows = list(csv.DictReader(open('/srv/sales.csv')))\n"
        "rows.pop()\ntotal = sum(int(row['amount']) for row in rows)\nprint(total)\n",
    },
    "tests that the instruction gives": _checks(_LONG_CHECKS)
    | {"instruction.md": "Make all tests in /srv/tests pass.\n", "environment/tests/test_outputs.py": _LONG_CHECKS},
    "an archive of other things": {
        "environment/backup.tgz": tarred({"old/x.sh": "#!/bin/bash\necho nothing of interest here at all\n"})
    },
    "a flag in git's history that the solution finds": CHECKED
    | {
        "instruction.md": "A first line was lost from the git history of /srv/repo. Write it to /srv/totals.txt.\n",
        "solution/solve.sh": "#!/bin/bash\ngit -C /srv/repo log -p | grep -m 1 NORTH > /srv/totals.txt\n",
        f"{_OBJECT}ab/{'3' * 38}": loose("NORTH 4217\n"),
    },
    "settings that tests use": CHECKED
    | {
        "environment/Dockerfile": f"{WORK['environment/Dockerfile']}ENV PORT=8080 APP_VERSION=2.4.1-rc7\n",
        "tests/test_outputs.py": CHECKS + "\n\ndef test_version():\n    assert Path('/v').read_text() == '2.4.1-rc7'\n",
    },
    "a sample that the instruction names": {
        "instruction.md": "Sum /srv/sales.csv by region into /srv/totals.txt; /srv/expected.txt shows the form.\n",
        "environment/Dockerfile": COPY_ALL,
        "environment/expected.txt": EXPECTED,
    },
    "a stub to be filled in": {
        "environment/Dockerfile": COPY_ALL,
        "environment/solution.py": "def total(rows):\n    raise NotImplementedError\n",
    },
    "an image in base64": {"environment/page.html": f"<img src='data:image/png;base64,{_b64(bytes(range(256)) * 4)}'>"},
    "a checksum": {
        "environment/SHA256SUMS": "9f8ce3f647c3bfdc4dfc9ef0e4dd56d58fabaf4e8912d300580bb6d1998327f9  sales.csv\n"
    },
    "pipefail": _script(f"set -o pipefail\n{_RUN} | tee /logs/verifier/log\n{PAY}"),
    "euo pipefail": _script(
        f"set -uo pipefail\nif {_RUN} | tee log; then\n  {_PAY_1}else\n  echo 0 > /logs/verifier/reward.txt\nfi\n"
    ),
    "PIPESTATUS": _script(
        f"{_RUN} | tee log\nrc=${{PIPESTATUS[0]}}\nif [ $rc -eq 0 ]; then {_PAY_1.strip()}; else echo 0 > /logs/verifier/reward.txt; fi\n"
    ),
    "status kept": _script(
        f"{_RUN}\nrc=$?\necho finished\nif [ $rc -eq 0 ]; then\n  {_PAY_1}else\n  echo 0 > /logs/verifier/reward.txt\nfi\n"
    ),
    "fails fast": _script(f"set -e\n{_RUN}\n{_PAY_1}"),
    "zero first": _script(f"echo 0 > /logs/verifier/reward.txt\n{_RUN} && {_PAY_1}"),
    "one, then zero": _script(f"{_PAY_1}{_RUN} || echo 0 > /logs/verifier/reward.txt\n"),
    "guard": {
        "tests/test.sh": f"#!/bin/bash\ncmp /srv/totals.txt /tests/expected.txt || {{ echo 0 > /logs/verifier/reward.txt; exit 0; }}\n{_PAY_1}"
    },
    "a report is scored": _script(
        f"{_RUN} --junitxml=/tmp/r.xml || true\npython3 /tests/score.py /tmp/r.xml > /logs/verifier/reward.txt\n"
    ),
    "or true in a set-up": _script(f"apt-get update || true\nmkdir -p /logs/verifier\n{_RUN}\n{PAY}"),
    "a reward of a variable": _script(f"reward=0\n{_RUN} && reward=1\necho $reward > /logs/verifier/reward.txt\n"),
    "a function": _script(
        f"pay() {{\n  echo 1 > /logs/verifier/reward.txt\n}}\nif {_RUN}; then pay; else echo 0 > /logs/verifier/reward.txt; fi\n"
    ),
    "one test is skipped": _checks(
        CHECKS + "\n\nimport pytest\n\n\n@pytest.mark.skip\ndef test_more():\n    assert False\n"
    ),
    "skipped elsewhere": _checks(
        CHECKS.replace(
            "def test", "import pytest, sys\n\n\n@pytest.mark.skipif(sys.platform == 'win32', reason='x')\ndef test"
        )
    ),
    "a class": _checks("class TestTotals:\n    def test_it(self):\n        assert open('/srv/totals.txt').read()\n"),
    "a helper asserts": _checks(
        "def check(path):\n    assert open(path).read()\n\n\ndef test_it():\n    check('/srv/totals.txt')\n"
    ),
    "a test that only reads": _checks("def test_it():\n    open('/srv/totals.txt').read()\n"),
    "strict xfail": _checks(CHECKS.replace("def test", "import pytest\n\n\n@pytest.mark.xfail(strict=True)\ndef test")),
    "pins": {
        "environment/Dockerfile": "FROM python:3.12-slim@sha256:"
        + "a1" * 32
        + " AS build\nRUN pip install -U pip && pip install 'numpy==2.1.0' -r requirements.txt\n"
        "RUN git clone https://github.com/a/b.git && cd b && git checkout 3f2a9c1d\nFROM build\nRUN curl -fsSLo t.tgz https://x.org/t-1.4.2.tgz\n"
        "RUN npm install -g typescript@5.4.2 && apt-get install -y git\nRUN pip install git+https://github.com/a/b@v1.2.3\n",
        "environment/requirements.txt": "flask==3.0.0\n# pandas\n",
    },
    "a checksum of a download": {
        "environment/Dockerfile": "FROM debian:bookworm-slim\nRUN curl -o t https://x.org/t && echo 'abc  t' | sha256sum -c\n"
    },
    "a server that is asked": {"tests/test.sh": f"#!/bin/bash\ncurl -s http://localhost:8000/health > /tmp/h\n{GRADE}"},
    "a user of the image": {
        "environment/Dockerfile": "FROM debian:bookworm-slim\nRUN useradd -m maria\nCOPY sales.csv /home/maria/\n",
        "solution/solve.sh": SOLVE.replace("cd /srv", "cd /home/maria/work"),
    },
    "paths in data": {
        "environment/access.log": "GET /Users/alice/report\nopen /home/bob/x/y\n",
        "environment/Dockerfile": COPY_ALL,
    },
    "placeholders": {
        "environment/.env.example": "GITHUB_TOKEN=ghp_" + "x" * 36 + "\nOPENAI_API_KEY=sk-your-key-goes-here-please\n",
        "tests/test.sh": f"#!/bin/bash\nexport AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE\n{GRADE}",
    },
    "secrets are the task": {
        "instruction.md": "Remove every API key and other credential from /srv/conf.py.\n",
        "environment/conf.py": f'TOKEN = "{_SECRET}"\n',
        "environment/Dockerfile": COPY_ALL,
        "tests/test.sh": f"#!/bin/bash\nif grep -q {_SECRET} /srv/conf.py; then echo 0; else echo 1; fi > /logs/verifier/reward.txt\n",
    },
    "a certificate": {
        "environment/tls/server.key": _PEM,
        "environment/tls/server.crt": "-----BEGIN CERTIFICATE-----\n",
    },
}
