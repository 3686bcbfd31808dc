"""One sandbox's supervisor: a small process between the caller and the sandbox. Runs by itself, stdlib only.

It builds the sandbox (``namespaces.py``), then forks one process into it for every request on its control socket, and
ends with the first of: the socket's end, the caller's death, the sandbox's death.

The supervisor stays outside the sandbox's user namespace: root inside is nobody to it, and can't reach its processes,
its network namespace or its files. An ordinary user's supervisors are started in one user namespace and are root there;
each sandbox has one within that.

The supervisor itself is in none of the sandbox's control groups: no lack of memory or processes there stops it.

From before the sandbox lives until a child has become its command, these processes are not dumpable (nothing inside can
read their memory or reach their executable) and can import nothing. What they execute inside first is a sealed file in
memory (``programs.py``), never one of the host.
"""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any

import accounts
import checkpoint
import control_socket
import files
import listed_network
import namespaces
import shared
from child import REFUSED, RequestError, become_plain, give_pipes, resolve, run_child, steps_of, substitutes
from children import Children
from fuse import Served
from grading import cleanup, merging, view
from grading.view import FilesOfView, View, ViewError, unpin
from kernel import cgroups, packet_filter, programs, system_calls
from kernel.calls import (
    PR_SET_CHILD_SUBREAPER,
    MemoryKills,
    harden_self,
    has_capability,
    memory_directory,
    prctl,
    return_free_memory,
    use_own_files,
)
from kernel.capabilities import POLICY
from kernel.ids import Ids
from kernel.procfs import is_exiting, start_time
from kernel.steps import failure
from messages import (
    CommandSpec,
    Identity,
    MessageError,
    NetworkChange,
    SupervisorConfig,
    Target,
    own_namespaces,
    parse,
    to_json,
)
from namespaces import NamespaceBuild, NamespaceBuildError
from network import UserNetwork

_KILLED = 128 + signal.SIGKILL
_REQUEST_BYTES = 4096
_LAST_WORKS = ("baseline", "reset_verifier_dirs", "wait_until_idle")
"""After these parts of a clean-up others than the supervisor act in the sandbox: its worker is gone before."""
_WARM_UP_CALLS = 8
_ANY_COMMAND = CommandSpec("", "", "/", {}, ("/bin/sh",), identity=Identity(0, 0, (), "/"), rank=POLICY)


class _Supervisor:
    def __init__(
        self, control: socket.socket, config: SupervisorConfig, memory_kills: MemoryKills, reaper: int
    ) -> None:
        self.control = control
        self.reaper = reaper
        self.config = config
        self.memory_kills = memory_kills
        self.running: dict[int, tuple[int, int]] = {}
        self.poll = select.poll()
        self.children = Children(self.poll)
        self.dumps: dict[int, int] = {}
        self.unpacked = -1
        self.ids = Ids(is_shifted=config.has_own_ids, high_ids=config.high_ids, is_below=bool(config.image))
        self.first = programs.open_first()
        self.namespace_build: NamespaceBuild | None = None
        self.init = 0
        self.init_pidfd = -1
        self.mount_namespace = self.home = self.place = -1
        self.cgroup_fds: list[int] = []
        self.cgroups = cgroups.Cgroups(config.cgroups, config.limits)
        self.further_limits = substitutes(config.limits, config.cgroups, is_rootless=config.is_rootless)
        self.listed = listed_network.ListedNetwork(config, self.poll)
        self.network = UserNetwork(config, self.first, self.poll)
        self.served: list[Served] = []
        self.files_of_view = FilesOfView(namespaces.Layers.of(config), config.directories, config.limits.processors)
        self.view: View | None = None
        self.views = 0
        self.pinned: list[str] = []
        self.volumes, self.attached = shared.Volumes(), shared.Attached()
        self.networks = -1
        self.loss = ""
        self.loss_kind = ""

    def reply(self, *handles: int, **message: Any) -> None:
        with contextlib.suppress(OSError):
            socket.send_fds(self.control, [json.dumps(message).encode()], handles)

    def build(self) -> None:
        """Make the control groups, mount the files, start PID 1, and enter its namespaces except the user namespace."""
        self.cgroups.make()
        self.cgroup_fds = cgroups.open_cgroup_fds(self.config.cgroups)
        namespaces.mount_place(self.config, self.ids)
        if self.config.is_copy:
            # The overlay's own directories need room too, of which the policy may have left none.
            namespaces.open_reserve(self.config.storage_bytes)
            self.take_files()
        namespaces.serve_files(self.config, self.first, self.served)
        if self.config.limits.processors:
            # Inherited: a process that moved only when it began would cost each command a switch.
            os.sched_setaffinity(0, self.config.limits.processors)
        # The sandbox's first process is a grandchild, whose parent ends.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.namespace_build = NamespaceBuild(
            self.config, self.ids, self.first, self.cgroup_fds, self.cgroups.cgroup_mounts()
        )
        network_namespace, user_namespace = self.namespace_build.begin()
        if not self.config.shares_network:
            os.setns(network_namespace, os.CLONE_NEWNET)
            namespaces.open_network(self.config)
        os.close(network_namespace)
        if self.config.has_network:
            self.network.open()
        elif self.config.allowlist is not None:
            self.listed.open(self.config.allowlist)
        namespaces.mount_root(self.config, self.ids, user_namespace, self.served)
        os.close(user_namespace)
        self.init = self.namespace_build.finish()
        if self.config.is_copy:
            namespaces.close_reserve(self.config.storage_bytes)
        self.memory_kills.prioritize()
        self.init_pidfd = os.pidfd_open(self.init)
        self.mount_namespace = os.open(f"/proc/{self.init}/ns/mnt", os.O_RDONLY)
        self.home = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        self.place = os.open(".", os.O_RDONLY)
        os.setns(self.init_pidfd, own_namespaces(self.config))
        if not self.config.is_copy:
            self.write_etc()
        return_free_memory()
        started = {"init": self.init, "start_time": start_time(self.init), "ids": self.ids.extents}
        self.reply(ready=True, user_ids=self.user_ids(), **started)

    def user_ids(self) -> list[int]:
        if not self.config.users:
            return []
        with self.entered():
            known = accounts.read()
        return [number for user in self.config.users for number in accounts.ids_of(user, known)]

    def take_files(self) -> None:
        """Fill the sandbox's files with those of a dump, which the caller sends."""
        _, handles = control_socket.receive(self.control, _REQUEST_BYTES)
        spec_handle, memory = handles
        spec = control_socket.read_spec(spec_handle)
        if spec["is_packed"]:
            memory = self.unpacked = checkpoint.unpack(memory, checkpoint.room(self.config))
        checkpoint.fill("upper", memory, spec["ids"], self.ids.extents)
        for handle in handles:
            os.close(handle)

    def serve(self, parent: int) -> None:
        """Answer requests until the caller, the control socket or the sandbox is gone."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, control_socket.ignore)
        signal.set_wakeup_fd(wake_write)
        for handle in (self.control.fileno(), parent, wake_read, self.init_pidfd):
            self.poll.register(handle, select.POLLIN)
        if self.cgroups.events >= 0:
            self.poll.register(self.cgroups.events, self.cgroups.event_kind)
        while not self.loss:
            ready = {handle for handle, _ in self.poll.poll()}
            if self.cgroups.events in ready:
                self.cgroups.take_events()
                self.cgroups.follow_files(namespaces.files_bytes() + self.attached.files_bytes())
            if wake_read in ready:
                os.read(wake_read, 4096)
            for answer in self.children.answers():
                self.reply(**answer)
            self.reap()
            if self.init_pidfd in ready and self.cgroups.kills():
                self.loss, self.loss_kind = "its first process needed more memory than there was", "memory"
            if parent in ready or self.init_pidfd in ready:
                return
            if self.network.is_due(ready):
                self.start_network()
            elif self.listed.is_due(ready):
                self.listed.start()
            elif self.control.fileno() in ready and not self.handle_request():
                return

    def handle_request(self) -> bool:
        try:
            payload, handles = control_socket.receive(self.control, _REQUEST_BYTES)
        except ConnectionError:
            return False
        if not payload:
            return False
        message = json.loads(payload)
        if message["op"] not in ("cleanup", "kill", "view"):
            self.children.dismiss()
        try:
            if message["op"] == "exec":
                self.start_command(message["id"], handles)
            elif message["op"] == "kill":
                self.kill(message["id"])
            elif message["op"] == "network":
                change = parse(NetworkChange, control_socket.read_spec(handles[0]))
                self.switch_network(message["id"], change)
            elif message["op"] == "cleanup":
                self.start_cleanup(message, handles[0])
            elif message["op"] == "view":
                self.change_view(message["id"], **control_socket.read_spec(handles[0]))
            elif message["op"] == "merge":
                self.start_merge(message["id"], control_socket.read_spec(handles[0])["asked"])
            elif message["op"] == "dump":
                self.start_dump(message["id"], handles[0])
            elif message["op"] == "restore":
                self.start_restore(message["id"], *handles)
            elif message["op"] == "share":
                self.share(message["id"], message["work"], *handles)
            elif message["op"] == "written":
                own = {files.RESOLVER, *(f"{files.ETC}/{name}" for name in self.config.etc)}
                self.children.start(message["id"], lambda: None, lambda: view.written_paths(own))
        finally:
            for handle in handles:
                os.close(handle)
        return True

    def share(self, request: int, work: str, spec_handle: int, *given: int) -> None:
        """Make or take up something that the sandboxes of a project share, before anybody's command runs here."""
        spec = control_socket.read_spec(spec_handle)
        error, made = "", -1
        try:
            if work == "make_networks":
                made = shared.make_networks(**spec)
            elif work == "join_networks":
                self.networks = os.dup(given[0])  # kept: the networks last as long as one sandbox that is in them
                shared.join_networks(self.networks, self.config.devices, **spec)
            elif work == "lend":
                made = self.volumes.lend(**spec)
            else:
                self.attach(work, spec, *given)
        except OSError as exc:
            error = str(exc)
        self.reply(*([made] if made >= 0 else []), id=request, return_code=0, error=error)
        if made >= 0:
            os.close(made)

    def attach(self, work: str, spec: dict[str, Any], *given: int) -> None:
        """Change the sandbox's mounts."""
        user_namespace = os.open(f"/proc/{self.init}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self.entered():
                if work == "volume":
                    self.attached.volume(given[0], ids=self.ids, user_namespace=user_namespace, **spec)
                elif work == "memory":
                    self.attached.memory(ids=self.ids, **spec)
                elif work == "take_off":
                    self.attached.take_off(**spec)
                elif work == "shm":
                    shared.resize_shm(**spec)
                elif work == "close_root":
                    shared.close_root()
        finally:
            os.close(user_namespace)

    def start_cleanup(self, message: dict[str, Any], spec_handle: int) -> None:
        """Do one part of a clean-up: in the worker that waits since the policy was stopped, else in a child."""
        request, work = message["id"], message["work"]
        if work == "close_grading":
            namespaces.close_reserve(self.config.storage_bytes)
            self.reply(id=request, return_code=0, error="")
            return
        if work == "baseline" and message["is_untouched"]:
            # Only the image's author had a say in the files so far, which this process reads at each command as well.
            try:
                with self.entered():
                    answer = cleanup.do(work, control_socket.read_spec(spec_handle), self.ids)
            except OSError as exc:
                answer = {"error": str(exc)}
            self.reply(**{"id": request, "return_code": 0, "error": "", **answer})
            return
        further = {"is_full": namespaces.open_reserve(self.config.storage_bytes)} if work == "open_grading" else {}
        namespace = self.mount_namespace if self.view is None else self.view.namespace
        self.children.ask(
            request,
            {"work": work, "further": further},
            [spec_handle, namespace],
            self._clean_up,
            begins=work == "stop",
            ends=work in _LAST_WORKS,
        )

    def _clean_up(self, message: dict[str, Any], handles: list[int]) -> dict[str, Any]:
        """Do one part of a clean-up in a worker, with no descriptor of the supervisor's left open."""
        spec_handle, namespace = handles
        arguments = control_socket.read_spec(spec_handle) | message["further"]
        os.setns(namespace, os.CLONE_NEWNS)
        for handle in handles:
            os.close(handle)
        self.ids.become_untouchable()
        use_own_files()  # after another work, which may have used them as a user of the sandbox
        return cleanup.do(message["work"], arguments, self.ids)

    def start_merge(self, request: int, asked: list[str]) -> None:
        """Copy the files written in the view to the sandbox's own; the answer says whether the view ``is_used``."""
        uses: list[bool] = []

        def enter() -> None:
            assert self.view is not None
            os.setns(self.mount_namespace, os.CLONE_NEWNS)
            uses.append(merging.is_used(self.view.namespace))
            os.setns(self.home, os.CLONE_NEWNS)
            os.fchdir(self.place)
            self.ids.become_untouchable()

        def work() -> dict[str, Any]:
            assert self.view is not None
            return {"is_used": uses[0], **self.view.merge(asked, keeps=uses[0])}

        self.children.start(request, enter, work)

    def start_dump(self, request: int, spec_handle: int) -> None:
        """Dump the processes below one, and the files; with the answer the caller gets a descriptor of the dump."""
        spec = control_socket.read_spec(spec_handle)
        criu = parse(checkpoint.Criu, spec["criu"])
        memory = memory_directory(checkpoint.room(self.config))
        self.dumps[request] = memory
        self._work_at_files(request, lambda place: checkpoint.dump(place, criu, memory, spec["root"]))

    def start_restore(self, request: int, spec_handle: int, *given: int) -> None:
        spec = control_socket.read_spec(spec_handle)
        memory = given[0] if given else self.unpacked
        criu, source = parse(checkpoint.Criu, spec["criu"]), spec["ids"]
        checkpoint.pass_ids(spec["last"])
        self._work_at_files(request, lambda place: checkpoint.restore(place, criu, memory, source))
        if self.unpacked >= 0:
            os.close(self.unpacked)
            self.unpacked = -1

    def _work_at_files(self, request: int, work: Callable[[checkpoint.Place], dict[str, Any]]) -> None:
        place = checkpoint.Place(
            self.init_pidfd, self.mount_namespace, self.home, self.place, self.cgroup_fds, self.ids.extents
        )
        # Before the child closes what it has of the supervisor's.
        found: list[dict[str, Any]] = []

        def enter() -> None:
            self.network.leave_device()
            found.append(work(place))

        self.children.start(request, enter, lambda: found[0])

    def change_view(
        self,
        request: int,
        paths: list[str] | None,
        also: Sequence[str] = (),
        apart: Sequence[str] = (),
        *,
        keeps: bool = False,
    ) -> None:
        """Switch all commands to a pristine view with these paths, or a shared one; None switches back."""
        error = ""
        self.leave_view(keeps=keeps)
        try:
            if paths is not None:
                self.views += 1
                self.view = View(self.files_of_view, self.ids, self.views, self.cgroups.cgroup_mounts())
                if apart:
                    self.pinned = list(apart)
                    self.view.share(self.pinned, self.mount_namespace, self.init_pidfd)
                else:
                    with self.entered(own=True):
                        mounts = self.attached.carried([*paths, *also])
                    try:
                        self.view.open(paths, self.init_pidfd, etc=self.etc, also=also, mounts=mounts)
                    finally:
                        for tree in mounts.values():
                            os.close(tree)
        except ViewError as exc:
            error = str(exc)
            self.leave_view()
        handles = () if self.view is None else (self.view.namespace,)
        self.reply(*handles, id=request, return_code=0, error=error)

    def leave_view(self, *, keeps: bool = False) -> None:
        """End the view, if there is one; ``keeps`` leaves its files to the processes in it."""
        if self.view is not None:
            self.view.close(keeps=keeps)
            self.view = None
        if self.pinned:
            with self.entered():
                unpin(self.pinned)
            self.pinned = []

    def start_command(self, request: int, handles: list[int]) -> None:
        spec_handle, *stdio = handles
        report_read, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pid, error = 0, ""
        try:
            spec = parse(CommandSpec, control_socket.read_spec(spec_handle))
            with self.entered() as namespace:
                command = resolve(spec)
            handles += [command.script] if command.script >= 0 else []
            give_pipes(stdio, self.ids.outside(command.uid), self.ids.outside(command.gid))
            steps = steps_of(
                command,
                report_write,
                self.cgroup_fds,
                further_limits=self.further_limits,
                mount_namespace=namespace,
                user_namespace=self.init_pidfd,
            )
            if self.ids.is_shifted:
                pid = steps.spawn(self.first, stdio)
            else:
                # By a fork: a process of the sandbox may stop the child, but not what waits for its start.
                pid = os.fork()
                if pid == 0:
                    run_child(steps, self.first, stdio)
        except (RequestError, ValueError) as exc:
            error = str(exc)
        except OSError:
            if not self.is_ending():
                raise
            # The end of PID 1, which is noticed soon, answers this request too.
        finally:
            os.close(report_write)
            if pid:
                self.running[pid] = (request, report_read)
            else:
                os.close(report_read)
        if error:
            self.reply(id=request, return_code=REFUSED, error=error)

    @contextlib.contextmanager
    def entered(self, *, own: bool = False) -> Generator[int]:
        """See the sandbox's files as its commands do, inside a block; yields the mount namespace.

        ``own`` is to see the sandbox's own files even during a view.
        """
        namespace = self.mount_namespace if own or self.view is None else self.view.namespace
        os.setns(namespace, os.CLONE_NEWNS)
        try:
            yield namespace
        finally:
            os.setns(self.home, os.CLONE_NEWNS)
            os.fchdir(self.place)

    def switch_network(self, request: int, change: NetworkChange) -> None:
        error = ""
        try:
            self.listed.close()
            if not change.is_public:
                self.network.close()
            if change.allowlist is not None:
                self.listed.open(change.allowlist)
            elif change.is_public and not self.network.is_open:
                self.network.open()
            self.write_etc()
        except OSError as exc:
            error = str(exc)
            with contextlib.suppress(OSError):
                self.listed.close()
        self.reply(id=request, return_code=0, error=error)

    def start_network(self) -> None:
        try:
            self.network.start()
        except OSError as exc:
            self.loss = str(exc)

    @property
    def etc(self) -> dict[str, str]:
        """The files of /etc that the sandbox's image lacks."""
        has_resolver = self.network.is_open or self.listed.is_open
        return self.config.etc | ({"resolv.conf": f"nameserver {self.config.name_server}\n"} if has_resolver else {})

    def write_etc(self) -> None:
        if self.etc:
            with self.entered():
                files.write_etc(self.etc, self.ids.outside(0))

    def kill(self, request: int) -> None:
        # Nobody ends a dump but itself, in bounded time: it leaves the processes as they were.
        if request not in self.dumps:
            self.children.kill(request)
        for pid, (running, _) in self.running.items():
            if running == request:
                # Both: a child that has not yet called setsid has no group of its own.
                for send in (os.killpg, os.kill):
                    with contextlib.suppress(ProcessLookupError):
                        send(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect ended children and report the commands among them, unless the sandbox's own end killed them."""
        finished: list[dict[str, Any]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self.children.resume(pid)
                continue
            if (answer := self.children.collect(pid)) is not None:
                memory = self.dumps.pop(answer["id"], None)
                if memory is not None and ("harm" in answer or os.WIFSIGNALED(status)):
                    os.close(memory)
                    self.loss = f"its processes may be damaged ({answer.get('harm') or answer['error']})"
                    continue
                self.reply(*([] if memory is None else [memory]), **answer)
                if memory is not None:
                    os.close(memory)
            if pid == self.network.pid and self.network.is_open:
                self.loss = "its network process (slirp4netns) ended"
            if pid == self.listed.pid and self.listed.is_open:
                self.loss = f"its network process (the allowlist's proxy) ended: {self.listed.said() or 'no reason'}"
            for program in [program for program in self.served if program.pid == pid]:
                self.served.remove(program)
                self.loss = f"the program that serves its files ended: {program.said()}"
            if pid not in self.running:
                continue
            request, report = self.running.pop(pid)
            error = b""
            with contextlib.suppress(BlockingIOError):
                error = os.read(report, 4096)
            os.close(report)
            code = os.waitstatus_to_exitcode(status)
            finished.append({"id": request, "return_code": code if code >= 0 else 128 - code, "error": failure(error)})
        if any(message["return_code"] == _KILLED for message in finished) and self.is_ending():
            return
        for message in finished:
            self.reply(**message)

    def is_ending(self) -> bool:
        """Return whether PID 1 is ending: only then does the kernel kill all others and admit no new process."""
        return is_exiting(self.init)

    def tear_down(self) -> None:
        """Kill PID 1, which takes every process of its namespace along, and wait until all are gone.

        The network is killed, too; the forkserver collects its processes, as far as there is one.
        """
        self.network.leave()
        self.listed.leave()
        with contextlib.suppress(OSError):
            if self.init_pidfd >= 0:
                signal.pidfd_send_signal(self.init_pidfd, signal.SIGKILL)
            elif self.namespace_build is not None:
                self.namespace_build.kill()
                os.close(self.namespace_build.keep_alive)
        for program in self.served:
            # No process of the sandbox waits for its files any more, and so each ends.
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            # PID 1 is the last of its namespace to end, once its others are collected.
            while os.waitpid(-1, 0)[0] != self.init or os.getppid() != self.reaper:
                pass
        if self.loss:
            self.reply(lost=self.loss, kind=self.loss_kind)
        self.cgroups.remove()


def warm_up(data: object) -> None:
    """Do the work that every supervisor begins with, as far as it has no effect, before supervisors are forked.

    The interpreter adapts code and makes helpers at the first calls. In each supervisor that would cost 1 ms, mostly to
    copy pages. Errors are left to the supervisors.
    """
    with contextlib.suppress(OSError, MessageError):
        for _ in range(_WARM_UP_CALLS):
            config = parse(SupervisorConfig, data)
            system_calls.prepare(config.filters)
            os.close(programs.open_first())
            has_capability(0)
            packet_filter.messages(config.closed_networks, config.name_server)
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # as a forkserver is
            json.loads(json.dumps(data))
            namespaces.prepare(config)
            listed_network.prepare(config)
            steps_of(resolve(_ANY_COMMAND), 0, []).content()
            parse(CommandSpec, json.loads(to_json(_ANY_COMMAND)))
            parse(Target, json.loads(to_json(Target(0, "", (), config.cgroups, False, config.filters))))
            start_time(os.getpid())


def serve(control_fd: int, data: object, reaper: int) -> int:
    """Build one sandbox and serve it until its end; return the exit status.

    Args:
        control_fd: The control socket.
        data: The configuration.
        reaper: The process that collects killed ones which this one leaves, while it is this one's parent.
    """
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    try:
        config = parse(SupervisorConfig, data)
        listed_network.prepare(config)
        parent = os.pidfd_open(config.parent)
        memory_kills = MemoryKills()
        harden_self()
        become_plain()
        system_calls.prepare(config.filters)
        supervisor = _Supervisor(control, config, memory_kills, reaper)
    except ProcessLookupError:  # the caller has ended
        return 0
    except (OSError, MessageError) as exc:
        with contextlib.suppress(OSError):
            control.send(json.dumps({"error": str(exc)}).encode())
        return 1
    try:
        supervisor.build()
        supervisor.serve(parent)
    except (OSError, RequestError, NamespaceBuildError, ValueError) as exc:
        supervisor.reply(error=str(exc))
        return 1
    finally:
        supervisor.tear_down()
    return 0
