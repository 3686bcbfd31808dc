"""Fakes with a pristine view: the files of the start, and copies of the carried paths."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar, override

from harbor_gym.errors import SandboxLostError
from harbor_gym.testing import FakeEnvironment
from harbor_gym.testing.fake.files import FakeFiles
from harbor_gym.testing.fake.shell import FakeShell, Output

LOST = "the sandbox went away"
FORGERY = b"forge"
"""The text that all tricks together plant, and that the verifier runs."""

VIEWING = "tests.helpers.sandboxes.viewing:Viewing"
VIEWING_VERIFIERS = "tests.helpers.sandboxes.viewing:ViewingVerifiers"


class Viewing(FakeEnvironment):
    """A fake that notes its calls in order: ``enter`` and ``leave``, and the targets of copied files."""

    events: ClassVar[list[str]] = []
    problem: ClassVar[str] = ""
    """The error that keeps a set-up's view from being merged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outside: FakeFiles | None = None
        self.events.clear()

    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        assert self._outside is None
        self.events.append(f"enter {' '.join(map(str, verify_paths))}")
        self._outside, self.files = self.files, FakeFiles()
        await self.start(force_build=False)
        for path in map(str, verify_paths):
            names = ["", *self._outside.below(path)] if self._outside.is_dir(path) else [""]
            for name in names:
                copied = str(PurePosixPath(path) / name)
                if (text := self._outside.text(copied)) is not None:
                    self.files.write(copied, text.encode())

    async def leave_verifier_view(self) -> None:
        assert self._outside is not None
        self.events.append("leave")
        self.files, self._outside = self._outside, None

    async def enter_set_up_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        await self.enter_verifier_view([*verify_paths, PurePosixPath("/srv")])
        self.events[-1] = f"set up in {self.events[-1].removeprefix('enter ')}"

    async def leave_set_up_view(self, *, timeout_sec: float) -> str:
        assert timeout_sec > 0
        view = self.files
        await self.leave_verifier_view()
        self.events[-1] = "merge"
        for name in view.below("/"):
            if (text := view.text(f"/{name}")) is not None:
                self.files.write(f"/{name}", text.encode())
        if self.problem == LOST:
            raise SandboxLostError(LOST)
        return self.problem

    async def written_paths(self) -> Sequence[PurePosixPath]:
        return [PurePosixPath("/", name) for name in self.files.below("/") if self.files.is_file(f"/{name}")]

    @override
    async def run(self, command: str, shell: FakeShell) -> Output:
        if "/solution/solve.sh" in command and not command.startswith("chmod"):
            for line in (self.files.text("/solution/solve.sh") or "").splitlines()[1:]:
                await shell.run(line)
            return Output()
        if command.endswith("echo planted"):
            self.files.write("/usr/bin/cat", FORGERY)
            return Output(stdout=["planted\n"])
        return await super().run(command, shell)

    @override
    def grade(self) -> Mapping[str, float] | None:
        is_fooled = self.files.text("/usr/bin/cat") == FORGERY.decode()
        return self._rewards if is_fooled else super().grade()

    @override
    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        self.events.append(f"upload {target_dir}")
        await super().upload_dir(source_dir, target_dir)

    @override
    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        self.events.append(f"download {source_dir}")
        await super().download_dir(source_dir, target_dir)

    @override
    async def empty_dirs(self, dirs: Sequence[Any], *, chmod: bool = True) -> Any:
        self.events.append(f"empty {' '.join(map(str, dirs))}")
        return await super().empty_dirs(dirs, chmod=chmod)


class ViewingVerifiers(Viewing):
    """A fake whose view is for verifiers alone."""

    enter_set_up_view: Any = None
