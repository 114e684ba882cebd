"""Sessions: in which seconds an engine was busy, certainly none was, or that is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance, process, reading
from gpuledger.ledger.energy.booking import BookedInterval
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.sessions import OpenSession, Sessions
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo
from gpuledger.model.workload import Workload

A = gpu(0)
PART = instance(gpu(1), 2, sm_count=60)
UNIX = 1_700_000_040.0
ANNA, BEN = Workload("pod", "ml", "anna", "main"), Workload("user", user="ben")
SIDECAR = replace(ANNA, container="sidecar")
SHARE = {q.UTILIZATION: 0.3}
NONE = {q.UTILIZATION: 0.0}
NOT_REPORTED: dict[q.Quantity, float] = {}


def post(sessions: Sessions, at: float, *readings: Reading) -> None:
    sessions.post(Snapshot(UNIX + at, at, SourceInfo("test"), readings))


def counts(session: OpenSession) -> tuple[int, int]:
    """The seconds held and those of unknown activity."""
    held, unknown = (
        sum(bits.bit_count() for bits in marked.unsaved.values())
        for marked in (session.held, session.unknown)
    )
    return held, unknown


def first(sessions: Sessions, pid: int = 100) -> OpenSession:
    return next(one for one in sessions.open() if one.process.pid == pid)


def one(device: Device = A, pid: int = 100, owner: Workload = ANNA, sm: float | None = None) -> GpuProcess:
    return process(device, pid, sm=sm, workload=owner)


def encoding(share: float) -> GpuProcess:
    return replace(one(), usage=Usage(encoder=share))


ACTIVE, HELD, UNKNOWN = (0, 0), (10, 0), (0, 10)
ACTIVITY = [
    ("the share is known", reading(A, one(sm=0.5), values=SHARE), ACTIVE),
    ("the share is 0", reading(A, one(sm=0.0), values=SHARE), HELD),
    ("the share is 0, the Gpu's is not reported", reading(A, one(sm=0.0), values=NOT_REPORTED), HELD),
    ("nothing is reported", reading(A, one(), values=NOT_REPORTED), UNKNOWN),
    ("the Device cannot be read", reading(A, one(), values=NOT_REPORTED, up=False), UNKNOWN),
    ("only the Gpu's, which is 0", reading(A, one(), values=NONE), HELD),
    ("only the Gpu's, one process", reading(A, one(), values=SHARE), ACTIVE),
    (
        "only the Gpu's, one owner with two containers",
        reading(A, one(), one(pid=101, owner=SIDECAR), values=SHARE),
        ACTIVE,
    ),
    ("only the Gpu's, two owners", reading(A, one(), one(pid=101, owner=BEN), values=SHARE), UNKNOWN),
    (
        "only the Gpu's, the other owner is inactive",
        reading(A, one(), one(pid=101, owner=BEN, sm=0.0), values=SHARE),
        ACTIVE,
    ),
    (
        "only the Gpu's, the other owner is active",
        reading(A, one(), one(pid=101, owner=BEN, sm=0.3), values=SHARE),
        UNKNOWN,
    ),
    ("only its encoder's share", reading(A, encoding(0.2), values=NOT_REPORTED), ACTIVE),
    ("its encoder's share of 0", reading(A, encoding(0.0), values=NOT_REPORTED), UNKNOWN),
    ("only the Gpu's encoder", reading(A, one(), values={q.ENCODER_UTILIZATION: 0.2}), ACTIVE),
    ("a MIG instance reports nothing", reading(PART, one(PART), values=NOT_REPORTED), UNKNOWN),
    ("a MIG instance's engines", reading(PART, one(PART), values={q.ENGINE_ACTIVITY: 0.4}), ACTIVE),
    ("a MIG instance is inactive", reading(PART, one(PART), values={q.ENGINE_ACTIVITY: 0.0}), HELD),
]


@pytest.mark.parametrize(("name", "seen", "expected"), ACTIVITY, ids=[name for name, *_ in ACTIVITY])
def test_a_second_is_active_held_or_unknown(name: str, seen: Reading, expected: tuple[int, int]) -> None:
    sessions = Sessions()
    for at in range(11):
        post(sessions, float(at), seen)
    assert counts(first(sessions)) == expected, name


@pytest.mark.parametrize(("sm", "expected"), [(0.5, (0, 3)), (0.0, (6, 3)), (None, (0, 9))])
def test_activity_is_unknown_while_the_list_cannot_be_read(
    sm: float | None, expected: tuple[int, int]
) -> None:
    sessions = Sessions()
    for at in range(10):
        seen = reading(A, one(sm=sm), values=NOT_REPORTED, failed=4 <= at < 7)
        post(sessions, float(at), seen)
    assert counts(first(sessions)) == expected
    assert first(sessions).stretch.begins == UNIX


def test_no_second_is_lost_between_ticks_of_fractions() -> None:
    sessions = Sessions()
    for number in range(1001):
        post(sessions, number * 0.1, reading(A, one(sm=0.0), values=NONE))
    assert counts(first(sessions)) == (100, 0)


def test_the_user_of_a_server_is_known_by_the_devices_activity() -> None:
    server = process(A, 7, name="nvidia-cuda-mps-server", sm=None, workload=BEN)
    client = process(A, 100, types="M+C", sm=None, workload=ANNA)
    sessions = Sessions()
    for at in range(11):
        seen = (reading(A, server, client, values=SHARE),)
        snapshot = Snapshot(UNIX + at, float(at), SourceInfo("test"), seen)
        sessions.post(snapshot, serving=frozenset({server.key}))
    assert (counts(first(sessions)), counts(first(sessions, 7))) == (ACTIVE, ACTIVE)


def test_without_a_store_no_seconds_are_collected() -> None:
    sessions = Sessions(has_store=False)
    for at in range(130):
        post(sessions, float(at), reading(A, one(), values=NOT_REPORTED))
    assert counts(first(sessions)) == (0, 0)


@pytest.mark.parametrize(("work", "expected"), [(40, (0, 0)), (0, (0, 8))])
def test_a_process_in_no_list_is_active_if_the_driver_sampled_it(
    work: int, expected: tuple[int, int]
) -> None:
    sessions, hidden = Sessions(), one()
    booked = BookedInterval(100, "activity", 0, 0, {hidden.key: 100})
    for number in range(2):
        begins = UNIX + 4 * number
        resident = Residence(hidden, 0, 4_000_000, work, False, False, 0, hidden.key)
        posting = Posting(A, begins, begins + 4, booked, residents=(resident,), length=4_000_000)
        snapshot = Snapshot(begins + 4, begins + 4, SourceInfo("test"), (reading(A, values=NONE),))
        sessions.post(snapshot, [posting])
    session = first(sessions)
    assert (session.stretch.begins, session.stretch.ends) == (UNIX, UNIX + 8)
    assert counts(session) == expected
