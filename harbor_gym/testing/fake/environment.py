"""An in-memory sandbox, for tests of the code around a sandbox."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, get_args, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.trial.paths import EnvironmentPaths

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import SandboxLostError, SandboxStartError
from harbor_gym.terminal import Terminal
from harbor_gym.testing.conformance.known_failures import FAKE
from harbor_gym.testing.fake.cleanup import FakeProcesses, answer_cleanup
from harbor_gym.testing.fake.files import FakeFiles, read_tree, write_tree
from harbor_gym.testing.fake.shell import FakeShell, Output, Program

FailurePoint = Literal["start", "exec", "upload", "download", "verifier"]
"""The operations that a fake can be configured to fail."""

_TEST_SCRIPT = re.compile(r"^\(?/tests/test\.sh\b")
_DEFAULT_WORKDIR = "/srv"
_STANDING_FOLDERS = ("/tmp", "/root", "/etc", "/home", "/srv")


class FakeEnvironment(BaseEnvironment):
    """A Harbor environment without an engine: files in memory, a few words of shell, answers from a table.

    It starts instantly on any system, touches nothing of this machine and runs no process, so no action can do harm.
    It has its own kind of terminal. The arguments are plain data and go through
    ``TerminalEnvConfig.sandbox_options``; for more than a table can express, override :meth:`grade` or :meth:`answer`.

    Args:
        answers: Command line → its output, or (output, exit code). These answers take precedence over the shell.
        files: Path → text of the files that exist at the start.
        solved_when: Path → text. The task counts as solved when each of these files has that text, apart from white
            space at the ends; the task's own tests/test.sh is not run.
        rewards: The verifier's rewards for a solved task, a number or the keys of reward.json; otherwise all are 0.
        fail: Operation → the number of the call that fails, counted from 1. ``start``: the sandbox does not start;
            ``exec``: it is lost during that command, and stays lost (the episode's own commands are not counted);
            ``upload``, ``download``: that transfer; ``verifier``: it writes no reward, like one that crashes.
        processes: The report on processes before grading, the fields of :class:`FakeProcesses`: ``stopped``,
            ``unstoppable``, ``oom_kills``.
        delay_sec: Seconds that the start and every command take.
    """

    known_failures: ClassVar[Mapping[str, str]] = FAKE

    def __init__(
        self,
        *args: Any,
        answers: Mapping[str, str | Sequence[Any]] | None = None,
        files: Mapping[str, str] | None = None,
        solved_when: Mapping[str, str] | None = None,
        rewards: float | Mapping[str, float] = 1.0,
        fail: Mapping[FailurePoint, int] | None = None,
        processes: Mapping[str, Any] | None = None,
        delay_sec: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.files = FakeFiles()
        self.commands: list[str] = []
        """Every command in order, except the episode's own."""

        self._answers = dict(answers or {})
        self._first_files = dict(files or {})
        self._solved_when = dict(solved_when or {})
        self._rewards = dict(rewards) if isinstance(rewards, Mapping) else {"reward": float(rewards)}
        self._fail: dict[FailurePoint, int] = dict(fail or {})
        self._reported = FakeProcesses(**processes or {})
        self._delay_sec = delay_sec
        self._calls: Counter[FailurePoint] = Counter()
        self._gone = "it was not started"
        self._stopped = asyncio.Event()
        if unknown := set(self._fail) - set(get_args(FailurePoint)):
            raise ValueError(f"a fake can't fail at {sorted(unknown)}; known: {', '.join(get_args(FailurePoint))}")
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "fake"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(mounted=False)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities | None:
        return None

    @override
    def _validate_definition(self) -> None:
        """Accept any definition: there is no image."""

    # --- methods to override -------------------------------------------------------------------------------------

    def programs(self) -> Mapping[str, Program]:
        """Return additional commands by name."""
        return {}

    def answer(self, command: str) -> str | Sequence[Any] | None:
        """Return a command line's output, or (output, exit code); None leaves the command to the shell."""
        return self._answers.get(command.strip())

    def grade(self) -> Mapping[str, float] | None:
        """Return the verifier's rewards; None stands for a verifier that writes none."""
        solved = all((self.files.text(path) or "").strip() == text.strip() for path, text in self._solved_when.items())
        return self._rewards if solved else dict.fromkeys(self._rewards, 0.0)

    # --- life ----------------------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        """Make the initial folders and files.

        Raises:
            SandboxStartError: ``fail`` says so.
        """
        await asyncio.sleep(self._delay_sec)
        if self._is_to_fail("start"):
            raise SandboxStartError("the fake sandbox is configured not to start")
        inside = EnvironmentPaths()
        logs = (inside.agent_dir, inside.verifier_dir, inside.artifacts_dir)
        for folder in (*_STANDING_FOLDERS, self._workdir, *map(str, logs), *self._mount_targets()):
            self.files.make_dir(folder)
        for path, text in self._first_files.items():
            self.files.write(path, text.encode())
        self._gone = ""

    @override
    async def stop(self, delete: bool) -> None:
        """End the sandbox and every command in it. Idempotent."""
        self._gone = "it was stopped"
        self._stopped.set()

    @property
    def _workdir(self) -> str:
        return self.task_env_config.workdir or _DEFAULT_WORKDIR

    def _is_to_fail(self, point: FailurePoint) -> bool:
        self._calls[point] += 1
        return self._fail.get(point) == self._calls[point]

    def require_running(self) -> None:
        """Raise :class:`SandboxLostError` if the sandbox is not running."""
        if self._gone:
            raise SandboxLostError(f"the fake sandbox {self.session_id} is gone: {self._gone}")

    # --- commands ------------------------------------------------------------------------------------------------

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Answer a command.

        Raises:
            SandboxLostError: The sandbox is not running, or is configured to be lost now.
            RuntimeError: The command timed out, as in Harbor's own environments.
            ValueError: The command has a NUL.
        """
        if "\0" in command:
            raise ValueError("a command can't have a NUL in it")
        shell = self.shell(cwd=cwd, env=env, user=user)
        try:
            async with asyncio.timeout(timeout_sec):
                output = await self.run(command, shell)
        except TimeoutError:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        return ExecResult(stdout="".join(output.stdout), stderr="".join(output.stderr), return_code=output.code)

    async def run(self, command: str, shell: FakeShell) -> Output:
        """Answer one command in a shell that goes on afterwards.

        Raises:
            SandboxLostError: The sandbox is not running, or is configured to be lost now.
        """
        self.require_running()
        if (answer := answer_cleanup(command, self.files, self._reported)) is not None:
            return Output(stdout=[answer])
        self.commands.append(command)
        if self._is_to_fail("exec"):
            self._gone = "it is configured to be lost"
        await asyncio.sleep(self._delay_sec)
        self.require_running()
        if not self.files.is_dir(shell.cwd):
            return Output(stderr=[f"bash: {shell.cwd}: No such file or directory\n"], code=1)
        if _TEST_SCRIPT.match(command):
            return self._verify()
        if (answer := self.answer(command)) is not None:
            text, code = (answer, 0) if isinstance(answer, str) else answer
            return Output(stdout=[text], code=code)
        return await self._until_stopped(shell.run(command))

    async def _until_stopped(self, work: Coroutine[Any, Any, Output]) -> Output:
        tasks = asyncio.ensure_future(work), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                self.require_running()
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def shell(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: Any = None) -> FakeShell:
        """Return a shell that starts where a command of these arguments would."""
        who = self._resolve_user(user)
        variables = self._merge_env(dict(env or {})) or {}
        return FakeShell(self.files, cwd or self._workdir, variables, str(who or "root"), self.programs())

    async def make_terminal(self, config: TerminalConfig, *, user: str | int | None) -> Terminal:
        """Open a terminal of the fake's own: :func:`harbor_gym.terminal.open_terminal` asks for it."""
        from harbor_gym.testing.fake.terminal import FakeTerminal

        self.require_running()
        return FakeTerminal(self, config, user=user)

    def _verify(self) -> Output:
        rewards = None if self._is_to_fail("verifier") else self.grade()
        if rewards is None:
            return Output(stderr=["the verifier crashed\n"], code=1)
        self.files.write(str(EnvironmentPaths().reward_json_path), json.dumps(dict(rewards)).encode())
        return Output()

    # --- files ---------------------------------------------------------------------------------------------------

    def _begin_transfer(self, point: Literal["upload", "download"]) -> None:
        self.require_running()
        if self._is_to_fail(point):
            raise RuntimeError(f"the fake sandbox is configured to fail at this {point}")

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file in, into ``target_path`` if that is a folder."""
        self._begin_transfer("upload")
        if self.files.is_dir(target_path):
            target_path = str(PurePosixPath(target_path) / Path(source_path).name)
        self.files.insert(await asyncio.to_thread(read_tree, Path(source_path)), target_path)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's contents in."""
        self._begin_transfer("upload")
        self.files.insert(await asyncio.to_thread(read_tree, Path(source_dir)), target_dir)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out.

        Raises:
            FileNotFoundError: There is none.
        """
        self._begin_transfer("download")
        await asyncio.to_thread(Path(target_path).write_bytes, self.files.read(source_path))

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder's contents out.

        Raises:
            FileNotFoundError: There is none.
        """
        self._begin_transfer("download")
        if not self.files.is_dir(source_dir):
            raise FileNotFoundError(f"{source_dir}: No such folder in the fake sandbox")
        await asyncio.to_thread(write_tree, self.files.tree(source_dir), Path(target_dir))

    @override
    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        self._begin_transfer("download")
        await asyncio.to_thread(write_tree, self.files.tree(source_dir, exclude), Path(target_dir))

    @override
    async def is_file(self, path: str, user: str | int | None = None) -> bool:
        self.require_running()
        return self.files.is_file(path)

    @override
    async def is_dir(self, path: str, user: str | int | None = None) -> bool:
        self.require_running()
        return self.files.is_dir(path)

    @override
    async def ensure_dirs(self, dirs: Sequence[Any], *, chmod: bool = True) -> ExecResult | None:
        self.require_running()
        for path in dirs:
            self.files.make_dir(str(path))
        return ExecResult(return_code=0)

    @override
    async def empty_dirs(self, dirs: Sequence[Any], *, chmod: bool = True) -> ExecResult | None:
        for path in dirs:
            self.files.remove(str(path))
        return await self.ensure_dirs(dirs)

    @override
    async def reset_dirs(
        self, *, remove_dirs: Sequence[Any], create_dirs: Sequence[Any], chmod_dirs: Sequence[Any] | None = None
    ) -> ExecResult:
        await self.empty_dirs(remove_dirs)
        await self.ensure_dirs(create_dirs)
        return ExecResult(return_code=0)
