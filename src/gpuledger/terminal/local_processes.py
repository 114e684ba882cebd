"""Processes of this machine for `top`: the command lines that the user may read, and signals."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from threading import Lock, Thread, current_thread
from typing import Final

from gpuledger.host.process_tree import OsProcess, ProcessTree
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.command_line import format_command_line
from gpuledger.workloads.cgroup import CgroupOwner, parse_cgroup

# The signals that can be sent, and what each does.
SIGNALS: Final = {
    "TERM": "requests that the process end",
    "KILL": "ends the process at once; it cannot save anything",
    "INT": "interrupts the process, like Ctrl-C",
}
_CONTAINED: Final = ("pod", "container")
# Seconds after which a read is given up; healthy ones take microseconds.
_LONGEST_READ: Final = 2.0
# Seconds until a command line is read again.
_GOOD_FOR: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for certain: its pid, and its start in clock ticks since boot. Pids are used again."""

    pid: int
    ticks: int


class LocalProcesses:
    """What the user of this program may see and do with processes of this machine.

    All files are read with the permissions of this user; nothing is requested from a privileged program.
    `command_lines` is `own`, `all` or `off`: `own` shows those of the user (root: of everyone), `all` those
    that the kernel lets the user read, as ps does.
    """

    def __init__(
        self,
        tree: ProcessTree,
        start_ticks: Callable[[int, float | None], int | None],
        user_name: Callable[[int], str],
        command_lines: str = "own",
        uid: int | None = None,
    ) -> None:
        """`start_ticks` returns the start of the process with this pid and start time (unix seconds) in the
        newest snapshot, None if there is none; `uid` is this program's user.
        """
        self.tree, self._start_ticks, self._user_name = tree, start_ticks, user_name
        self._command_lines = command_lines
        self._uid = os.getuid() if uid is None else uid
        self.is_root = tree.is_root(self._uid)
        self._container = _container_of(parse_cgroup(tree.cgroup(os.getpid())))

    def identify(self, pid: int | None, start_unix: float | None) -> ProcessId | None:
        """The process of a row of the newest snapshot; None if it is not in it, or its start is unknown."""
        ticks = None if pid is None else self._start_ticks(pid, start_unix)
        return None if pid is None or ticks is None else ProcessId(pid, ticks)

    def find(self, wanted: ProcessId) -> OsProcess | None:
        """The process, if it still runs and is visible."""
        found = self.tree.read(wanted.pid)
        return found if found is not None and found.ticks == wanted.ticks else None

    def user_of(self, process: OsProcess) -> str:
        """The name of its user; empty if it is unknown."""
        return "" if process.uid is None else self._user_name(process.uid)

    def is_own(self, process: OsProcess) -> bool:
        """Whether it runs as this user, outside of foreign containers: uid 1000 in a pod is someone else."""
        if process.uids != {self._uid}:
            return False
        owner = parse_cgroup(self.tree.cgroup(process.pid))
        if owner.kind not in _CONTAINED or _container_of(owner) == self._container:
            return True
        # A rootless container of the user's own login.
        return owner.outer is not None and owner.outer.kind == "user" and owner.outer.uid == self._uid

    def command_line(self, wanted: ProcessId) -> str:
        """The command line with secrets hidden; empty if there is none, or the user may not read it.

        Blocks as `ProcessTree.arguments` does.
        """
        if self._command_lines == "off":
            return ""
        arguments = self.tree.arguments(wanted.pid)
        # Checked afterwards: until then the pid can have become another process, or another user's program.
        process = self.find(wanted)
        if process is None or not (self._command_lines == "all" or self.is_root or self.is_own(process)):
            return ""
        return format_command_line(arguments)

    def check_signal(self, process: OsProcess) -> None:
        """Raises GpuledgerError if this user may not send signals to this process."""
        if process.pid <= 1 or process.pid == os.getpid():
            raise GpuledgerError(f"Process {process.pid} ({process.name}) is not signaled from here.")
        if self.is_root or self.is_own(process):
            return
        owner = parse_cgroup(self.tree.cgroup(process.pid))
        where = f" in a {owner.kind}" if owner.kind in _CONTAINED else ""
        user = self.user_of(process) or "another user"
        raise GpuledgerError(
            f"Process {process.pid} ({process.name}) belongs to {user}{where}: only its owner and root can "
            "signal it."
        )

    def send_signal(self, wanted: ProcessId, name: str) -> None:
        """Send a signal of SIGNALS to exactly this process. Raises GpuledgerError if that is impossible."""
        if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
            raise _no_pidfd(wanted)
        try:
            # From here on the descriptor refers to one process, even if the pid is used again.
            handle = os.pidfd_open(wanted.pid)
        except OSError as error:
            raise _failed(wanted, name, error) from None
        try:
            process = self.find(wanted)
            if process is None or not process.running:
                raise _ended(wanted)
            if self.tree.pid_of(handle) != wanted.pid:
                raise GpuledgerError(
                    f"Process {wanted.pid} has another pid where this program runs (--procfs): no signal was "
                    "sent."
                )
            self.check_signal(process)
            signal.pidfd_send_signal(handle, signal.Signals[f"SIG{name}"])
        except OSError as error:
            raise _failed(wanted, name, error) from None
        finally:
            os.close(handle)


class CommandLineReader:
    """Command lines by process, read in a daemon thread every ten seconds; a read that hangs delays no other.

    Programs change their titles, and a shell becomes another program.
    """

    def __init__(
        self,
        read: Callable[[ProcessId], str],
        on_read: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_read` is called in the thread when all requested command lines have been read."""
        self._read, self._on_read, self._clock = read, on_read, clock
        self._lock = Lock()
        # Each with the time at which it is read again.
        self._known: dict[ProcessId, tuple[str, float]] = {}
        self._wanted: list[ProcessId] = []
        self._thread: Thread | None = None
        # What the thread reads, and since when.
        self._reading: tuple[ProcessId, float] | None = None

    def get(self, process: ProcessId) -> str:
        """The command line; empty if there is none, it may not be read, or it has not been read yet."""
        return self._known.get(process, ("", 0.0))[0]

    def request(self, processes: Collection[ProcessId]) -> None:
        """Read the command lines of these processes, and forget others. Does not block."""
        now = self._clock()
        with self._lock:
            self._known = {process: known for process, known in self._known.items() if process in processes}
            if self._reading is not None and now - self._reading[1] > _LONGEST_READ:
                # The thread ends when the read does; each process hangs one thread at most.
                self._known[self._reading[0]] = ("", inf)
                self._reading = self._thread = None
            busy = None if self._reading is None else self._reading[0]
            known = self._known
            self._wanted = [
                one for one in processes if one != busy and (one not in known or known[one][1] <= now)
            ]
            if self._wanted and self._thread is None:
                self._thread = Thread(target=self._run, name="command lines", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        thread = current_thread()
        while True:
            with self._lock:
                if self._thread is not thread:
                    return
                if not self._wanted:
                    self._thread = self._reading = None
                    break
                process = self._wanted.pop(0)
                self._reading = (process, self._clock())
            line = self._read(process)
            with self._lock:
                if self._thread is thread:
                    self._known[process] = (line, self._clock() + _GOOD_FOR)
        self._on_read()


def _container_of(owner: CgroupOwner) -> tuple[str, str, str]:
    return (owner.pod_uid, owner.container_id, owner.container)


def _ended(wanted: ProcessId) -> GpuledgerError:
    return GpuledgerError(f"Process {wanted.pid} has ended; no signal was sent.")


def _no_pidfd(wanted: ProcessId) -> GpuledgerError:
    return GpuledgerError(
        "Signals need pidfd_open (Linux 5.3), so that a pid that is used again is never hit; no signal was "
        f"sent: use kill {wanted.pid}."
    )


def _failed(wanted: ProcessId, name: str, error: OSError) -> GpuledgerError:
    if error.errno == errno.ESRCH:
        return _ended(wanted)
    if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
        return _no_pidfd(wanted)
    if error.errno == errno.EPERM:
        return GpuledgerError(
            f"No permission to send SIG{name} to process {wanted.pid}: it runs as another user, or this "
            "program lacks CAP_KILL."
        )
    return GpuledgerError(f"Cannot send SIG{name} to process {wanted.pid}: {error.strerror or error}.")
