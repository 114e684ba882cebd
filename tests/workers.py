"""Runs tests in forks of the process that has collected them: `--workers N`.

Collecting imports the program and all tests, which takes seconds of CPU time. pytest-xdist repeats it in each
of its workers. Tests with the same `pytest.mark.group` run in one worker, in their order; any other test is a
group. Groups start in the order of collection, as workers become free.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pytest

Group = list[pytest.Item]


class _Queue:
    """The groups that no worker has started."""

    def __init__(self, items: list[pytest.Item]) -> None:
        named: dict[str, Group] = {}
        for item in items:
            mark = item.get_closest_marker("group")
            named.setdefault(mark.args[0] if mark else item.nodeid, []).append(item)
        self.groups = list(named.values())
        # Forks share the position in an open file, so that no two of them read the same number.
        self._numbers = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (closed by `close`)
        self._numbers.write(b"".join(number.to_bytes(4) for number in range(len(self.groups))))
        self._numbers.seek(0)

    def take(self) -> int | None:
        """The number of the next group; None at the end."""
        number = self._numbers.read(4)
        return int.from_bytes(number) if number else None

    def clear(self) -> None:
        """Remove all groups."""
        self._numbers.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._numbers.close()


class _Worker:
    """A running fork, as its parent sees it."""

    def __init__(self, session: pytest.Session, queue: _Queue, name: str, rest: Group) -> None:
        self.name, self.left = name, rest
        self.messages, theirs = Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _separate(session.config, name)
                _Runner(session, theirs).run(queue, rest)
                code = 0
            except KeyboardInterrupt:
                pass
            except BaseException:  # noqa: BLE001  (a fork must not return into pytest)
                traceback.print_exc()
            finally:
                _end(code)
        theirs.close()


class _Runner:
    """Runs tests in a fork. A plugin, to which pytest passes each report."""

    def __init__(self, session: pytest.Session, messages: Connection) -> None:
        self._session, self._messages = session, messages
        self._reports: list[dict[str, Any]] = []
        session.config.pluginmanager.register(self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def run(self, queue: _Queue, rest: Group) -> None:
        try:
            self._run_group(rest)
            while (number := queue.take()) is not None:
                self._messages.send(number)
                self._run_group(queue.groups[number])
        finally:
            self._session._setupstate.teardown_exact(None)

    def _run_group(self, group: Group) -> None:
        # After the last test of a group, the fixtures of the session remain.
        for item, following in zip(group, [*group[1:], self._session], strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._messages.send(self._reports)
            self._reports = []
            if self._session.shouldfail or self._session.shouldstop:
                break


def _separate(config: pytest.Config, name: str) -> None:
    """Separate what a fork shares with others: captured output, temporary directories, the terminal."""
    atexit._clear()
    config.pluginmanager.unregister(name="terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=True)
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)


def _end(code: int) -> None:
    """End like the interpreter, without the exit handlers of the parent."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Run:
    """The run of all tests in forks."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._hook = session, session.config.hook
        self._queue = _Queue(session.items)
        self._workers: dict[Connection, _Worker] = {}
        self._started = 0

    def run(self, count: int) -> None:
        # Forks share what exists now: its directory, and its objects, which their garbage collectors skip.
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        gc.collect()
        gc.freeze()
        try:
            for _ in range(min(count, len(self._queue.groups))):
                self._start([])
            while self._workers:
                for messages in wait(list(self._workers)):
                    self._receive(self._workers[messages])
        finally:
            self._queue.clear()
            for worker in self._workers.values():
                worker.messages.close()
                os.waitpid(worker.pid, 0)
            self._queue.close()

    def _start(self, rest: Group) -> None:
        self._started += 1
        worker = _Worker(self._session, self._queue, f"worker{self._started}", rest)
        self._workers[worker.messages] = worker

    def _receive(self, worker: _Worker) -> None:
        message = None
        with suppress(EOFError):
            message = worker.messages.recv()
        if message is None:
            self._ended(worker)
        elif isinstance(message, int):
            worker.left = list(self._queue.groups[message])
        else:
            item = worker.left.pop(0)
            for data in message:
                report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
                self._hook.pytest_runtest_logreport(report=report)
            self._finished(item)

    def _finished(self, item: pytest.Item) -> None:
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._session.shouldfail or self._session.shouldstop:
            self._queue.clear()

    def _ended(self, worker: _Worker) -> None:
        """Report a test that ended its worker; another worker runs the rest of the group."""
        del self._workers[worker.messages]
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if self._session.shouldfail or self._session.shouldstop:
            return
        if worker.left:
            item, *rest = worker.left
            text = f"{worker.name} ended with code {code} during this test"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self._finished(item)
            self._start(rest)
        elif code:
            raise RuntimeError(f"{worker.name} ended with code {code} after its last test")


def run_in_workers(session: pytest.Session, count: int) -> None:
    """Run the collected tests; raises what pytest's own loop raises when the session stops early."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads after collection, which a fork would not have: import later"
    _Run(session).run(count)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
