"""Bases made for official images: of which release, with which Python, from which mirror; and one made for real."""

from pathlib import Path

import pytest

from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.sandboxes.images import official_images
from tests.helpers.bases import DEBIAN, UBUNTU, Mirror, apt_mirrors, ensure_base_tar, offline_base, provide
from tests.helpers.engines import require_engine
from tests.helpers.registries.image_registry import UNREACHABLE, in_place_of_docker_io
from tests.helpers.sandboxes.local import make_sandbox, output, running


@pytest.mark.parametrize(
    ("reference", "full", "is_official"),
    [
        ("debian:12", "docker.io/library/debian:12", True),
        ("ubuntu", "docker.io/library/ubuntu", True),
        ("python:3.11-slim", "docker.io/library/python:3.11-slim", True),
        ("docker.io/library/debian:12@sha256:00", "docker.io/library/debian:12@sha256:00", True),
        ("debian@sha256:00", "docker.io/library/debian@sha256:00", True),
        ("debian-like:1", "docker.io/library/debian-like:1", False),
        ("library/debian:12", "docker.io/library/debian:12", True),
        ("public.ecr.aws/docker/library/debian:12", "public.ecr.aws/docker/library/debian:12", True),
        ("mirror.gcr.io/library/python:3.11", "mirror.gcr.io/library/python:3.11", True),
        ("public.ecr.aws/me/library/debian:12", "public.ecr.aws/me/library/debian:12", False),
        ("quay.io/docker/library/debian:12", "quay.io/docker/library/debian:12", False),
        ("me/debian", "docker.io/me/debian", False),
        ("localhost/debian", "localhost/debian", False),
        ("quay.io:443/x/y:1", "quay.io:443/x/y:1", False),
    ],
)
def test_short_references_are_spelled_out(reference: str, full: str, is_official: bool) -> None:
    assert official_images.full_reference(reference) == full
    assert (official_images.base_name(reference) is not None) is is_official


@pytest.mark.parametrize(
    ("reference", "suite"),
    [
        ("debian:12", "bookworm"),
        ("debian:12.5-slim", "bookworm"),
        ("debian:bookworm-20240101-slim", "bookworm"),
        ("debian:12@sha256:00", "bookworm"),
        ("debian:13", "trixie"),
        ("debian:trixie-slim", "trixie"),
        ("debian", "trixie"),
        ("debian:stable-slim", "trixie"),
        ("ubuntu:22.04", "jammy"),
        ("ubuntu:jammy-20240111", "jammy"),
        ("ubuntu:24.04", "noble"),
        ("docker.io/library/ubuntu:noble", "noble"),
        ("ubuntu:latest", "noble"),
    ],
)
def test_a_base_is_of_the_same_release(reference: str, suite: str) -> None:
    base = offline_base(reference)
    assert (base.release.suite, base.is_python) == (suite, False)
    assert base.name.startswith(f"{suite}-")
    assert base.description == f"{base.release.distribution.name} {base.release.version}"


@pytest.mark.parametrize(
    ("reference", "suite", "is_slim"),
    [
        ("python:3.11", "bookworm", False),
        ("python:3.11-slim", "bookworm", True),
        ("python:3.11.9-slim-bookworm", "bookworm", True),
        ("python:3.11-bookworm", "bookworm", False),
        ("python:3.13-slim-trixie", "trixie", True),
        ("python:3.12", "noble", False),
        ("python:3.10-slim", "jammy", True),
        ("python:3-slim", "trixie", True),
        ("python:slim-bookworm", "bookworm", True),
        ("python:slim", "trixie", True),
        ("python", "trixie", False),
    ],
)
def test_a_base_for_python_has_that_python(reference: str, suite: str, is_slim: bool) -> None:
    base = offline_base(reference)
    assert (base.release.suite, base.is_python, base.is_slim) == (suite, True, is_slim)
    assert f"Python {base.release.python}" in base.description
    assert ("git" in base.packages) is not is_slim


@pytest.mark.parametrize(
    "reference",
    [
        "debian:11", "debian:sid", "debian@sha256:00", "debian:1", "debian:120", "ubuntu:20.04", "ubuntu:12",
        "python:3.9", "python:3.12-slim-bookworm", "python:2.7", "python:3.11-alpine", "python:3.1", "alpine:3",
        "me/debian:12",
    ],
)  # fmt: skip
def test_no_base_is_made_for_another_release(reference: str) -> None:
    with pytest.raises(UsageError, match=r"ubuntu:22\.04, python:3\.13"):
        offline_base(reference)


def test_every_recipe_has_a_name_of_its_own() -> None:
    references = ("debian:12", "debian:13", "ubuntu:24.04", "python:3.11", "python:3.11-slim", "python:3.13")
    assert len({offline_base(reference).name for reference in references}) == len(references)


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        ("debian:12", "debian-12"),
        ("docker.io/library/debian:12", "debian-12"),
        ("public.ecr.aws/docker/library/debian:12", "debian-12"),
        ("library/debian:12", "debian-12"),
        ("debian", "debian-latest"),
        ("debian:latest", "debian-latest"),
        ("python:3.12-slim", "python-3.12-slim"),
        ("debian:12@sha256:0a", "debian-12-sha256-0a"),
    ],
)
def test_a_base_has_the_name_of_one_image_however_that_is_spelled(reference: str, tag: str) -> None:
    assert official_images.base_name(reference) == f"localhost/harbor-gym-base:{tag}"


@pytest.mark.parametrize("reference", ["alpine:3", "me/debian:12", "quay.io/library/debian:12"])
def test_other_images_have_no_base(reference: str) -> None:
    assert official_images.base_name(reference) is None


# --- mirrors ----------------------------------------------------------------------------------------------------------


def test_both_kinds_of_apt_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://off bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://one/debian bookworm main contrib # x\n"
        "deb-src http://src bookworm main\n"
    )
    (tmp_path / "sources.list.d" / "two.sources").write_text(
        "Types: deb deb-src\n# a remark\nURIs: http://two/debian http://three/debian\nSuites: trixie trixie-updates\n"
        "Components: main\nSigned-By: /two.gpg\n\nTypes: deb\nURIs: http://off\nSuites: x\nEnabled: no\n"
    )
    one, two, three = apt_mirrors(tmp_path)
    assert one == Mirror("http://one/debian", ("bookworm",), ("main", "contrib"), "/k.gpg")
    assert two == Mirror("http://two/debian", ("trixie", "trixie-updates"), ("main",), "/two.gpg")
    assert three.uri == "http://three/debian"


DEBIAN_MIRROR = Mirror("http://one/debian/", ("bookworm",), ("main",), "/one.gpg")


@pytest.mark.parametrize("reference", ["ubuntu:24.04", "ubuntu:22.04", "python:3.12", "python:3.10-slim"])
def test_a_base_of_ubuntu_has_its_package_manager(reference: str) -> None:
    """mmdebstrap installs packages of the priority *required*, of which apt is one in Debian alone."""
    assert {"apt", "ubuntu-keyring"} <= set(offline_base(reference).packages)


UBUNTU_MIRROR = Mirror("http://two/ubuntu", ("noble", "noble-updates"), ("main", "universe"), None)
SECURITY = Mirror("http://one/debian-security", ("bookworm-security",), ("main",), None)
OTHERS = Mirror("http://others/tools", ("bookworm",), ("main",), None)


@pytest.fixture
def keyrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("bases._KEYRINGS", tmp_path)
    for distribution in (DEBIAN, UBUNTU):
        monkeypatch.delenv(distribution.variable, raising=False)
    return tmp_path


@pytest.mark.usefixtures("keyrings")
def test_a_distributions_packages_come_from_its_own_mirror() -> None:
    named = [OTHERS, SECURITY, UBUNTU_MIRROR, DEBIAN_MIRROR]
    for suite in ("bookworm", "trixie"):
        found = DEBIAN.mirror(suite, named)
        assert (found.uri, found.suites, found.signed_by) == ("http://one/debian/", (suite,), "/one.gpg")
    found = UBUNTU.mirror("jammy", named)
    assert (found.uri, found.suites, found.signed_by) == ("http://two/ubuntu", ("jammy",), None)
    assert found.components == ("main", "universe"), "pip is in universe"
    assert DEBIAN.mirror("bookworm", [SECURITY, OTHERS]).uri == OTHERS.uri


def test_a_foreign_distribution_needs_its_keys_and_may_have_a_mirror_named(
    keyrings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxStartError, match=r"Ubuntu can't be checked here.*apt-get install ubuntu-keyring"):
        UBUNTU.mirror("noble", [DEBIAN_MIRROR])
    keyring = keyrings / "ubuntu-archive-keyring.gpg"
    keyring.touch()
    assert UBUNTU.mirror("noble", [DEBIAN_MIRROR]) == Mirror(UBUNTU.public, ("noble",), UBUNTU.components, str(keyring))
    monkeypatch.setenv("HARBOR_GYM_UBUNTU_MIRROR", "http://near/u")
    assert UBUNTU.mirror("noble", [UBUNTU_MIRROR]).uri == "http://near/u"


@pytest.mark.local
async def test_a_mirror_that_does_not_deliver_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine("local")
    keyring = tmp_path / DEBIAN.keyring
    keyring.touch()
    monkeypatch.setattr("bases._KEYRINGS", tmp_path)
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HARBOR_GYM_DEBIAN_MIRROR", "http://127.0.0.1:1/debian")
    with pytest.raises(SandboxStartError, match=r"Debian 13 from http://127\.0\.0\.1:1/debian: .*HARBOR_GYM_DEBIAN_MI"):
        await ensure_base_tar(offline_base("debian:13"))
    assert not list((tmp_path / "cache" / "bases").iterdir())


# --- for real ---------------------------------------------------------------------------------------------------------

LOOK = (
    ". /etc/os-release; echo $VERSION_CODENAME; tmux -V; "
    "command -v python python3 pip pip3; python --version; python -c 'import sys; print(sys.prefix)'; "
    "pip --version | sed 's/.*(//'; pip install --no-index nothing-of-this-name 2>&1 | grep -c externally-managed"
)
EXPECTED = "trixie\ntmux 3.5a\n/usr/local/bin/python\n/usr/local/bin/python3\n/usr/local/bin/pip\n/usr/local/bin/pip3\n"


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_debian_13_with_its_python_is_made_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_engine("local")
    for variable, value in in_place_of_docker_io(tmp_path, UNREACHABLE).items():
        monkeypatch.setenv(variable, value)
    name = "python:3.13.999-slim-trixie"
    made = await provide(name)
    assert made == f"{name}: sandboxes use Debian 13 with Python 3.13 where the registry is out of reach"
    async with running(make_sandbox(tmp_path, dockerfile=f"FROM {name}\n")) as sandbox:
        printed = await output(sandbox, LOOK + "; true")
    assert printed.startswith(f"{EXPECTED}Python 3.13.")
    assert printed.endswith("\n/usr\npython 3.13)\n0")
