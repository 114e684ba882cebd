"""Command lines, tree and signals in the live view under Textual's pilot, on a procfs in a folder."""

from __future__ import annotations

import pytest

from gpuledger.host.process_tree import ProcessTree
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.local_processes import LocalProcesses, ProcessId
from gpuledger.terminal.process_screens import SignalScreen, TreeScreen
from gpuledger.terminal.screens import FactScreen, ProcessScreen
from procfs_tree import ProcfsTree
from unit.terminal.driving import run_top
from unit.terminal.support import process

ANN, BOB = 1000, 1001
ROWS = (process(30, "0", user="ann"), process(31, "1", user="bob"))


class Local(LocalProcesses):
    """Local processes that collect the signals instead of sending them."""

    def __init__(self, procfs, uid=ANN, command_lines="own"):
        self.ticks = {30: 5000, 31: 5000}
        self.sent = []
        names = {ANN: "ann", BOB: "bob", 0: "root"}
        super().__init__(
            ProcessTree(str(procfs.root)), lambda pid, _: self.ticks.get(pid), names.get, command_lines, uid
        )

    def send_signal(self, wanted, name):
        if wanted != ProcessId(30, 5000) and not self.is_root:
            raise GpuledgerError("No permission.")
        self.sent.append((wanted.pid, name))


@pytest.fixture
def procfs(tmp_path):
    made = ProcfsTree(tmp_path)
    made.process(10, 1, ticks=10, name="bash", arguments=("bash", "run.sh"))
    made.process(30, 10, arguments=("python", "train.py"))
    made.process(31, 10, uid=BOB, arguments=("python", "serve.py"))
    return made


def run_local(test, local, **options):
    """Run a test on an app that has read the command lines."""

    async def started(top):
        await top.until(lambda: any(row.command_line for row in top.app.processes.rows))
        await test(top)

    run_top(started, *ROWS, local=local, **options)


def messages(top):
    return [notification.message for notification in top.app._notifications]


def test_own_command_lines_are_shown_filtered_and_in_the_details(procfs):
    async def test(top):
        assert [row.command_line for row in top.app.processes.rows] == ["python train.py", ""]
        assert "python train.py" in top.drawn("processes")[1]
        await top.press("slash", *"train", "enter")
        assert top.pids == [30]
        await top.press("down", "enter")
        assert ("command", "python train.py") in top.app.screen.facts
        assert ("started by", "bash (10)") in top.app.screen.facts

    run_local(test, Local(procfs), size=(110, 30))


def test_the_tree_shows_parents_details_and_returns(procfs):
    async def test(top):
        await top.press("t")
        assert isinstance(top.app.screen, TreeScreen)
        table = top.app.screen.tree_table
        assert [row.pid for row in table.rows] == [10, 30, 31]
        await top.read()
        await top.until(lambda: "bash run.sh" in table.render_line(1).text)
        await top.press("down", "down", "enter")
        assert isinstance(top.app.screen, ProcessScreen)
        await top.press("escape", "home", "enter")
        assert ("command", "bash run.sh") in top.app.screen.facts
        await top.press("escape", "t")
        assert not isinstance(top.app.screen, TreeScreen)
        assert top.app.is_running

    run_local(test, Local(procfs))


KEYS = [("k", "TERM"), ("T", "TERM"), ("f9", "TERM"), ("K", "KILL"), ("I", "INT")]


@pytest.mark.parametrize(("key", "name"), KEYS)
def test_a_signal_is_sent_only_after_y(procfs, key, name):
    local = Local(procfs)

    async def test(top):
        await top.press("down", key)
        assert isinstance(top.app.screen, SignalScreen)
        await top.press("enter")
        assert local.sent == []
        await top.press(key, "y")
        assert local.sent == [(30, name)]
        assert messages(top) == [f"SIG{name} was sent to process 30."]

    run_local(test, local)


def test_another_signal_can_be_chosen_in_the_question(procfs):
    local = Local(procfs)

    async def test(top):
        await top.press("down", "k", "K", "y")
        assert local.sent == [(30, "KILL")]

    run_local(test, local)


def test_signals_work_in_the_details_and_in_the_tree(procfs):
    local = Local(procfs)

    async def test(top):
        await top.press("down", "enter", "T", "y")
        await top.press("t", "down", "down", "I", "y")
        assert local.sent == [(30, "TERM"), (30, "INT")]
        assert isinstance(top.app.screen, TreeScreen)

    run_local(test, local)


def test_root_confirms_a_signal_to_another_user_by_typing_the_pid(procfs):
    local = Local(procfs, uid=0)

    async def test(top):
        await top.press("down", "down", "K", "y", "3", "enter")
        assert isinstance(top.app.screen, SignalScreen)
        await top.press("3", "2", "backspace", "1", "escape")
        assert local.sent == []
        await top.press("K", "3", "1", "enter")
        assert local.sent == [(31, "KILL")]

    run_local(test, local)


REFUSED = [
    (["k"], "Choose a process"),
    (["down", "down", "k"], "Process 31 (python) belongs to bob: only its owner and root can signal it."),
    (["down", "tab", "k"], "Choose a process"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_why_no_signal_can_be_sent_is_said(procfs, keys, message):
    async def test(top):
        await top.press(*keys)
        assert not isinstance(top.app.screen, SignalScreen)
        assert messages(top)[0].startswith(message)

    run_local(test, Local(procfs))


def test_the_neighbour_of_a_process_that_ended_is_not_signaled(procfs):
    async def test(top):
        await top.press("down")
        await top.show(process(32, "1"))
        assert top.current == 32
        await top.press("K")
        assert messages(top)[0].startswith("Choose a process")

    run_local(test, Local(procfs))


def test_a_reused_pid_is_not_signaled(procfs):
    local = Local(procfs)

    async def test(top):
        procfs.process(30, 10, ticks=9999)
        await top.press("down", "K")
        assert messages(top) == ["Process 30 has ended, or its start is unknown; no signal was sent."]

    run_local(test, local)


def test_an_error_of_the_signal_is_said(procfs):
    local = Local(procfs)

    async def test(top):
        await top.press("t", "home", "k", "y")
        assert messages(top) == ["No permission."]

    run_local(test, local)


@pytest.mark.parametrize("key", ["t", "k", "K", "I"])
def test_another_machine_has_no_tree_and_no_signals(key):
    async def test(top):
        assert "tree" not in "".join(top.text("keys"))
        await top.press("down", key)
        assert not isinstance(top.app.screen, TreeScreen | FactScreen)
        assert "only for processes of this machine" in messages(top)[0]

    run_top(test, *ROWS)
