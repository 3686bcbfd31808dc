"""How git is called, how it is left, and which words are a commit, by a git with prescribed answers."""

import os
from pathlib import Path

import pytest

from harbor_gym._runtime.console.progress import shown_by
from harbor_gym._runtime.procfs import descendants
from harbor_gym.errors import TaskSourceError
from harbor_gym.tasks import GitSpec, resolve
from harbor_gym.tasks.resolve import resolve_tasks

COMMIT = "0123456789abcdef0123456789ABCDEF01234567"
_commit_of = resolve._commit_of  # pyright: ignore[reportPrivateUsage]  # after it comes Harbor's own fetching


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a git that notes its arguments and runs ``answer``; return the note's path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$$ $GIT_TERMINAL_PROMPT $(readlink /proc/$$/fd/0) $*" >>asked\n. ./answer\n'
    )
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GIT_TERMINAL_PROMPT", "1")
    return tmp_path / "asked"


def answer(asked: Path, script: str) -> None:
    (asked.parent / "answer").write_text(script)


def noted(asked: Path) -> list[str]:
    """Return git's process, whether it might prompt, its input, and its arguments; nothing if never called."""
    return asked.read_text(encoding="utf-8").split() if asked.exists() else []


def spec(ref: str | None) -> GitSpec:
    return GitSpec("https://host/org/repository", ref, "tasks")


async def test_git_is_asked_for_the_ref_and_can_ask_nobody(asked: Path) -> None:
    answer(asked, f"printf '{COMMIT.lower()}\\trefs/heads/main\\n'")
    assert await _commit_of(spec("main")) == COMMIT.lower()
    _, prompts, stdin, *arguments = noted(asked)
    assert (prompts, stdin) == ("0", os.devnull), "credentials would be asked for where nobody answers"
    assert arguments == ["ls-remote", "--", "https://host/org/repository", "main"]


async def test_a_repository_that_is_slow_to_answer_is_named(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "SLOW_SEC", 0)
    phases: set[str] = set()
    answer(asked, f"printf '{COMMIT.lower()}\\tHEAD\\n'")
    with shown_by(lambda phase, _done, _total, _detail: phases.add(phase)):
        await _commit_of(spec(None))
    assert phases == {"asking https://host/org/repository for HEAD"}


async def test_without_a_ref_it_is_asked_for_the_head(asked: Path) -> None:
    answer(asked, f"printf '{COMMIT.lower()}\\tHEAD\\n'")
    assert await _commit_of(spec(None)) == COMMIT.lower()
    assert noted(asked)[-1] == "HEAD"


@pytest.mark.parametrize("commit", [COMMIT, "ab" * 32])
async def test_a_full_commit_is_not_asked_for(asked: Path, commit: str) -> None:
    assert await _commit_of(spec(commit)) == commit.lower()
    assert noted(asked) == []


@pytest.mark.parametrize("ref", ["a-branch-of-exactly-forty-letters-in-all", "g" * 40, "a" * 39, "a" * 41, "ab" * 31])
async def test_what_is_as_long_as_a_commit_need_not_be_one(asked: Path, ref: str) -> None:
    answer(asked, f"printf '{COMMIT.lower()}\\trefs/heads/{ref}\\n'")
    assert await _commit_of(spec(ref)) == COMMIT.lower()
    answer(asked, "true")
    with pytest.raises(TaskSourceError, match=f"no branch or tag '{ref}'"):
        await _commit_of(spec(ref))


async def test_a_git_that_fails_is_quoted_on_one_line(asked: Path) -> None:
    answer(asked, "echo fatal: could not read >&2; echo Username >&2; exit 128")
    with pytest.raises(TaskSourceError, match="can't read https://host/org/repository: fatal: could not read Username"):
        await resolve_tasks(["git+https://host/org/repository@main"])


async def test_a_git_that_does_not_answer_is_stopped(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_GIT_LOOK_TIMEOUT_SEC", 0.3)
    answer(asked, "exec sleep 1000")
    before = descendants(os.getpid())
    with pytest.raises(TaskSourceError, match=r"did not answer within 0\.3 s"):
        await _commit_of(spec("main"))
    assert descendants(os.getpid()) <= before, "git is stopped and collected before the error is raised"


async def test_without_git_a_source_of_git_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TaskSourceError, match="git is not installed"):
        await _commit_of(spec("main"))
