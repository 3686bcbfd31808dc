"""Requirements on grading after a hostile policy, each checked in a sandbox of its own."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import PurePosixPath

from harbor.environments.base import BaseEnvironment

from harbor_gym.episode.grading import cleanup
from harbor_gym.episode.grading.cleanup import Baseline, VerifierDirsReset
from harbor_gym.testing.conformance.behaviours import Family, NotApplicable, expect, expect_equal
from harbor_gym.testing.conformance.probe import IMAGE_WORKDIR, USER, Probe

GRADING = Family[Probe]("grading")

_STORAGE_MB = 64
_FILL = (
    f"head -c {2 * _STORAGE_MB}M /dev/zero > /tmp/filler 2>/dev/null && exit 9; "
    "while echo x >> /tmp/rest; do :; done 2>/dev/null; exit 0"
)
_DIRS = VerifierDirsReset((PurePosixPath("/logs/verifier"), PurePosixPath("/tests")), "")


@contextlib.asynccontextmanager
async def _policys_sandbox(probe: Probe) -> AsyncGenerator[tuple[BaseEnvironment, Baseline]]:
    """Start a sandbox with little storage, and note its state before the policy."""
    sandbox = probe.make(storage_mb=_STORAGE_MB)
    try:
        await sandbox.start(force_build=False)
        yield sandbox, await cleanup.take_baseline(sandbox, is_first=True)
    finally:
        await sandbox.stop(delete=True)


@GRADING.behaviour_alone
async def a_workdir_is_made_again(probe: Probe) -> None:
    """A command runs in its default workdir after the policy removed or replaced that directory."""
    async with _policys_sandbox(probe) as (sandbox, own):
        for deed in ("rm -rf", "rm -rf /image && touch"):
            path = IMAGE_WORKDIR if deed == "rm -rf" else "/image"
            await probe.output(f"{deed} {path}", sandbox=sandbox, cwd="/")
            await cleanup.open_grading(sandbox, own)
            expect_equal(await probe.output("pwd", sandbox=sandbox), IMAGE_WORKDIR, f"the workdir after {deed} {path}")


@GRADING.behaviour_alone
async def a_user_stays_who_it_was(probe: Probe) -> None:
    """The verifier finds a user by name after any change of the sandbox's accounts by the policy."""
    async with _policys_sandbox(probe) as (sandbox, _):
        await probe.output("sed -i s/^dev:/other:/ /etc/passwd", sandbox=sandbox)
        before = await probe.run("echo well", sandbox=sandbox, user=USER)
        expect_equal((before.stdout or "").strip(), "well", f"a command of {USER} whose name was changed")


@GRADING.behaviour_alone
async def full_storage_leaves_room_for_the_tests(probe: Probe) -> None:
    """Tests can be uploaded and a verdict written after an ordinary user has filled the sandbox's storage."""
    tests = probe.folder()
    (tests / "test.sh").write_text("#" * 100_000, encoding="utf-8")
    async with _policys_sandbox(probe) as (sandbox, own):
        filled = await probe.run(_FILL, sandbox=sandbox, user=USER)
        if filled.return_code == 9:
            raise NotApplicable(f"its storage has no limit of {_STORAGE_MB} MiB")
        await cleanup.open_grading(sandbox, own)
        await cleanup.reset_verifier_dirs(sandbox, _DIRS)
        await sandbox.upload_dir(tests, "/tests")
        written = await probe.run("cd /logs/verifier && echo 1 > reward.txt && cat reward.txt", sandbox=sandbox)
        expect_equal((written.stdout or "").strip(), "1", "the verdict that was written")
        await cleanup.close_grading(sandbox)
        more = await probe.run("head -c 1M /dev/zero > /tmp/more", sandbox=sandbox)
        expect(more.return_code != 0, "the policy may use what was kept for grading")
