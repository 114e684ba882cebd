"""The laws of reservations: one of each Device, its ends, and who can end it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.ledger.reservations import CommandProcess, Reservation, ReservationBook

GPU, OTHER = gpu(0), gpu(1)
ANN, BOB = 1000, 1001
JOB = CommandProcess(42, 7_000)


def timed(device: str = GPU.uuid, uid: int = ANN, ends: float = 300.0) -> Reservation:
    return Reservation(device, uid, ends, ends)


def held(device: str = GPU.uuid, uid: int = ANN) -> Reservation:
    return Reservation(device, uid, command=JOB)


def still_runs(_: CommandProcess) -> bool:
    return True


def test_a_device_is_reserved_once() -> None:
    book = ReservationBook([timed()])
    with pytest.raises(ValueError, match="already reserved: GPU-0"):
        book.add([timed(OTHER.uuid, BOB), timed(uid=BOB)])
    assert list(book) == [timed()]


def test_a_reservation_of_a_gpu_covers_its_instances() -> None:
    part = instance(GPU, 1)
    assert ReservationBook([timed()]).find(part) == timed()
    assert ReservationBook([timed(part.uuid)]).find(GPU) is None


@pytest.mark.parametrize(
    ("one", "elapsed", "users", "runs", "is_over"),
    [
        (timed(), 299.0, {}, True, False),
        (timed(), 300.0, {}, True, True),
        # The user has begun: the process has the GPU now.
        (timed(), 10.0, {GPU.uuid: {ANN}}, True, True),
        # Somebody else does not ask: the reservation stands.
        (timed(), 10.0, {GPU.uuid: {BOB}}, True, False),
        (timed(), 10.0, {OTHER.uuid: {ANN}}, True, False),
        # A command can start one process after another.
        (held(), 1e9, {GPU.uuid: {ANN}}, True, False),
        (held(), 10.0, {}, False, True),
    ],
)
def test_the_ends_of_a_reservation(
    one: Reservation, elapsed: float, users: dict[str, set[int]], runs: bool, is_over: bool
) -> None:
    book = ReservationBook([one])
    assert bool(book.expire(elapsed, users, lambda _: runs)) == is_over
    assert list(book) == ([] if is_over else [one])


def test_users_release_their_own() -> None:
    mine, theirs = timed(), timed(OTHER.uuid, BOB)
    book = ReservationBook([mine, theirs])
    assert book.release(ANN, [OTHER.uuid]) == []
    assert book.release(ANN) == [mine]
    assert list(book) == [theirs]
    assert book.release(None) == [theirs]


DEVICES = st.sampled_from([f"GPU-{number}" for number in range(4)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), DEVICES, st.integers(0, 3), st.floats(0, 100)),
        st.tuples(st.just("expire"), st.floats(0, 100)),
        st.tuples(st.just("release"), st.integers(0, 3)),
    ),
    max_size=20,
)


@given(STEPS)
def test_never_two_of_one_device_and_none_after_its_end(steps: list[tuple[object, ...]]) -> None:
    book = ReservationBook()
    for name, *parts in steps:
        if name == "add":
            device, uid, ends = parts
            taken = {one.device for one in book}
            try:
                book.add([Reservation(device, uid, ends, ends)])  # type: ignore[arg-type]
            except ValueError:
                assert device in taken
            else:
                assert device not in taken
        elif name == "expire":
            (elapsed,) = parts
            book.expire(elapsed, {}, still_runs)  # type: ignore[arg-type]
            assert all(one.ends is not None and one.ends > elapsed for one in book)
        else:
            (uid,) = parts
            book.release(uid)  # type: ignore[arg-type]
            assert all(one.uid != uid for one in book)
        devices = [one.device for one in book]
        assert len(devices) == len(set(devices))
