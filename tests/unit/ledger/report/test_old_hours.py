"""Hours from before the time books: computed from seconds of presence, they obey the same law."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.gpu_time import NONE_RUNNING, GpuPart, GpuTime
from gpuledger.ledger.report.old_hours import OldDevice, PresentParty, old_hour_time
from gpuledger.ledger.report.party import Party, party_of
from gpuledger.model.workload import Workload

GPU = GpuPart("GPU-0", "NVIDIA H100")
SECOND = 1_000_000
MINUTE = (1 << 60) - 1


def pod(name: str, container: str = "main", command: str = "python3") -> Party:
    return party_of(GPU.gpu, Workload("pod", "ml", name, container), command)


def split(parties: list[PresentParty], observed: int = 60) -> dict[str, tuple[float, float]]:
    """Seconds by allocation and by residence, by pod or account."""
    return summed(old_hour_time(GPU, observed * SECOND, [OldDevice(GPU, parties)]))


def summed(times: object) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for time in times:  # type: ignore[attr-defined]
        name = time.party.owner.pod if time.party else time.account
        before = found.get(name, (0, 0))
        found[name] = (before[0] + time.allocation / SECOND, before[1] + time.residence / SECOND)
    return found


HALF = MINUTE >> 30 << 30
SPLITS = {
    "nobody": ([], {"idle": (60, 60)}),
    "one owner runs": ([PresentParty(pod("a"), MINUTE, 0)], {"a": (60, 60)}),
    "two run, one for half of the time": (
        [PresentParty(pod("a"), MINUTE, 0), PresentParty(pod("b"), HALF, 0)],
        {"a": (45, 45), "b": (15, 15)},
    ),
    "allocated and runs nothing": (
        [PresentParty(pod("a", command=""), 0, MINUTE)],
        {"a": (60, 0), "idle": (0, 60)},
    ),
    "a guest on an allocated GPU": (
        [PresentParty(pod("a", command=""), 0, MINUTE), PresentParty(pod("b"), MINUTE, 0)],
        {"a": (60, 0), "b": (0, 60)},
    ),
    "two allocations of unknown fraction": (
        [PresentParty(pod("a", command=""), 0, MINUTE), PresentParty(pod("b", command=""), 0, MINUTE)],
        {"a": (30, 0), "b": (30, 0), "idle": (0, 60)},
    ),
    "an owner with two processes counts once": (
        [PresentParty(pod("a", command=one), MINUTE, 0) for one in ("x", "y")]
        + [PresentParty(pod("b"), MINUTE, 0)],
        {"a": (30, 30), "b": (30, 30)},
    ),
}


@pytest.mark.parametrize(("parties", "expected"), SPLITS.values(), ids=SPLITS)
def test_each_second_is_split_once(
    parties: list[PresentParty], expected: dict[str, tuple[float, float]]
) -> None:
    assert {name: both for name, both in split(parties).items() if any(both)} == expected


def test_time_that_rests_on_an_allocation_is_an_estimate_and_without_a_process_says_so() -> None:
    held = PresentParty(pod("a", command=""), 0, MINUTE)
    (time, _) = old_hour_time(GPU, 60 * SECOND, [OldDevice(GPU, [held])])
    assert time.is_estimate
    assert time.party is not None
    assert time.party.command == NONE_RUNNING


def test_containers_of_an_owner_share_equally() -> None:
    parties = [PresentParty(pod("a", name), MINUTE, 0) for name in ("one", "two")]
    parties.append(PresentParty(pod("a", "two", "bash"), MINUTE, 0))
    times = old_hour_time(GPU, 60 * SECOND, [OldDevice(GPU, parties)])
    found = {
        (time.party.owner.container, time.party.command): time.allocation for time in times if time.party
    }
    assert found == {
        ("one", "python3"): 30 * SECOND,
        ("two", "python3"): 15 * SECOND,
        ("two", "bash"): 15 * SECOND,
    }


def test_an_unmeasured_gpu_was_watched_while_somebody_was_there() -> None:
    assert split([PresentParty(pod("a"), HALF, 0)], observed=0) == {"a": (30, 30)}


def test_instances_count_by_their_part_and_the_rest_is_uncut() -> None:
    part = GpuPart(GPU.gpu, GPU.model, "1_0", "3g.40gb", Fraction(60, 132))
    device = OldDevice(part, [PresentParty(pod("a"), HALF, 0)])
    times = list(old_hour_time(GPU, 60 * SECOND, [device]))
    assert [(time.account, time.part.instance, time.allocation) for time in times] == [
        ("owner", "1_0", 13_636_364),
        ("idle", "1_0", 13_636_363),
        ("uncut", "", 32_727_273),
    ]


PRESENT = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["x", ""]), st.integers(0, MINUTE), st.integers(0, MINUTE)
    ),
    max_size=5,
    unique_by=lambda one: one[:2],
)
SHARES = st.sampled_from([Fraction(1, 7), Fraction(2, 7), Fraction(60, 132)])


@given(st.lists(st.tuples(SHARES, PRESENT), max_size=2), st.integers(0, 61 * SECOND), st.booleans())
def test_accounts_sum_to_the_watched_time_by_both_bases(
    seeds: list[tuple[Fraction, list[tuple[str, str, int, int]]]], observed: int, is_cut: bool
) -> None:
    devices = [
        OldDevice(
            GpuPart(GPU.gpu, GPU.model, str(number), "1g", share) if is_cut else GPU,
            [PresentParty(pod(name, command=command), here, held) for name, command, here, held in present],
        )
        for number, (share, present) in enumerate(seeds if is_cut else seeds[:1])
    ]
    union = [0]
    for device in devices:
        seconds = 0
        for one in device.parties:
            seconds |= one.resident | one.allocated
        union.append(seconds.bit_count())
    watched = max(observed, max(union) * SECOND)
    times: list[GpuTime] = list(old_hour_time(GPU, observed, devices))
    assert sum(time.allocation for time in times) == sum(time.residence for time in times) == watched
    assert all(time.allocation >= 0 and time.residence >= 0 for time in times)
