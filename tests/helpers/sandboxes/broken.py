"""Local sandboxes with something wrong, for ``check_sandbox`` to notice. Each names all that must notice it."""

# ruff: noqa: ASYNC240  # small files of this machine
import asyncio
import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, override

from harbor.environments.base import BaseEnvironment, ExecResult

from harbor_gym.errors import SandboxTimeoutError, UsageError
from harbor_gym.sandboxes.compose.member import Member
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.sandboxes.supervisor.program.kernel.capabilities import POLICY
from harbor_gym.sandboxes.supervisor.running import Ranks
from harbor_gym.terminal.scripts import read_script


class Broken(LocalEnvironment):
    """A local sandbox with something wrong."""

    breaks: ClassVar[Sequence[str]] = ()
    """The behaviours that must fail."""

    known_failures: ClassVar[Mapping[str, str]] = {}  # pyright: ignore[reportIncompatibleMethodOverride]  # on any machine


class _ByItsShell(BaseEnvironment):
    """Harbor's own directory calls."""

    is_dir = BaseEnvironment.is_dir
    is_file = BaseEnvironment.is_file
    ensure_dirs = BaseEnvironment.ensure_dirs
    empty_dirs = BaseEnvironment.empty_dirs
    reset_dirs = BaseEnvironment.reset_dirs


class AsksItsShell(_ByItsShell, Broken):
    breaks = ("no_program_inside_takes_part_in_directory_calls",)


class LosesOutput(Broken):
    breaks = (
        "stdout_arrives_as_it_was_printed",
        "stderr_is_not_lost",
        "stderr_is_told_apart",
        "the_exit_code_is_the_commands_own",
        "a_death_by_signal_is_128_and_the_signal",
        "silence_is_empty_output",
        "unicode_goes_in_and_out",
        "bytes_that_are_no_text_are_replaced",
        "large_output_is_whole",
    )

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        result = await super().exec(*args, **kwargs)
        text = (result.stdout or "").strip().encode("ascii", "ignore").decode()[:500_000]
        return ExecResult(stdout=text or "(no output)", return_code=min(result.return_code, 1))


class MeddlesWithCommands(Broken):
    breaks = (
        "commands_are_read_by_bash",
        "several_lines_are_one_script",
        "quotes_and_specials_reach_the_shell_untouched",
        "long_commands_are_run",
        "a_nul_is_refused_and_harms_nothing",
        "stdin_is_empty",
    )

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        text = command.replace("\n", " ").replace("`", "").replace("\0", "")[:130_000]
        return await super().exec(f"sh -c {shlex.quote(text)} < <(sleep 30)", *args, **kwargs)


class MixesAnswersUp(Broken):
    breaks = ("twenty_at_once_keep_their_answers_apart",)

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        self._last = await super().exec(*args, **kwargs)
        await asyncio.sleep(0.05)
        return self._last


class ForgetsArguments(_ByItsShell, Broken):
    breaks = (
        "cwd_is_the_calls",
        "cwd_is_the_tasks_where_it_names_one",
        "a_cwd_that_is_not_there_is_refused",
        "env_arrives_with_newlines_and_quotes",
        "env_of_the_call_wins",
        "a_user_goes_by_name",
        "a_user_goes_by_uid",
        "a_user_goes_by_uid_and_gid",
        "a_user_that_is_not_there_is_refused",
        "the_default_user_counts_where_no_user_is_given",
        "an_ordinary_user_is_no_root",
        "is_file_and_is_dir_ask_as_the_user",
        "a_terminal_is_its_users",
    )

    @override
    async def exec(self, command: str, cwd: Any = None, env: Any = None, timeout_sec: Any = None, user: Any = None):
        self.default_user = None
        return await super().exec(command, timeout_sec=timeout_sec)

    @override
    async def exec_pipes(self, command: str, *, user: Any = None, **options: Any) -> PipedCommand:
        self.default_user = None
        return await super().exec_pipes(command, **options)


class AddsArguments(_ByItsShell, Broken):
    breaks = (
        "cwd_is_the_images_by_default",
        "a_directory_change_ends_with_its_command",
        "env_of_image_task_and_trial_arrive",
        "env_of_the_host_stays_out",
        "root_is_to_be_had",
        "folders_are_made_and_emptied_as_harbor_asks",
    )

    @override
    async def exec(self, command: str, cwd: Any = None, env: Any = None, timeout_sec: Any = None, user: Any = None):
        variables = {**os.environ, "TRIAL_SAYS": "ours", **(env or {})}
        return await super().exec(f"LEFT=over; {command}", cwd or "/", variables, timeout_sec, user="dev")


class RepairsNothing(Broken):
    breaks = ("a_workdir_is_made_again", "a_user_stays_who_it_was", "full_storage_leaves_room_for_the_tests")

    @override
    async def clean_up(self, work: str, arguments: Any, *, timeout_sec: float) -> dict[str, Any]:
        if work == "reset_verifier_dirs":
            return await super().clean_up(work, arguments, timeout_sec=timeout_sec)
        return {"processes": [], "ipc": [], "problem": "", "is_full": False, "oom_kills": None}


class ForgetsToKill(Broken):
    breaks = ("a_timed_out_command_is_dead", "a_cancelled_command_is_dead")

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return await super().exec(f"setsid -w bash -c {shlex.quote(command)}", *args, **kwargs)


class KillsTooMuch(Broken):
    breaks = (
        "a_timeout_leaves_the_sandbox_usable",
        "a_timeout_spares_the_other_commands",
        "a_cancellation_leaves_the_sandbox_usable",
    )

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        try:
            return await super().exec(*args, **kwargs)
        except (SandboxTimeoutError, asyncio.CancelledError):
            await self.stop(delete=True)
            raise


class HidesTimeouts(Broken):
    breaks = ("a_timeout_raises", "a_command_within_its_timeout_is_left_alone")

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        with contextlib.suppress(SandboxTimeoutError):
            await super().exec(*args, **kwargs)
        return ExecResult(return_code=124)


class WaitsForThePipe(Broken):
    breaks = ("a_process_left_behind_holds_nothing_up",)

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return await super().exec(f"bash -c {shlex.quote(command)} | cat", *args, **kwargs)


class KillsDaemons(Broken):
    breaks = ("a_daemon_lives_on_between_commands",)

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        result = await super().exec(*args, **kwargs)
        await super().exec("kill -KILL -1")
        return result


class KeepsZombies(Broken):
    breaks = ("orphans_are_reaped",)

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        # Its parent is no shell any more when it ends, and the command begins when it is there.
        child = "until [[ $(</proc/$$/comm) = sleep ]]; do :; done"
        zombie = f"bash -c '{child} & exec sleep 60' >/dev/null 2>&1 </dev/null &"
        wait = "until grep -qs ') Z ' /proc/[0-9]*/stat; do sleep 0.01; done"
        return await super().exec(f"{zombie}\n{wait}\n{command}", *args, **kwargs)


class UploadsBadly(Broken):
    breaks = (
        "a_file_arrives_byte_for_byte",
        "a_files_folder_is_made_on_the_way",
        "an_upload_overwrites",
        "an_executable_stays_one",
        "an_empty_file_arrives",
        "a_large_file_goes_there_and_back",
        "odd_names_are_names",
        "a_folders_contents_arrive_with_all_below",
        "an_empty_folder_arrives",
        "a_folder_is_added_to_one_that_is_there",
        "a_link_in_a_folder_reads_as_its_target",
        "an_upload_that_has_no_source_raises",
    )

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        content = source.read_bytes().replace(b"\r\n", b"\n")[: 4 << 20] if source.exists() else b""
        has_folder = await self.is_dir(str(Path(target_path).parent))
        if content and has_folder and not await self.is_file(target_path):
            with tempfile.NamedTemporaryFile() as copy:
                Path(copy.name).write_bytes(content)
                await super().upload_file(copy.name, target_path)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.exec(f"rm -rf {shlex.quote(target_dir)}")
        with tempfile.TemporaryDirectory() as folder:
            for path in Path(source_dir).rglob("[a-z]*"):
                if path.is_file() and not path.is_symlink():
                    copy = Path(folder) / path.relative_to(source_dir)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(path.read_bytes())
            if os.listdir(folder):  # noqa: PTH208  # the shortest way to ask
                await super().upload_dir(folder, target_dir)


class UploadsElsewhere(Broken):
    breaks = ("an_uploaded_file_is_what_commands_see", "an_upload_follows_no_link_to_the_host")

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        found = await self.exec(f"readlink {shlex.quote(str(Path(target_path).parent))}")
        host = Path((found.stdout or "").strip())
        if host.is_dir() and host.is_relative_to(tempfile.gettempdir()):
            shutil.copy(source_path, host / Path(target_path).name)


class DownloadsBadly(Broken):
    breaks = (
        "a_file_comes_back_byte_for_byte",
        "a_download_overwrites",
        "a_folder_comes_back_with_all_below",
        "a_downloaded_folder_is_added_to_one_that_is_there",
        "a_download_without_a_source_raises",
        "a_download_leads_to_nothing_of_the_host",
        "a_pipe_in_a_folder_stops_no_download",
        "a_download_can_leave_files_out",
    )

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        if not target.exists():
            target.touch()
            with contextlib.suppress(Exception):
                await super().download_file(source_path, target)
            target.write_bytes(target.read_bytes().replace(b"\0", b""))

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        target = Path(target_dir)
        shutil.rmtree(target, ignore_errors=True)
        found = await self.exec(f"find {shlex.quote(source_dir)} -type p -o -type l")
        if "/pipe" in (found.stdout or ""):
            raise RuntimeError("there is a pipe")
        with contextlib.suppress(Exception):
            await super().download_dir(source_dir, target)
        for path in (path for path in target.rglob("*") if path.is_file()):
            path.chmod(0o644)
        for link in (found.stdout or "").split():
            to = (await self.exec(f"readlink {link}")).stdout or ""
            (target / Path(link).name).symlink_to(to.strip())

    @override
    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        await self.download_dir(source_dir, target_dir)


class Guesses(Broken):
    breaks = ("is_file_and_is_dir_tell_kinds_apart", "a_healthcheck_is_run_inside")

    @override
    async def is_file(self, path: str, user: str | int | None = None) -> bool:
        return (await self.exec(f"test -e {path}")).return_code == 0

    @override
    async def run_healthcheck(self, healthcheck: Any = None) -> None: ...


class HasNoLogs(Broken):
    breaks = ("the_log_folders_are_there_for_every_user",)

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        await self.exec("chmod 700 /logs/artifacts")


class IsOneForAll(_ByItsShell, Broken):
    breaks = ("two_sandboxes_share_no_files", "two_sandboxes_share_no_processes")
    first: ClassVar["IsOneForAll | None"] = None

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        IsOneForAll.first = IsOneForAll.first or self

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        assert IsOneForAll.first is not None
        return await LocalEnvironment.exec(IsOneForAll.first, *args, **kwargs)


class IsTheHost(Broken):
    breaks = (
        "files_of_the_host_are_not_seen",
        "no_network_is_none",
        "root_inside_is_root_of_its_own_namespace",
        "terminals_end_at_the_sandboxs_own_limit",
        "open_files_end_at_the_processs_own_limit",
        "socket_buffers_end_at_the_sandboxs_own_limit",
        "the_kernels_memory_is_hidden",
        "system_calls_are_filtered",
    )

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        process = await asyncio.create_subprocess_exec("bash", "-c", command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return ExecResult(stdout=output.decode(errors="replace"), return_code=process.returncode or 0)


class LeavesPrograms(Broken):
    breaks = ("no_program_of_the_host_is_reached",)

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        foreign = "cp /bin/sleep /gone && { setsid /gone 1 >/dev/null 2>&1 & } && sleep 0.01 && rm /gone"
        return await super().exec(f"{foreign}\n{command}", *args, **kwargs)


class OpensItsFirstProcess(Broken):
    breaks = ("the_first_process_is_closed",)

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return await super().exec(command.replace("/proc/1/", "/proc/self/"), *args, **kwargs)


class _OneRank(Ranks):
    outside_of_view = now = POLICY  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]  # a constant


class HasNoRanks(Broken):
    breaks = ("what_ran_before_the_policy_is_closed_to_it", "a_verifier_is_closed_to_all_outside_of_its_view")

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        self._running()._ranks = _OneRank()  # pyright: ignore[reportPrivateUsage]  # the fault


class UsesItsTar(Broken):
    breaks = ("no_program_inside_takes_part_in_transfers",)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.exec("tar --version")
        await super().upload_dir(source_dir, target_dir)


class HasNoView(Broken):
    breaks = ("a_verifier_sees_the_image_and_what_counts",)

    @override
    async def enter_verifier_view(self, verify_paths: Any) -> None: ...


class SharesAllDirectories(Broken):
    breaks = ("a_verifiers_directories_can_be_its_own",)

    @override
    async def enter_shared_view(self, directories: Any) -> None: ...


class HasNoViewForSetUps(Broken):
    breaks = ("a_set_up_runs_with_the_images_programs",)
    enter_set_up_view: Any = None


class LosesKeys(Broken):
    breaks = ("a_terminal_opens_and_answers", "a_running_program_is_interrupted_by_a_key")
    exec_argv: Any = None

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return await super().exec(command.replace(" keys ", " none ").replace(" hex ", " none "), *args, **kwargs)


class LeavesTerminals(Broken):
    breaks = ("a_closed_terminal_leaves_no_process",)
    exec_argv: Any = None

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        closes = shlex.quote(read_script("close")) in command
        return await super().exec("true" if closes else command, *args, **kwargs)


class StopsLate(Broken):
    breaks = (
        "a_stop_ends_what_runs",
        "after_the_stop_nothing_runs",
        "after_the_stop_nothing_is_transferred",
        "a_terminal_in_a_stopped_sandbox_is_an_infrastructure_failure",
    )
    commands = 0
    stops = 0

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        self.commands += 1
        try:
            return await super().exec(*args, **kwargs)
        finally:
            self.commands -= 1

    @override
    async def stop(self, delete: bool) -> None:
        self.stops += 1
        if not self.commands or self.stops > 1:
            await super().stop(delete)


class StopsOnce(Broken):
    breaks = (
        "a_stop_before_the_start_is_harmless",
        "a_second_stop_is_harmless",
        "a_terminal_in_a_stopped_sandbox_is_an_infrastructure_failure",
    )
    stops = 0

    @override
    async def stop(self, delete: bool) -> None:
        self.stops += 1
        if self._sandbox is None and self.stops < 3:
            raise UsageError("there is nothing to stop")
        await super().stop(delete)

    @override
    async def exec(self, *args: Any, **kwargs: Any) -> ExecResult:
        self._require_no_stop()
        return await super().exec(*args, **kwargs)

    @override
    async def exec_pipes(self, *args: Any, **kwargs: Any) -> PipedCommand:
        self._require_no_stop()
        return await super().exec_pipes(*args, **kwargs)

    def _require_no_stop(self) -> None:
        if self.stops:
            raise UsageError("it was stopped")


class AsksMainForItsServices(Broken):
    breaks = (
        "a_command_runs_in_a_service",
        "a_service_shares_neither_files_nor_processes_with_main",
        "files_of_a_service_come_out",
        "a_service_that_is_not_there_runs_nothing",
        "a_stopped_service_has_ended_and_main_goes_on",
    )

    @override
    async def service_exec(self, command: str, *, service: str | None = None, **options: Any) -> ExecResult:
        return await self.exec(command, **options)


class JoinsNoServices(Broken):
    breaks = ("main_waits_until_its_service_is_healthy", "services_reach_one_another_by_name")

    @override
    async def _read_compose(self, **options: Any) -> None:
        await super()._read_compose(**options)
        assert self._others is not None
        project = self._others.project
        alone = replace(project.main, networks={}, mounts=(), depends_on=())
        self._others.project = project = replace(project, services={**project.services, "main": alone})
        self._member = Member(project, alone)


ALL: Sequence[type[Broken]] = Broken.__subclasses__()
