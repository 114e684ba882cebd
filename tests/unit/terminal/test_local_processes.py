"""The command lines that a user may read, and signals to exactly one process; on a procfs in a folder."""

from __future__ import annotations

import errno
import os
import signal
from threading import Event

import pytest

from gpuledger.host.process_tree import ProcessTree
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.local_processes import SIGNALS, CommandLineReader, LocalProcesses, ProcessId
from procfs_tree import ProcfsTree
from running import PATIENCE

ANN, BOB = 1000, 1001
POD = "0::/kubepods.slice/kubepods-pod2f1d7c7e_2c1e_4f0a_9a31_0d1f5f7f3b11.slice\n"
DOCKER = f"0::/system.slice/docker-{'ab' * 32}.scope\n"
ROOTLESS = f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{'cd' * 32}.scope\n"
LOGIN = "0::/user.slice/user-1000.slice/session-1.scope\n"
HANDLE = 77


@pytest.fixture
def procfs(tmp_path):
    return ProcfsTree(tmp_path)


def local(procfs, command_lines="own", uid=ANN):
    names = {ANN: "ann", BOB: "bob"}
    return LocalProcesses(
        ProcessTree(str(procfs.root)),
        lambda pid, start_unix: 5000 if pid == 40 and start_unix == 1.5 else None,
        lambda number: names.get(number, str(number)),
        command_lines,
        uid,
    )


def line(procfs, **options):
    return local(procfs, **options).command_line(ProcessId(40, 5000))


# Viewer, setting, the process's user and cgroup, whether the command line is shown.
READERS = [
    (ANN, "own", {"uid": ANN}, True),
    (ANN, "own", {"uid": BOB}, False),
    (ANN, "own", {"uid": 0}, False),
    (ANN, "own", {"uid": ANN, "effective": 0}, False),
    (ANN, "own", {"uid": ANN, "cgroup": POD}, False),
    (ANN, "own", {"uid": ANN, "cgroup": DOCKER}, False),
    (ANN, "own", {"uid": ANN, "cgroup": ROOTLESS}, True),
    (BOB, "own", {"uid": BOB, "cgroup": ROOTLESS}, False),
    (ANN, "all", {"uid": BOB}, True),
    (ANN, "all", {"uid": ANN, "cgroup": POD}, True),
    (0, "own", {"uid": BOB, "cgroup": POD}, True),
    (0, "off", {"uid": 0}, False),
    (ANN, "off", {"uid": ANN}, False),
]


@pytest.mark.parametrize(("uid", "command_lines", "process", "shown"), READERS)
def test_a_command_line_is_shown_to_its_user_and_to_root(procfs, uid, command_lines, process, shown):
    procfs.process(40, arguments=("python", "train.py"), **process)
    expected = "python train.py" if shown else ""
    assert line(procfs, uid=uid, command_lines=command_lines) == expected


def test_root_of_a_user_namespace_sees_only_its_own(tmp_path):
    procfs = ProcfsTree(tmp_path, uid_map="0 1000 1\n")
    procfs.process(40, uid=65534, arguments=("python", "train.py"))
    assert line(procfs, uid=0) == ""


def test_processes_of_the_container_in_which_top_runs_are_own(procfs):
    procfs.write(f"{os.getpid()}/cgroup", DOCKER)
    procfs.process(40, cgroup=DOCKER, arguments=("python", "train.py"))
    assert line(procfs) == "python train.py"


def test_the_command_line_of_the_next_process_with_the_pid_is_not_shown(procfs):
    procfs.process(40, ticks=5001, arguments=("python", "train.py"))
    assert line(procfs) == ""


def test_a_row_is_identified_by_pid_and_start(procfs):
    made = local(procfs)
    assert made.identify(40, 1.5) == ProcessId(40, 5000)
    assert (made.identify(40, 2.5), made.identify(None, 1.5)) == (None, None)


@pytest.fixture
def sent(monkeypatch):
    """The signals that were sent: descriptor and number."""
    found = []
    monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: found.append(number))
    return found


@pytest.fixture
def target(procfs, monkeypatch):
    """A process of ann to which every descriptor refers."""
    procfs.process(40)
    monkeypatch.setattr(ProcessTree, "pid_of", lambda self, pidfd: 40)
    return procfs


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_is_sent_to_an_own_process(target, sent, name):
    local(target).send_signal(ProcessId(40, 5000), name)
    assert sent == [signal.Signals[f"SIG{name}"]]


def test_root_signals_a_process_of_another_user(target, sent):
    local(target, uid=0).send_signal(ProcessId(40, 5000), "KILL")
    assert sent == [signal.SIGKILL]


REFUSALS = [
    ({"ticks": 5001}, "Process 40 has ended; no signal was sent"),
    ({"state": "Z"}, "has ended"),
    ({"uid": BOB}, r"belongs to bob: only its owner and root can signal it"),
    ({"cgroup": POD}, "belongs to ann in a pod"),
]


@pytest.mark.parametrize(("process", "message"), REFUSALS)
def test_no_other_process_is_signaled(target, sent, process, message):
    target.process(40, **process)
    with pytest.raises(GpuledgerError, match=message):
        local(target).send_signal(ProcessId(40, 5000), "KILL")
    assert sent == []


def test_a_process_that_ended_is_not_signaled(target, sent):
    target.end(40)
    with pytest.raises(GpuledgerError, match="has ended"):
        local(target).send_signal(ProcessId(40, 5000), "KILL")
    assert sent == []


def test_a_descriptor_of_another_pid_namespace_is_not_used(procfs, sent):
    procfs.process(40)
    with pytest.raises(GpuledgerError, match="another pid where this program runs"):
        local(procfs).send_signal(ProcessId(40, 5000), "KILL")
    assert sent == []


ERRORS = [
    (errno.ESRCH, "Process 40 has ended"),
    (errno.EPERM, "No permission to send SIGTERM to process 40"),
    (errno.ENOSYS, "Linux 5.3"),
    (errno.EMFILE, "Cannot send SIGTERM to process 40: Too many open files"),
]


@pytest.mark.parametrize("call", [(os, "pidfd_open"), (signal, "pidfd_send_signal")])
@pytest.mark.parametrize(("code", "message"), ERRORS)
def test_an_error_of_the_kernel_is_explained(target, sent, monkeypatch, call, code, message):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(*call, fail)
    with pytest.raises(GpuledgerError, match=message):
        local(target).send_signal(ProcessId(40, 5000), "TERM")


def test_without_pidfd_nothing_is_signaled(target, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(GpuledgerError, match="use kill 40"):
        local(target).send_signal(ProcessId(40, 5000), "TERM")


class Reads:
    """A CommandLineReader on lines that a test sets; reading `hangs` waits until `released`."""

    def __init__(self, hangs=None):
        self.lines = {}
        self.now = 0.0
        self.released, self.started, self.done = Event(), Event(), Event()
        self._hangs = hangs
        self.reader = CommandLineReader(self._read, self.done.set, lambda: self.now)

    def _read(self, process):
        if process == self._hangs:
            self.started.set()
            self.released.wait(PATIENCE)
        return self.lines.get(process, "")

    def request(self, *processes):
        self.done.clear()
        self.reader.request(processes)
        assert self.done.wait(PATIENCE)


ONE, TWO = ProcessId(1, 1), ProcessId(2, 2)


def test_command_lines_are_read_in_the_background_and_again_after_a_while():
    reads = Reads()
    reads.lines = {ONE: "a", TWO: "b"}
    reads.request(ONE, TWO)
    assert (reads.reader.get(ONE), reads.reader.get(TWO)) == ("a", "b")
    reads.lines[ONE] = "title"
    reads.now = 60.0
    reads.request(ONE, TWO)
    assert reads.reader.get(ONE) == "title"


def test_a_command_line_that_cannot_be_read_delays_no_other():
    reads = Reads(hangs=ONE)
    reads.lines = {ONE: "a", TWO: "b"}
    reads.reader.request((ONE, TWO))
    assert reads.started.wait(PATIENCE)
    reads.now = 10.0
    reads.request(ONE, TWO)
    assert (reads.reader.get(ONE), reads.reader.get(TWO)) == ("", "b")
    reads.released.set()
