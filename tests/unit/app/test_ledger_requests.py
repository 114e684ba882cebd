"""Commands of several callers at once: one report is computed at a time, and each caller gets a turn."""

from __future__ import annotations

from threading import Event, Lock, Thread
from typing import Any, NoReturn

import pytest

from builders import node_state
from gpuledger.app import ledger_requests
from gpuledger.app.ledger_requests import LedgerRequests
from gpuledger.model.access import Reader
from gpuledger.model.errors import GpuledgerError
from gpuledger.web.api.responses import ApiError
from running import PATIENCE, wait_until

DAN, ANN = Reader("dan", frozenset({"dan"}), 1001), Reader("ann", frozenset({"ann"}), 1002)


class SlowLedger:
    """A ledger that nobody can read before `go`; `readers` are those that got it."""

    def __init__(self) -> None:
        self.go, self.readers = Event(), list[str]()

    def open(self, reader: Reader) -> NoReturn:
        self.readers.append(reader.name)
        assert self.go.wait(PATIENCE)
        raise GpuledgerError("nothing there")


class WatchedLock:
    """A lock that says how many threads have come to it."""

    def __init__(self) -> None:
        self._lock, self.waited = Lock(), 0
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        self.waited += 1
        return self._lock.acquire(timeout=timeout)


def requests_of(ledger: Any) -> LedgerRequests:
    return LedgerRequests(dict, lambda: node_state(None), ledger, lambda: pytest.fail("no socket"), {})


def test_of_each_caller_one_request_waits_for_the_ledger() -> None:
    """Five of dan and one of ann: ann competes with one of dan, not with five."""
    ledger, lock = SlowLedger(), WatchedLock()
    requests = requests_of(ledger)
    requests._lock = lock  # type: ignore[assignment]

    def ask(reader: Reader) -> None:
        with pytest.raises(GpuledgerError, match="nothing there"):
            requests.answer("report", {}, reader)

    threads = [Thread(target=ask, args=(reader,)) for reader in [*[DAN] * 5, ANN]]
    for one in threads:
        one.start()
    wait_until(lambda: lock.waited == 2, "the first of dan, and ann")
    assert ledger.readers == ["dan"]
    ledger.go.set()
    for one in threads:
        one.join(PATIENCE)
    assert sorted(ledger.readers) == ["ann", *["dan"] * 5]


def test_a_caller_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_requests, "_PATIENCE", 0.0)
    requests = requests_of(SlowLedger())
    requests._lock.acquire()
    with pytest.raises(ApiError, match="try again") as refused:
        requests.answer("explain", {"of": "user:dan"}, DAN)
    assert refused.value.response.status == 503
    # Nothing remains locked.
    assert not requests._own_locks["dan"].locked()
