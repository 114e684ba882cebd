"""Run tests in several processes: `pytest --workers 6`.

A worker is a fork of the process that has collected the tests. Those of pytest-xdist would import and collect
all tests again, each in 8 s of CPU time.

Tests with the same mark `group` run in one worker, one after another. Groups, and tests without one, start in
the order of the collection.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import NoReturn

import psutil
import pytest
from _pytest.runner import runtestprotocol

from prepared import finish


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, metavar="N", help="run the tests in N processes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "group(name): tests that run in one worker, one after another")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers; None leaves them to pytest."""
    option = session.config.option
    groups = grouped(session.items)
    number = min(option.workers, len(groups))
    if number < 2 or option.collectonly or option.usepdb or session.testsfailed:
        return None
    if psutil.Process().num_threads() > 1:
        raise pytest.UsageError("a test module starts threads when it is imported: forked workers would hang")
    workers = Workers(session, groups)
    try:
        workers.run(number)
    finally:
        workers.stop()
    return True


def grouped(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests that run in one worker, in the order of the first test of each group."""
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("group")
        groups.setdefault(mark.args[0] if mark else item, []).append(item)
    return list(groups.values())


class Workers:
    """All workers of a run, which receive one group after another."""

    def __init__(self, session: pytest.Session, groups: Sequence[list[pytest.Item]]) -> None:
        self._session = session
        self._groups = groups
        self._waiting = iter(range(len(groups)))
        self._working: dict[Connection, Worker] = {}
        self._started = 0

    def run(self, number: int) -> None:
        """Report the results of all tests; raises what pytest's own loop raises."""
        for _ in range(number):
            self._start()
        while self._working:
            for connection in wait(list(self._working)):
                assert isinstance(connection, Connection)
                for report in self._reports(self._working[connection]):
                    self._session.config.hook.pytest_runtest_logreport(report=report)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)

    def stop(self) -> None:
        """Interrupt the workers that have not ended, and wait for them."""
        for worker in self._working.values():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGINT)
        for worker in self._working.values():
            worker.end()

    def _start(self) -> None:
        self._started += 1
        worker = Worker(self._session, self._groups, f"w{self._started}")
        self._working[worker.connection] = worker
        self._continue(worker)

    def _continue(self, worker: Worker) -> None:
        """Send the worker its next group, or None if none is left."""
        index = next(self._waiting, None)
        worker.left = [] if index is None else list(self._groups[index])
        # A worker that has crashed is noticed when its results are read.
        with suppress(BrokenPipeError):
            worker.connection.send(index)

    def _reports(self, worker: Worker) -> Iterator[pytest.TestReport]:
        try:
            received = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            del self._working[worker.connection]
            if why := worker.end():
                yield failed(worker.left[0] if worker.left else worker.last, why)
                self._start()
            return
        hook = self._session.config.hook
        for data in received:
            yield hook.pytest_report_from_serializable(config=self._session.config, data=data)
        worker.last = worker.left.pop(0)
        if not worker.left:
            self._continue(worker)


class Worker:
    """A worker, as its parent sees it. `left` are the tests of its group that it has not finished."""

    def __init__(self, session: pytest.Session, groups: Sequence[list[pytest.Item]], name: str) -> None:
        self.left: list[pytest.Item] = []
        self.last = groups[0][0]
        folder = session.config._tmp_path_factory.mktemp(name, numbered=False)  # type: ignore[attr-defined]
        # What is buffered would be written by both.
        session.config.get_terminal_writer().flush()
        self.connection, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.connection.close()
            session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
            _work(session, groups, theirs)
        theirs.close()

    def end(self) -> str:
        """Wait for the end; why it was not the expected one."""
        self.connection.close()
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return f"the worker ended with {code} during or after this test" if code else ""


def _work(session: pytest.Session, groups: Sequence[list[pytest.Item]], connection: Connection) -> NoReturn:
    """Run the groups that arrive, and send the reports of each test."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    capture = session.config.pluginmanager.getplugin("capturemanager")
    # The workers must not share one file of captured output.
    capture.stop_global_capturing()
    capture.start_global_capturing()
    session.config.pluginmanager.register(Runner(connection))
    code = 1
    try:
        while (index := connection.recv()) is not None:
            # The next group is not known yet: after the last test, only the fixtures of the session are kept.
            for item, following in pairwise([*groups[index], session]):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        session._setupstate.teardown_exact(None)
        code = 0
    except (EOFError, KeyboardInterrupt):
        with suppress(BaseException):
            session._setupstate.teardown_exact(None)
    except BaseException:  # noqa: BLE001  (reported by the exit code, and here)
        capture.stop_global_capturing()
        traceback.print_exc()
    finish(code)


class Runner:
    """Runs a test in a worker, which must not report it like pytest."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            # Fixtures look at the number of failures.
            item.session.pytest_runtest_logreport(report)
        serialized = item.config.hook.pytest_report_to_serializable
        self._connection.send([serialized(config=item.config, report=report) for report in reports])
        return True


def failed(item: pytest.Item, why: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
