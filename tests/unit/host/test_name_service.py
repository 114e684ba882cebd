"""User names from the name service, which can be slow, absent or wrong for a while."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from builders import FakeClock
from gpuledger.host import steady_thread
from gpuledger.host.name_service import NameService, read_name_service
from running import PATIENCE, wait_until

LENA = 812345
# Seconds: longer than any test; an answer ends the waiting.


class Directory:
    """Names by uid, which a test can hold back."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.requested: list[int] = []
        self.free = Event()
        self.free.set()

    def __call__(self, uid: int) -> str:
        self.requested.append(uid)
        assert self.free.wait(PATIENCE)
        return self.names.get(uid, "")


def test_a_name_that_arrives_at_once_is_returned_at_once() -> None:
    directory = Directory({LENA: "lena"})
    service = NameService(directory, patience=PATIENCE)
    assert [service.name(LENA), service.name(7), service.name(LENA)] == ["lena", "", "lena"]
    assert directory.requested == [LENA, 7]


def test_a_directory_that_hangs_delays_no_one() -> None:
    directory = Directory({LENA: "lena", 7: "mira"})
    directory.free.clear()
    service = NameService(directory, patience=0.0)
    assert [service.name(uid) for uid in (LENA, 7, LENA)] == ["", "", ""]
    assert service.changes == 0
    directory.free.set()
    patient = service._answered
    with patient:
        assert patient.wait_for(lambda: service.changes == 2, PATIENCE)
    assert [service.name(LENA), service.name(7)] == ["lena", "mira"]
    assert sorted(directory.requested) == [7, LENA]


def answered(service: NameService) -> None:
    """Wait until no answer is due."""
    with service._answered:
        assert service._answered.wait_for(lambda: not service._pending, PATIENCE)


@pytest.mark.parametrize(
    ("each", "waited"), [(PATIENCE / 10, 10), (PATIENCE / 2, 2), (PATIENCE * 0.8, 2), (PATIENCE, 1)]
)
def test_many_new_users_share_the_patience_of_a_tick(each: float, waited: int) -> None:
    clock = FakeClock()

    def look_up(uid: int) -> str:
        clock.advance(each)
        return f"u{uid}"

    service = NameService(look_up, elapsed=clock.elapsed, patience=PATIENCE, period=1000 * PATIENCE)

    def name(uid: int) -> str:
        found = service.name(uid)
        answered(service)
        return found

    assert sum(map(bool, map(name, range(20)))) == waited
    assert [name(uid) for uid in range(20)] == [f"u{uid}" for uid in range(20)]
    clock.advance(1000 * PATIENCE)
    assert name(20) == "u20"


def test_only_a_name_that_was_missing_before_is_a_change() -> None:
    clock = FakeClock()
    directory = Directory({LENA: "lena"})
    service = NameService(directory, elapsed=clock.elapsed, patience=PATIENCE)
    for name in ("lena", "lena", "lena.m"):
        directory.names[LENA] = name
        service.name(LENA)
        answered(service)
        clock.advance(4000.0)
    assert (service.changes, len(directory.requested)) == (0, 3)
    service.name(7)
    directory.names[7] = "mira"
    clock.advance(61.0)
    assert service.name(7) == ""
    answered(service)
    assert (service.changes, service.name(7)) == (1, "mira")


def test_a_user_who_does_not_exist_is_looked_up_again_only_after_a_while() -> None:
    clock = FakeClock()
    directory = Directory({})
    service = NameService(directory, elapsed=clock.elapsed, patience=PATIENCE)
    assert [service.name(LENA) for _ in range(100)] == [""] * 100
    assert directory.requested == [LENA]
    directory.names[LENA] = "lena"
    clock.advance(61.0)
    service.name(LENA)
    with service._answered:
        assert service._answered.wait_for(lambda: service.changes == 1, PATIENCE)
    assert service.name(LENA) == "lena"


def test_a_directory_that_is_down_takes_no_name_away() -> None:
    clock = FakeClock()
    directory = Directory({LENA: "lena"})
    service = NameService(directory, elapsed=clock.elapsed, patience=PATIENCE)
    assert service.name(LENA) == "lena"
    directory.names.clear()
    clock.advance(4000.0)
    assert service.name(LENA) == "lena"
    answered(service)
    assert service.name(LENA) == "lena"


def test_a_name_is_looked_up_again_if_there_was_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_thread, "PAUSE", 0.01)
    answers: Iterator[str | None] = iter((None, "lena"))

    def look_up(_: int) -> str:
        if name := next(answers):
            return name
        raise MemoryError

    service = NameService(look_up, patience=0.0)
    wait_until(lambda: service.name(LENA) == "lena", "the name")


def test_names_in_memory_are_bounded() -> None:
    service = NameService(lambda uid: f"u{uid}", patience=PATIENCE)
    for uid in range(3000):
        service.name(uid)
    assert len(service._answers) <= 1024


def test_the_name_service_of_this_machine_knows_root_but_not_everyone() -> None:
    assert [read_name_service(uid) for uid in (0, 4_000_000_123, 1 << 70)] == ["root", "", ""]
