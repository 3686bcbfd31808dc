"""The cache: its list, its pruning, and that no entry in use is removed."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from harbor_gym._runtime import cache
from harbor_gym._runtime.cache import (
    LAYERS_LOCK,
    STORE_LOCK,
    cache_dir,
    cache_limit,
    entries,
    hold,
    layers_dir,
    locked,
    prune,
)
from harbor_gym.errors import UsageError
from harbor_gym.sandboxes.images import build
from harbor_gym.sandboxes.images.base_images import resolve_base
from harbor_gym.sandboxes.images.store import show_image
from tests.helpers.engines import require_engine
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.local import DOCKERFILE, make_sandbox, output, running
from tests.helpers.tasks import BASE

pytestmark = pytest.mark.usefixtures("own_cache")


def write_layer(name: str, *, kilobytes: int) -> str:
    layer = layers_dir() / name
    if not layer.is_dir():
        layer.mkdir()
        (layer / "file").write_bytes(b"x" * (kilobytes << 10))
    return name


def write_image(name: str, *, kilobytes: int = 64, age_sec: float = 0.0, shared: tuple[str, ...] = ()) -> Path:
    home = cache_dir() / "images" / name
    home.mkdir(parents=True)
    layers = [write_layer(f"of-{name}", kilobytes=kilobytes), *(write_layer(item, kilobytes=256) for item in shared)]
    (home / "image.json").write_text(json.dumps({"layers": layers, "made_for": f"tasks/{name}"}))
    held = hold(home)
    assert held is not None
    held.release()
    then = time.time() - age_sec
    os.utime(home / ".used", times=(then, then))
    return home


def write_base(name: str = "bookworm-1") -> Path:
    path = cache_dir() / "bases" / f"{name}.tar"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * 4096)
    return path


def names(found: list[cache.CacheEntry]) -> list[str]:
    return [entry.path.name for entry in found]


def test_everything_is_listed_with_its_purpose_size_and_last_use() -> None:
    write_image("young", kilobytes=128)
    write_image("old", age_sec=7200)
    write_base()
    (cache_dir() / "policies" / "p").mkdir(parents=True)
    found = entries()
    assert names(found)[0] == "old"
    by_name = {entry.path.name: entry for entry in found}
    assert by_name["young"].what == "tasks/young"
    assert 128 << 10 <= by_name["young"].size_bytes < 160 << 10
    assert 7100 < time.time() - by_name["old"].last_used < 7300
    assert {entry.kind: entry.can_be_pruned for entry in found} == {"image": True, "base": True, "policies": False}


def test_age_size_and_everything_choose_what_goes() -> None:
    write_image("old", age_sec=7200)
    write_image("middle", age_sec=600)
    young = write_image("young")
    assert names(prune(older_than_sec=3600)) == ["old"]
    assert names(prune(max_bytes=100 << 10)) == ["middle"]
    assert young.is_dir()
    assert prune(older_than_sec=3600, max_bytes=1 << 30) == []
    base = write_base()
    assert names(prune(everything=True)) == ["young", base.name]
    assert entries() == []
    assert list((cache_dir() / "images").iterdir()) == [], "nothing half removed is left"


def test_a_limit_counts_what_it_can_remove_and_keeps_bases() -> None:
    write_base()
    write_image("old", age_sec=7200)
    write_image("young", kilobytes=64)
    (cache_dir() / "server").mkdir()
    (cache_dir() / "server" / "file").write_bytes(b"x" * (1 << 20))
    assert prune(max_bytes=200 << 10) == []
    assert names(prune(max_bytes=100 << 10)) == ["old"]
    assert names(prune(max_bytes=0)) == ["young"]
    assert {entry.kind for entry in entries()} == {"base", "server"}


@pytest.mark.parametrize("text", ["0", "-1", "2G", "nan", "inf"])
def test_a_limit_is_a_positive_number_of_gibibytes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARBOR_GYM_CACHE_GIB", raising=False)
    assert cache_limit() is None
    monkeypatch.setenv("HARBOR_GYM_CACHE_GIB", "0.5")
    assert cache_limit() == 1 << 29
    monkeypatch.setenv("HARBOR_GYM_CACHE_GIB", text)
    with pytest.raises(UsageError, match=f"HARBOR_GYM_CACHE_GIB={text} .*GiB"):
        cache_limit()


def test_a_shared_layer_is_counted_once_and_goes_with_its_last_image() -> None:
    write_image("old", age_sec=7200, shared=("common",))
    write_image("young", shared=("common",))
    write_layer("nobodys", kilobytes=64)
    (cache_dir() / "images" / "young" / "replaced-1.json").write_text('{"layers": ["of-before"]}')
    write_layer("of-before", kilobytes=64)
    by_name = {entry.path.name: entry for entry in entries()}
    assert by_name["common"].what == "shared by 2 images"
    assert 256 << 10 <= by_name["common"].size_bytes < 300 << 10
    assert by_name["old"].size_bytes < 100 << 10
    assert by_name["young"].size_bytes >= 128 << 10, "a layer that a running sandbox may stand on is the image's own"
    gone = prune(older_than_sec=3600)
    assert set(names(gone)) == {"nobodys", "old"}
    assert {path.name for path in layers_dir().iterdir()} == {"of-young", "of-before", "common"}
    assert entries()[0].size_bytes >= 256 << 10, "what is shared no longer is the last image's own"
    prune(everything=True)
    assert list(layers_dir().iterdir()) == []


@pytest.mark.parametrize("shared", [False, True])
async def test_a_layer_that_is_being_added_stays(shared: bool) -> None:
    async with locked(LAYERS_LOCK, shared=shared):
        write_layer("new", kilobytes=1)
        assert await asyncio.to_thread(prune, everything=True) == []
    assert names(await asyncio.to_thread(prune, everything=True)) == ["new"]


async def test_what_someone_holds_builds_or_reads_stays(own_cache: Path) -> None:
    held_home, built_home, base = write_image("held"), write_image("built"), write_base()
    held = hold(held_home)
    assert held is not None
    async with locked("image-built"), locked("base-import"):
        assert [entry.in_use for entry in entries()] == [True] * 3
        assert await asyncio.to_thread(prune, everything=True) == []
    assert set(names(await asyncio.to_thread(prune, everything=True))) == {"built", base.name}
    held.release()
    held.release()
    assert names(await asyncio.to_thread(prune, everything=True)) == ["held"]
    assert hold(built_home) is None, "what is gone can't be held"


def test_a_hold_ends_with_its_process() -> None:
    home = write_image("held")
    code = (
        "import time; from pathlib import Path; from harbor_gym._runtime.cache import hold; "
        f"h = hold(Path({str(home)!r})); "
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}print('held', flush=True); time.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert prune(everything=True) == []
        holder.kill()
        holder.wait()
    assert names(prune(everything=True)) == ["held"]


@pytest.mark.local
async def test_a_running_sandboxs_image_stays_and_a_pruned_one_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine("local")
    # The machine's own base, not a second one: making it takes half a minute.
    monkeypatch.delenv("HARBOR_GYM_CACHE")
    bases = list((cache_dir() / "bases").glob("*.tar"))
    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    (cache_dir() / "bases").mkdir()
    for base in bases:
        (cache_dir() / "bases" / base.name).symlink_to(base)
    async with running(make_sandbox(tmp_path / "one", dockerfile=f"{DOCKERFILE}RUN echo kept > /kept\n")) as sandbox:
        (image,) = (entry for entry in entries() if entry.kind == "image")
        assert image.in_use
        assert image.what == str(tmp_path / "one" / "environment")
        assert "image" not in {entry.kind for entry in await asyncio.to_thread(prune, everything=True)}
        assert await output(sandbox, "cat /kept") == "kept"
    assert [entry.path for entry in await asyncio.to_thread(prune, everything=True)] == [image.path]
    async with running(make_sandbox(tmp_path / "one", dockerfile=f"{DOCKERFILE}RUN echo kept > /kept\n")) as sandbox:
        assert await output(sandbox, "cat /kept") == "kept"
    build._built.clear()  # pyright: ignore[reportPrivateUsage]  # its entries name this test's own cache


def test_the_command_lists_and_prunes() -> None:
    write_image("old", age_sec=90_000)
    write_image("young")
    listed = run_here("cache", "list")
    assert listed.returncode == 0
    assert "tasks/old" in listed.stdout
    assert re.search(r"\d MiB in buildah's store /", listed.stdout)
    assert len(json.loads(run_here("cache", "list", "--json").stdout)) == 2
    pruned = run_here("cache", "prune", "--older-than", "1d")
    assert "tasks/old" in pruned.stdout
    assert "tasks/young" not in pruned.stdout
    for wrong in ([], ["--older-than", "soon"], ["--max-size", "1.5G"]):
        refused = run_here("cache", "prune", *wrong)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: ")


@pytest.mark.local
async def test_what_is_pruned_leaves_buildahs_store_too_and_bases_stay(tmp_path: Path) -> None:
    require_engine("local")
    own = f"FROM {BASE}\nRUN echo {uuid.uuid4()} >/first\n"
    built: list[str] = []
    for name, lines in {"old": "RUN echo a >/second\n", "young": "RUN echo b >/second\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text(f"{own}{lines}")
        image = await build.build_image(build.ImageSource(tmp_path / name))
        built.append(json.loads((image.home / "image.json").read_text())["built"])
        then = time.time() - (90_000 if name == "old" else 0)
        (image.home / ".used").touch()
        os.utime(image.home / ".used", times=(then, then))
    assert None not in [await show_image(identity) for identity in built]
    assert (await asyncio.to_thread(run_here, "cache", "prune", "--older-than", "1d")).returncode == 0
    assert [await show_image(identity) is None for identity in built] == [True, False]
    assert (await asyncio.to_thread(run_here, "cache", "prune", "--all")).returncode == 0
    assert [await show_image(identity) is None for identity in built] == [True, True]
    assert (await resolve_base(BASE)).identity
    build._built.clear()  # pyright: ignore[reportPrivateUsage]  # its entries name this test's own cache


@pytest.mark.local
async def test_a_build_keeps_the_limit_and_removes_nothing_that_is_used_or_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine("local")
    monkeypatch.setenv("HARBOR_GYM_CACHE_GIB", "1e-9")
    own = f"FROM {BASE}\nRUN echo {uuid.uuid4()} >/first\n"

    async def built(name: str) -> tuple[build.Image, str]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text(f"{own}RUN echo {name} >/second\n")
        image = await build.build_image(build.ImageSource(tmp_path / name))
        return image, json.loads((image.home / "image.json").read_text())["built"]

    used, used_id = await built("used")
    held = hold(used.home)
    assert held is not None
    async with locked(STORE_LOCK, shared=True):
        old, old_id = await built("old")
        await built("while-another-build-runs")
        assert old.is_there
    young, young_id = await built("young")
    assert [image.is_there for image in (used, old, young)] == [True, False, True]
    assert [await show_image(identity) is None for identity in (used_id, old_id, young_id)] == [False, True, False]
    assert len([entry for entry in entries() if entry.kind == "image"]) == 2
    held.release()
    again = await build.build_image(build.ImageSource(tmp_path / "young"))
    assert again == young
    assert used.is_there, "what is in the cache is not checked against the limit"
    assert (await resolve_base(BASE)).identity
    assert (await asyncio.to_thread(run_here, "cache", "prune", "--all")).returncode == 0
