"""Requirements on the confinement of a hostile root: it reaches neither the machine nor the verdict."""

import asyncio
import shlex
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from harbor_gym.sandboxes.extensions import (
    SupportsCleanUp,
    SupportsSetUpView,
    SupportsSharedView,
    SupportsVerifierView,
)
from harbor_gym.testing.conformance.behaviours import Family, expect, expect_equal
from harbor_gym.testing.conformance.probe import UID, USER, Probe

CONFINEMENT = Family[Probe]("confinement")

_ENTRIES = 8
_WATCH = """\
end=$((SECONDS + 4))
while [ $SECONDS -lt $end ] && [ ! -e /tmp/watched ]; do
  for link in /proc/[0-9]*/exe; do
    name=$(readlink "$link") || continue
    case $name in /memfd:*) continue ;; esac
    [ -e "$name" ] || echo "$name"
  done
done
true
"""
"""Prints each executed program that the sandbox's files lack; files in memory are left out."""

_OF_ANOTHER = ("mem", "environ", "fd/0", "root/etc/passwd", "cwd/.")
_REACH = f"""\
for name in {" ".join(_OF_ANOTHER)}; do
  for become in "" "setpriv --reuid {UID} --regid {UID} --clear-groups"; do
    $become bash -c 'if [ "$2" = mem ]; then exec 3<>"/proc/$1/$2"; else exec 3<"/proc/$1/$2"; fi' x "$1" "$name" &&
      echo "$name"
  done
done 2>/dev/null
true
"""
"""Prints the files of a process in /proc that can be opened, as root and as an ordinary user that root can become."""

_REPLACED = ("bash", "sh", "test", "mkdir", "rm", "find", "chmod")
_MARKED = """\
#!/usr/bin/kept
[ -e /called ] || echo x >/called
exec -a "${0##*/}" "/usr/lib/kept/${0##*/}" "$@"
"""
_REPLACE = f"""\
echo {shlex.quote(_MARKED)} >/marked
chmod 755 /marked && cp "$(readlink -f /bin/bash)" /usr/bin/kept && mkdir -p /usr/lib/kept
for name in {" ".join(_REPLACED)}; do cp -L "$(type -P $name)" /usr/lib/kept/; done
for name in {" ".join(_REPLACED)}; do cp /marked /usr/bin/.new && mv /usr/bin/.new /usr/bin/$name; done
"""
"""Replaces the programs that Harbor calls by others that leave a file behind and then do the same."""

_MORE_TERMINALS_THAN_ANY_TASK_NEEDS = 256
_MORE_FILES_THAN_ANY_TASK_NEEDS = 10_000
_SMALL_MB, _DIED = 128, 128
_FILL_SOCKETS = """\
use Socket;
socket(my $server, PF_INET, SOCK_STREAM, 0) or die $!;
bind($server, sockaddr_in(0, INADDR_LOOPBACK)) or die $!;
listen($server, 8) or die $!;
my ($held, @kept) = (0);
for (1 .. 400) {
  socket(my $writer, PF_INET, SOCK_STREAM, 0) or last;
  connect($writer, getsockname($server)) or last;
  accept(my $reader, $server) or last;
  push @kept, $writer, $reader;
  fcntl($writer, 4, 2048);
  while ($held < $ARGV[0] and my $count = syswrite($writer, "x" x 65536)) { $held += $count }
}
print $held;
"""
"""Fills TCP connections to itself, and prints the bytes that they took. F_SETFL is 4, O_NONBLOCK 2048."""
_HIDDEN = ("kcore", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "keys", "timer_list")


@CONFINEMENT.behaviour_alone
async def no_program_of_the_host_is_reached(probe: Probe) -> None:
    """While commands start, root inside finds no process whose program is a file of the host, by /proc/PID/exe."""
    await probe.output("rm -f /tmp/watched")
    watch = asyncio.ensure_future(probe.run(_WATCH))
    for _ in range(_ENTRIES):
        await probe.output("sleep 0.1")
    await probe.output("touch /tmp/watched")
    found = await watch
    expect_equal((found.return_code, found.stdout or ""), (0, ""), "programs that the sandbox has not")


@CONFINEMENT.behaviour
async def root_inside_is_root_of_its_own_namespace(probe: Probe) -> None:
    """The sandbox has a user namespace of its own: root's rights inside are no rights on the machine."""
    inside = await probe.output("readlink /proc/self/ns/user")
    outside = str(await asyncio.to_thread(Path("/proc/self/ns/user").readlink))
    expect(inside.startswith("user:["), f"the user namespace can't be determined: {inside!r}")
    expect(inside != outside, f"commands are in this machine's own user namespace, {outside}")


@CONFINEMENT.behaviour_alone
async def terminals_end_at_the_sandboxs_own_limit(probe: Probe) -> None:
    """Each sandbox has a limit of pseudo-terminals, of which the machine has a few thousand in all."""
    most = _MORE_TERMINALS_THAN_ANY_TASK_NEEDS
    script = (
        f"taken=0; while [ $taken -lt {most} ] && exec {{fd}}<>/dev/ptmx; do taken=$((taken + 1)); done; echo $taken"
    )
    taken = int(await probe.output(f"bash -c {shlex.quote(script)} 2>/dev/null"))
    expect(0 < taken < most, f"one command took {taken} pseudo-terminals")


@CONFINEMENT.behaviour
async def open_files_end_at_the_processs_own_limit(probe: Probe) -> None:
    """A process has a limit of open files that root can't raise, because the machine has one limit for all."""
    most = _MORE_FILES_THAN_ANY_TASK_NEEDS
    limit = await probe.output("ulimit -Hn")
    expect(limit.isdecimal() and int(limit) < most, f"a process may open {limit} files")
    raised = await probe.run(f"ulimit -n {most}")
    expect(raised.return_code != 0, f"root raised its limit of open files from {limit} to {most}")


@CONFINEMENT.behaviour_alone
async def socket_buffers_end_at_the_sandboxs_own_limit(probe: Probe) -> None:
    """Unread data in sockets is kernel memory, and counts towards ``memory_mb``."""
    most = 2 * _SMALL_MB
    async with probe.small(_SMALL_MB) as sandbox:
        result = await probe.run(f"perl -e {shlex.quote(_FILL_SOCKETS)} {most << 20}", sandbox=sandbox)
    held = (result.stdout or "").strip()
    expect(held.isdecimal() or result.return_code > _DIED, f"sockets could not be filled: {result.stderr or held!r}")
    # A process that the limit has killed prints nothing.
    expect(int(held or 0) >> 20 < most, f"sockets held {most} MiB in a sandbox that has {_SMALL_MB} (memory_mb)")


@CONFINEMENT.behaviour
async def the_first_process_is_closed(probe: Probe) -> None:
    """Root inside can't write to the memory of the sandbox's first process, which every clean-up spares."""
    await probe.output("exec 3<>/proc/self/mem")
    result = await probe.run("exec 3<>/proc/1/mem")
    expect(result.return_code != 0, "/proc/1/mem was opened for writing")


@CONFINEMENT.behaviour
async def the_kernels_memory_is_hidden(probe: Probe) -> None:
    """The files of /proc about the machine's memory, keys and timers are empty or can't be read."""
    for name in _HIDDEN:
        read = await probe.run(f"head -c 16 /proc/{name} 2>/dev/null | wc -c")
        expect_equal((read.stdout or "").strip(), "0", f"bytes read of /proc/{name}")


@CONFINEMENT.behaviour
async def system_calls_are_filtered(probe: Probe) -> None:
    """Commands run under a system call filter and can't make namespaces, in which they would have all rights."""
    expect_equal(await probe.output("grep '^Seccomp:' /proc/self/status | tr -d '\\t'"), "Seccomp:2", "the filter")
    for kind in ("user", "mount", "net"):
        result = await probe.run(f"unshare --{kind} true")
        expect(result.return_code != 0, f"a {kind} namespace was made")


@CONFINEMENT.behaviour_alone
async def no_program_inside_takes_part_in_transfers(probe: Probe) -> None:
    """Uploads and downloads run no program of the sandbox: a replaced ``tar`` is not called, nor its output parsed."""
    names = "tar cat mkdir chmod chown find gzip cp"
    mark = 'printf \'#!/bin/bash\\necho x >> /tmp/called\\nexec -a "${0##*/}" /usr/bin/"${0##*/}" "$@"\\n\''
    replace = f"for name in {names}; do {mark} > /usr/local/bin/$name; /usr/bin/chmod 755 /usr/local/bin/$name; done"
    source, back = probe.folder(), probe.folder()
    (source / "file").write_text("x", encoding="utf-8")
    await probe.output(f"rm -f /tmp/called; {replace}")
    try:
        await probe.sandbox.upload_dir(source, "/srv/carried")
        await probe.sandbox.download_dir("/srv/carried", back)
        called = await probe.run("[ -e /tmp/called ]")
    finally:
        await probe.run(f"cd /usr/local/bin && rm -f {names}")
    expect_equal((back / "file").read_text(encoding="utf-8"), "x", "the file's content")
    expect(called.return_code != 0, "a program of the sandbox was called")


@CONFINEMENT.behaviour_alone
async def a_verifier_sees_the_image_and_what_counts(probe: Probe) -> None:
    """A verifier can get a view with the original files of the image and only chosen paths of the sandbox's."""
    sandbox = probe.sandbox
    expect(isinstance(sandbox, SupportsVerifierView), "it has no view for a verifier (enter_verifier_view)")
    assert isinstance(sandbox, SupportsVerifierView)
    await probe.output("mkdir -p /srv/counts; echo mine > /srv/counts/file; echo mine > /usr/local/bin/planted")
    await sandbox.enter_verifier_view([PurePosixPath("/srv/counts")])
    try:
        expect_equal(await probe.output("cat /srv/counts/file"), "mine", "what counts")
        planted = await probe.run("[ -e /usr/local/bin/planted ]")
        expect(planted.return_code != 0, "what was planted among the image's files is in the view")
    finally:
        await sandbox.leave_verifier_view()
    expect_equal(await probe.output("cat /usr/local/bin/planted"), "mine", "the sandbox's own file after the view")


_FORGING = """\
mkdir -p /logs/verifier
setsid sh -c 'while :; do
    mv /logs/verifier /logs/x; mv /logs /srv/x; rm -rf /logs/x /srv/x
    mkdir -p /logs/verifier; echo forged > /logs/verifier/verdict
    for root in /proc/[0-9]*/root; do echo forged > $root/logs/verifier/verdict; done
done' >/dev/null 2>&1 </dev/null &
"""


@CONFINEMENT.behaviour_alone
async def a_verifiers_directories_can_be_its_own(probe: Probe) -> None:
    """What runs outside of a shared view neither sees the verifier's directories nor puts others in their place."""
    sandbox = await probe.fresh()
    expect(isinstance(sandbox, SupportsSharedView), "it has no shared view for a verifier (enter_shared_view)")
    assert isinstance(sandbox, SupportsSharedView)
    assert isinstance(sandbox, SupportsCleanUp)
    await sandbox.clean_up("baseline", {}, timeout_sec=20)
    await probe.output(_FORGING, sandbox=sandbox, user="root", cwd="/")
    await sandbox.enter_shared_view([PurePosixPath("/logs/verifier")])
    try:
        judge = "echo ours > /logs/verifier/verdict; echo shared > /srv/seen; sleep 0.3; cat /logs/verifier/*"
        found = await probe.output(judge, sandbox=sandbox, user="root", cwd="/")
        expect_equal(found, "ours", "what is in the verifier's own directory")
    finally:
        await sandbox.leave_verifier_view()
    found = await probe.output("cat /srv/seen", sandbox=sandbox, user="root", cwd="/")
    expect_equal(found, "shared", "a file that the verifier wrote elsewhere")


@CONFINEMENT.behaviour_alone
async def what_ran_before_the_policy_is_closed_to_it(probe: Probe) -> None:
    """After the first baseline root opens neither memory nor files of earlier processes, which the clean-up spares."""
    sandbox = await probe.fresh()
    expect(isinstance(sandbox, SupportsCleanUp), "it takes no baseline by itself (clean_up)")
    assert isinstance(sandbox, SupportsCleanUp)
    services = [await _sleeping(probe, sandbox, 4101, "root"), await _sleeping(probe, sandbox, 4102, USER)]
    await sandbox.clean_up("baseline", {}, timeout_sec=20)
    neighbour = await _sleeping(probe, sandbox, 4103, "root")
    expect("mem" in await _reached(probe, sandbox, neighbour), "root does not open a process of its own")
    for pid in services:
        expect_equal(await _reached(probe, sandbox, pid), [], "what root opened of a process older than the baseline")


@CONFINEMENT.behaviour_alone
async def a_verifier_is_closed_to_all_outside_of_its_view(probe: Probe) -> None:
    """A process outside the view opens neither memory nor files of commands in it, as any user."""
    sandbox = await probe.fresh()
    expect(isinstance(sandbox, SupportsCleanUp), "it takes no baseline by itself (clean_up)")
    expect(isinstance(sandbox, SupportsVerifierView), "it has no view for a verifier (enter_verifier_view)")
    assert isinstance(sandbox, SupportsCleanUp)
    assert isinstance(sandbox, SupportsVerifierView)
    await sandbox.clean_up("baseline", {}, timeout_sec=20)
    await sandbox.enter_verifier_view([])
    graded = [await _sleeping(probe, sandbox, 4111, "root"), await _sleeping(probe, sandbox, 4112, USER)]
    await sandbox.leave_verifier_view()
    for pid in graded:
        expect_equal(await _reached(probe, sandbox, pid), [], "what root opened of a command in the view")


@CONFINEMENT.behaviour_alone
async def no_program_inside_takes_part_in_directory_calls(probe: Probe) -> None:
    """``is_dir``, ``is_file``, ``ensure_dirs``, ``empty_dirs`` and ``reset_dirs`` run no program of the sandbox."""
    sandbox = await probe.fresh()
    await probe.output(_REPLACE, sandbox=sandbox, user="root")
    await sandbox.ensure_dirs(["/made/first"])
    await sandbox.empty_dirs(["/made/second"])
    await sandbox.reset_dirs(remove_dirs=["/made/first"], create_dirs=["/made/third"], chmod_dirs=["/made/third"])
    names = ("first", "second", "third")
    expect_equal([await sandbox.is_dir(f"/made/{name}") for name in names], [False, True, True], "directories")
    expect(not await sandbox.is_file("/called"), "a program of the sandbox was called")


async def _sleeping(probe: Probe, sandbox: BaseEnvironment, marker: int, user: str) -> int:
    start = f"setsid sleep {marker} >/dev/null 2>&1 </dev/null & echo $!"
    pid = int(await probe.output(start, sandbox=sandbox, user=user, cwd="/"))
    wait = f"until grep -qzx {marker} /proc/{pid}/cmdline; do sleep 0.01; done"
    await probe.output(wait, sandbox=sandbox, cwd="/")
    return pid


async def _reached(probe: Probe, sandbox: BaseEnvironment, pid: int) -> list[str]:
    found = await probe.output(f"set -- {pid}\n{_REACH}", sandbox=sandbox, user="root", cwd="/")
    return sorted(set(found.split()))


_PREPARED = """\
rm -rf /srv/counts /srv/trap /etc/set /opt/set /opt/kept; mkdir -p /srv/counts /srv/trap /opt/kept
ln -s /srv/trap /opt/set; mkfifo /etc/set; echo mine > /opt/kept/mine; echo mine > /usr/local/bin/planted
"""
_SET_UP = """\
[ ! -e /usr/local/bin/planted ] || exit 1
mkdir -p /opt/set /opt/kept; chmod 751 /opt/set; echo set > /opt/set/file; ln -s file /opt/set/link
echo set > /etc/set; chmod 640 /etc/set; echo set > /srv/counts/file; echo set > /opt/kept/file; echo set > /tmp/set
rm -f /etc/issue
"""
_FOUND = """\
timeout 5 cat /etc/set /opt/set/link /srv/counts/file /opt/kept/file /opt/kept/mine
stat -c %a /opt/set /etc/set; ls -A /srv/trap; ls -d /tmp/set /etc/issue 2>/dev/null || true
"""


@CONFINEMENT.behaviour_alone
async def a_set_up_runs_with_the_images_programs(probe: Probe) -> None:
    """A later step can be prepared in a view; its files are copied to the policy's, through no link of the policy."""
    sandbox = probe.sandbox
    expect(isinstance(sandbox, SupportsSetUpView), "it has no view for a set-up (enter_set_up_view)")
    assert isinstance(sandbox, SupportsSetUpView)
    await probe.output(_PREPARED)
    await sandbox.enter_set_up_view([PurePosixPath("/srv/counts")])
    set_up = await probe.run(_SET_UP)
    expect_equal(await sandbox.leave_set_up_view(timeout_sec=30.0), "", "what could not be copied")
    expect_equal(set_up.return_code, 0, "the set-up's exit code")
    found = (await probe.output(_FOUND)).split()
    expect_equal(found, ["set", "set", "set", "set", "mine", "751", "640"], "what the set-up left")
