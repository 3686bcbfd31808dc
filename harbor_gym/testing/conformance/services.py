"""Requirements on a sandbox that runs the services of a Compose file: Harbor's capability ``docker_compose``."""

from harbor_gym.testing.conformance.behaviours import Family, expect, expect_equal
from harbor_gym.testing.conformance.probe import SERVICE, SERVICE_SAYS, TASK_ENV, Probe

SERVICES = Family[Probe]("services")


@SERVICES.behaviour
async def main_waits_until_its_service_is_healthy(probe: Probe) -> None:
    """With ``service_healthy`` main comes after the service, and finds what that wrote to a common volume."""
    sandbox = await probe.composed()
    expect_equal(await probe.output("cat /shared/said", sandbox=sandbox), SERVICE_SAYS, "what the service wrote")


@SERVICES.behaviour
async def a_command_runs_in_a_service(probe: Probe) -> None:
    """``service_exec`` runs in the service, with its variables and none of main's, and returns its status."""
    sandbox = await probe.composed()
    done = await sandbox.service_exec(f'echo "$SAYS"; echo "{"".join(f"${name}" for name in TASK_ENV)}"; exit 3',
                                      service=SERVICE, timeout_sec=30)  # fmt: skip
    expect_equal((done.stdout, done.return_code), (f"{SERVICE_SAYS}\n\n", 3), "output and status")


@SERVICES.behaviour
async def a_service_shares_neither_files_nor_processes_with_main(probe: Probe) -> None:
    """What is no volume is each one's own, and so are the processes."""
    sandbox = await probe.composed()
    await probe.output("echo mine >/etc/mine", sandbox=sandbox)
    look = "test -e /etc/mine && echo file; grep -qsz 500[2] /proc/[0-9]*/cmdline && echo process"
    seen = await sandbox.service_exec(look, service=SERVICE, timeout_sec=30)
    expect_equal((seen.stdout or "").split(), ["process"], "what the service sees")
    expect(not await probe.is_alive(5002, sandbox=sandbox), "main sees a process of the service")


@SERVICES.behaviour
async def services_reach_one_another_by_name(probe: Probe) -> None:
    """main and a service are in one network, by their names."""
    sandbox = await probe.composed()
    for name, asked in (("main", SERVICE), (SERVICE, "main")):
        command = f"bash -c '</dev/tcp/{asked}/9' 2>&1"
        done = await sandbox.service_exec(command, service=name, timeout_sec=30)
        expect("refused" in (done.stdout or ""), f"{name} does not reach {asked}: {done.stdout}")


@SERVICES.behaviour
async def files_of_a_service_come_out(probe: Probe) -> None:
    """``service_download_file`` and ``service_download_dir`` take them from the service and not from main."""
    sandbox, folder = await probe.composed(), probe.folder()
    made = await sandbox.service_exec("mkdir /made && echo here >/made/file", service=SERVICE, timeout_sec=30)
    expect_equal(made.return_code, 0, "the status of the command that made them")
    await sandbox.service_download_file("/made/file", folder / "file", service=SERVICE)
    await sandbox.service_download_dir("/made", folder / "dir", service=SERVICE)
    for path in (folder / "file", folder / "dir/file"):
        expect_equal(path.read_text(encoding="utf-8"), "here\n", path.name)


@SERVICES.behaviour
async def a_service_that_is_not_there_runs_nothing(probe: Probe) -> None:
    """A command for a service that the Compose file lacks raises or fails."""
    expect(await _fails(probe, "absent"), "a command ran in a service that is not there")


@SERVICES.behaviour_alone
async def a_stopped_service_has_ended_and_main_goes_on(probe: Probe) -> None:
    """``stop_service`` ends one service alone, whose files can still be downloaded."""
    sandbox, folder = await probe.composed(), probe.folder()
    await sandbox.stop_service(SERVICE)
    expect(await _fails(probe, SERVICE), "a command ran in a service that was stopped")
    await probe.output("true", sandbox=sandbox)
    await sandbox.service_download_file("/shared/said", folder / "said", service=SERVICE)
    expect_equal((folder / "said").read_text(encoding="utf-8"), f"{SERVICE_SAYS}\n", "the file of the stopped service")


async def _fails(probe: Probe, service: str) -> bool:
    sandbox = await probe.composed()
    try:
        return (await sandbox.service_exec("true", service=service, timeout_sec=30)).return_code != 0
    except Exception:  # any refusal will do
        return True
