"""Sources of tasks: directories, real git repositories, registry files, and a registry of packages on this machine."""

import functools
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harbor.auth.client import reset_client
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym._runtime.console.progress import shown_by
from harbor_gym.errors import TaskError, TaskSourceError, UsageError
from harbor_gym.tasks import (
    DirectorySpec,
    GitSpec,
    RegistrySpec,
    SourcedTask,
    filter_tasks,
    find_tasks,
    parse_spec,
    resolve,
    resolve_tasks,
    split_tasks,
)
from tests.helpers.registries.package_registry import PackageRegistry
from tests.helpers.tasks import write_task

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("./here", DirectorySpec(Path("here"))),
        ("/tasks/one", DirectorySpec(Path("/tasks/one"))),
        (Path("org/name"), DirectorySpec(Path("org/name"))),
        ("org/name", RegistrySpec("org/name", None)),
        ("org/name@sha256:abc", RegistrySpec("org/name", "sha256:abc")),
        ("terminal-bench@2.0", RegistrySpec("terminal-bench", "2.0")),
        (f"git+https://host/org/repo.git@{COMMIT}#a/b", GitSpec("https://host/org/repo.git", COMMIT, "a/b")),
        ("git+https://host/org/repo", GitSpec("https://host/org/repo", None, "tasks")),
        ("git+ssh://git@host/org/repo", GitSpec("ssh://git@host/org/repo", None, "tasks")),
        ("git+git@host:org/repo.git@v1.0#x", GitSpec("git@host:org/repo.git", "v1.0", "x")),
        ("git+file:///srv/repo@main#./x/", GitSpec("file:///srv/repo", "main", "x")),
    ],
)
def test_a_source_is_read_as_it_is_written(text: str | Path, spec: object) -> None:
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b", "org/name@", "a/b/c", "-x", "http://host/x"),
        *("git+", "git+ext::sh -c id", "git+https://host/r#/etc", "git+https://host/r#a/../..", "git+--upload-pack=id"),
        "git+https://host/org/r@--output=x",
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_spec(text)


def test_a_path_that_exists_is_no_name_of_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_spec("org/name") == DirectorySpec(Path("org/name"))


def test_a_task_directory_is_itself(tmp_path: Path) -> None:
    task = write_task(tmp_path / "one")
    assert find_tasks([task, task]) == [task]


def test_a_directory_of_tasks_is_its_tasks_by_name(tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / name) for name in ("b", "a")]
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("not a task")
    assert find_tasks([tmp_path]) == sorted(tasks)
    assert find_tasks([tmp_path / "b", tmp_path]) == tasks


@pytest.mark.parametrize("name", ["missing", "file", "empty"])
def test_a_path_without_tasks_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=name):
        find_tasks([write_task(tmp_path / "good"), tmp_path / name])


async def test_directories_give_each_task_once_with_names_that_differ(tmp_path: Path) -> None:
    first, again = write_task(tmp_path / "x/same"), write_task(tmp_path / "y/same")
    write_task(tmp_path / "x/other")
    tasks = await resolve_tasks([first, tmp_path / "x", str(tmp_path / "y"), again])
    assert [task.name for task in tasks] == ["same", "other", "same~2"]
    assert [task.path for task in tasks] == [first, tmp_path / "x/other", again]
    assert tasks[0].digest == tasks[2].digest != tasks[1].digest, "the digest identifies the files, not the place"
    assert await resolve_tasks(pickle.loads(pickle.dumps(tasks))) == tasks
    (first / "instruction.md").write_text("Another one.\n")
    assert (await resolve_tasks([first]))[0].digest != tasks[0].digest
    with pytest.raises(UsageError, match="nowhere"):
        await resolve_tasks([tmp_path / "nowhere"])


# -- git ---------------------------------------------------------------------------------------------------------------


def git(repository: Path, *arguments: str) -> str:
    who = {f"GIT_{role}_{part}": "t@example.com" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ("git", "-C", str(repository), *arguments)
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", message)
    return git(repository, "rev-parse", "HEAD")


async def test_a_git_source_is_the_tasks_at_that_commit_fetched_once(tmp_path: Path) -> None:
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    write_task(repository / "tasks/one", instruction="The first.\n")
    write_task(repository / "tasks/two")
    git(repository, "init", "--quiet", "--initial-branch=main")
    first = commit_all(repository, "first")
    write_task(repository / "tasks/one", instruction="The second.\n")
    second = commit_all(repository, "second")
    git(repository, "tag", "--annotate", "--message=v", "v1", first)
    url = f"git+file://{repository}"

    old, _ = await resolve_tasks([f"{url}@{first}"], download_dir=cache)
    assert (old.name, old.commit, (old.path / "instruction.md").read_text()) == ("one", first, "The first.\n")
    assert old.path.is_relative_to(cache)
    for source in (f"{url}@main#tasks/one", f"{url}#tasks/one"):
        (new,) = await resolve_tasks([source], download_dir=cache)
        assert (new.commit, (new.path / "instruction.md").read_text()) == (second, "The second.\n")
        assert (new.name, new.source) == ("one", source)
    (tagged,) = await resolve_tasks([f"{url}@v1#tasks/one"], download_dir=cache)
    assert (tagged.commit, tagged.digest) == (first, old.digest)

    for wrong in (f"{url}@no-such-branch", f"{url}@{first[:10]}", f"{url}@{COMMIT}", f"{url}#nothing", f"{url}x"):
        with pytest.raises((TaskSourceError, UsageError), match="repository"):
            await resolve_tasks([wrong], download_dir=cache)
    repository.rename(tmp_path / "gone")
    assert (await resolve_tasks([f"{url}@{first}"], download_dir=cache))[0] == old, "a commit in the cache is enough"


# -- registries --------------------------------------------------------------------------------------------------------


async def test_a_registry_file_names_tasks_of_git_and_of_this_machine(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_task(repository / "deep/remote")
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit = commit_all(repository, "first")
    local = write_task(tmp_path / "local")
    remote = {"name": "r", "git_url": f"file://{repository}", "git_commit_id": commit, "path": "deep/remote"}
    tasks = [{"name": "l", "path": str(local)}, remote]
    datasets = [
        {"name": "org/small", "version": version, "description": "d", "tasks": tasks[:number]}
        for version, number in (("1.0", 1), ("2.0", 2), ("0.0", 0))
    ]
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps(datasets))
    look_up = functools.partial(resolve_tasks, registry_path=registry, download_dir=tmp_path / "cache")

    both = await look_up(["org/small"])
    assert [(task.name, task.commit) for task in both] == [("local", None), ("remote", commit)]
    assert await look_up(["org/small@1.0"]) == [SourcedTask("local", local, "org/small@1.0", both[0].digest)]
    for wrong in ("org/other", "org/small@3.0", "org/small@0.0"):
        with pytest.raises(TaskSourceError, match=wrong):
            await look_up([wrong])
    with pytest.raises(UsageError, match=r"absent\.json"):
        await resolve_tasks(["org/small"], registry_path=tmp_path / "absent.json")


THEIR_WARNINGS = pytest.mark.filterwarnings("ignore:The '.*' parameter is deprecated:DeprecationWarning")
"""Between the packages that Harbor's client is made of."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageRegistry]:
    """The address of Harbor's hosted registry to its client; nobody is logged in there."""
    monkeypatch.delenv("HARBOR_API_KEY", raising=False)
    monkeypatch.setattr("harbor.auth.credentials.read_stored_credentials", lambda: None)
    registry = PackageRegistry("acme")
    with registry.served() as url:
        monkeypatch.setattr("harbor.auth.client.SUPABASE_URL", url)
        reset_client()
        yield registry
        reset_client()


@THEIR_WARNINGS
async def test_a_registry_that_is_slow_to_answer_is_named(
    tmp_path: Path, registry: PackageRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "SLOW_SEC", 0)
    registry.add_task("hello", write_task(tmp_path / "task"))
    phases: list[str] = []
    with shown_by(lambda phase, _done, _total, _detail: phases.append(phase)):
        await resolve_tasks(["acme/hello"], download_dir=tmp_path / "cache")
    assert phases[0] == "looking for acme/hello in the registry"


@THEIR_WARNINGS
async def test_a_package_of_the_registry_is_fetched_once_for_each_version(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    task = write_task(tmp_path / "task")
    first = registry.add_task("hello", task)
    (task / "instruction.md").write_text("Another one.\n")
    second = registry.add_task("hello", task)
    look_up = functools.partial(resolve_tasks, download_dir=tmp_path / "cache")

    (newest,) = await look_up(["acme/hello"])
    assert (newest.name, newest.digest) == ("hello", second)
    assert (newest.path / "instruction.md").read_text() == "Another one.\n"
    assert [task.digest for task in await look_up(["acme/hello@1", f"acme/hello@{first}"])] == [first]
    downloads = [asked for asked in registry.asked if "/object/" in asked]
    await look_up(["acme/hello@latest", "acme/hello@1"])
    assert [asked for asked in registry.asked if "/object/" in asked] == downloads
    assert len(downloads) == 2


@THEIR_WARNINGS
@pytest.mark.parametrize("harm", ["changed", "emptied"])
async def test_a_package_that_was_damaged_is_fetched_again(
    harm: str, tmp_path: Path, registry: PackageRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    digest = registry.add_task("hello", write_task(tmp_path / "task"))
    look_up = functools.partial(resolve_tasks, [f"acme/hello@{digest}"], download_dir=tmp_path / "cache")
    (fetched,) = await look_up()
    if harm == "changed":
        (fetched.path / "instruction.md").write_text("Som")
    else:
        shutil.rmtree(fetched.path)
        fetched.path.mkdir()
    (again,) = await look_up()
    assert again == fetched
    assert again.digest == digest
    assert f"{fetched.path} was damaged since it was fetched: it is fetched again" in caplog.text


@THEIR_WARNINGS
async def test_a_dataset_of_the_registry_is_its_tasks_at_their_versions(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    digests = {name: registry.add_task(name, write_task(tmp_path / name)) for name in ("one", "two")}
    write_task(tmp_path / "one", instruction="Not in the dataset.\n")
    registry.add_task("one", tmp_path / "one")
    registry.add_dataset("both", digests)
    tasks = await resolve_tasks(["acme/both"], download_dir=tmp_path / "cache")
    assert {task.name: task.digest for task in tasks} == digests


@pytest.mark.parametrize("wrong", ["acme/absent", "acme/hello@7", "acme/set@v9"])
async def test_what_the_registry_has_not_is_named(tmp_path: Path, registry: PackageRegistry, wrong: str) -> None:
    registry.add_dataset("set", {"hello": registry.add_task("hello", write_task(tmp_path / "hello"))})
    with pytest.raises(TaskSourceError, match=wrong):
        await resolve_tasks([wrong], download_dir=tmp_path / "cache")


# -- selection ---------------------------------------------------------------------------------------------------------

EASY = '[metadata]\ndifficulty = "easy"\nflag = true\n'


@pytest.fixture
async def tasks(tmp_path: Path) -> list[SourcedTask]:
    write_task(tmp_path / "a", toml=f'keywords = ["shell", "vim"]\n{EASY}')
    write_task(tmp_path / "b", toml='keywords = ["shell"]\n[metadata]\ndifficulty = "hard"\n[agent]\nuser = "agent"\n')
    write_task(tmp_path / "c")
    return await resolve_tasks([tmp_path])


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ((), "abc"),
        (("difficulty=easy",), "a"),
        (("difficulty=easy,hard",), "ab"),
        (("difficulty!=easy",), "bc"),
        (("keywords=shell",), "ab"),
        (("keywords=shell", "keywords!=vim"), "b"),
        (("agent.user=agent",), "b"),
        (("metadata.difficulty=easy",), "a"),
        (("flag=true",), "a"),
        (("name=test/c",), "c"),
    ],
)
async def test_conditions_read_the_task_file(tasks: list[SourcedTask], conditions: Sequence[str], names: str) -> None:
    assert "".join(task.name for task in filter_tasks(tasks, conditions)) == names


async def test_conditions_that_leave_nothing_or_mean_nothing_are_refused(tasks: list[SourcedTask]) -> None:
    for wrong in ("difficulty=none", "difficulty", "=x", "difficulty="):
        with pytest.raises(UsageError):
            filter_tasks(tasks, [wrong])
    (tasks[0].path / "task.toml").write_text("[[")
    with pytest.raises(TaskError, match=r"task\.toml"):
        filter_tasks(tasks, ["difficulty=easy"])


def made_up(names: Sequence[str]) -> list[SourcedTask]:
    return [SourcedTask(name, Path(name), name, "sha256:0") for name in names]


@given(
    st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=2, max_size=30, unique=True),
    st.floats(0.01, 0.99),
    st.integers(),
)
def test_a_split_parts_all_tasks_whatever_their_order(names: list[str], fraction: float, seed: int) -> None:
    train, test = split_tasks(made_up(names), test_fraction=fraction, seed=seed)
    assert train
    assert test
    assert {task.name for task in train}.isdisjoint(task.name for task in test)
    assert sorted(task.name for task in (*train, *test)) == sorted(names)
    shuffled = sorted(names, reverse=True)
    assert {task.name for task in split_tasks(made_up(shuffled), test_fraction=fraction, seed=seed)[1]} == {
        task.name for task in test
    }


def test_a_split_is_drawn_or_named_and_leaves_something_to_train_on() -> None:
    ten = made_up("abcdefghij")
    drawn = {"".join(task.name for task in split_tasks(ten, test_fraction=0.3, seed=seed)[1]) for seed in range(20)}
    assert len(drawn) > 10
    assert {len(names) for names in drawn} == {3}
    assert [[task.name for task in part] for part in split_tasks(ten[:3], test_tasks=["b"])] == [["a", "c"], ["b"]]
    assert split_tasks(ten) == (ten, [])
    for names, fraction in ((["z"], 0.0), (["a"], 0.5), ([], 1.0)):
        with pytest.raises(UsageError):
            split_tasks(ten, test_tasks=names, test_fraction=fraction)
    with pytest.raises(UsageError, match="none is left"):
        split_tasks(ten[:1], test_tasks=["a"])
    with pytest.raises(UsageError):
        split_tasks(ten[:1], test_fraction=0.5)
