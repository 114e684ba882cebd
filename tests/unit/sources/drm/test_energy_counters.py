"""Units, trust and wraps of the energy counters of AMD and Intel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drm_machine import DrmMachine, load_dump, metrics_table
from gpuledger.model.devices import AMD, Gpu
from gpuledger.sources.drm.cards import DrmCard
from gpuledger.sources.drm.energy_counters import (
    AmdCounter,
    CardOfTwoDies,
    DieReading,
    IntelEnergy,
    ShortCounter,
    amd_counter,
    pair_dies,
    to_millijoules,
)
from gpuledger.sources.drm.gpu_metrics import parse_gpu_metrics
from gpuledger.sources.drm.sysfs import SysfsFolder, labelled_files

MI100, MI200, MI300, NAVI33 = 90008, 90010, 90402, 110002
JOULE = 1 << 16


@pytest.mark.parametrize(
    ("version", "target", "counter"),
    [
        ((1, 3), MI200, AmdCounter.FULL),
        ((1, 1), MI200, AmdCounter.FULL),
        ((1, 4), MI300, AmdCounter.FULL),
        ((1, 8), 0, AmdCounter.FULL),
        ((1, 3), MI100, AmdCounter.SHORT),
        ((1, 3), NAVI33, AmdCounter.NONE),
        ((1, 3), 0, AmdCounter.NONE),
        ((2, 1), 110003, AmdCounter.NONE),
        ((3, 0), 110500, AmdCounter.NONE),
    ],
)
def test_only_instinct_cards_have_a_counter_with_a_known_unit(
    version: tuple[int, int], target: int, counter: AmdCounter
) -> None:
    assert amd_counter(parse_gpu_metrics(metrics_table(version)), target) is counter


def test_a_count_is_a_65536th_of_a_joule() -> None:
    assert [to_millijoules(counts) for counts in (0, 65, 66, JOULE, 3 * JOULE)] == [0, 0, 1, 1000, 3000]


@given(st.lists(st.integers(0, 1 << 64), min_size=2))
def test_millijoules_never_fall_while_counts_rise(counts: list[int]) -> None:
    rising = [to_millijoules(count) for count in sorted(counts)]
    assert rising == sorted(rising)


def test_a_turn_that_power_explains_goes_on() -> None:
    counter = ShortCounter()
    near_the_end = (1 << 32) - 100 * JOULE
    assert counter.extend(near_the_end, 10.0, 300.0) == near_the_end
    assert counter.extend(200 * JOULE, 11.0, 300.0) == (1 << 32) + 200 * JOULE
    assert counter.extend(201 * JOULE, 12.0, 300.0) == (1 << 32) + 201 * JOULE


@pytest.mark.parametrize(("before", "after"), [(300.0, 30.0), (300.0, None), (30.0, 300.0)])
def test_work_may_end_or_begin_at_a_turn(before: float, after: float | None) -> None:
    counter = ShortCounter()
    counter.extend((1 << 32) - 100 * JOULE, 10.0, before)
    assert counter.extend(200 * JOULE, 11.0, after) == (1 << 32) + 200 * JOULE


@pytest.mark.parametrize("watts", [None, 0.0, 1.0, 200.0])
def test_a_fall_that_power_does_not_explain_is_a_new_start(watts: float | None) -> None:
    counter = ShortCounter()
    counter.extend(2 << 31, 10.0, watts)
    counter.extend((1 << 32) - 1000 * JOULE, 10.5, watts)
    assert counter.extend(5000 * JOULE, 11.0, watts) == 5000 * JOULE


die = st.builds(
    DieReading,
    st.integers(0, 1 << 40),
    st.none() | st.integers(0, (1 << 32) - 1),
    st.none() | st.floats(0, 1),
)


@given(st.lists(st.tuples(st.integers(0, 1 << 24), die, die), max_size=20))
def test_the_dies_of_a_card_share_exactly_what_its_counter_gained(
    steps: list[tuple[int, DieReading, DieReading]],
) -> None:
    card, counts = CardOfTwoDies(), 17 * JOULE
    before, at_first = (0, 0), None
    for gained, one, other in steps:
        counts += gained
        at_first = counts if at_first is None else at_first
        energies = card.split(replace(one, counts=counts), other)
        assert sum(energies) == to_millijoules(counts) - to_millijoules(at_first)
        assert energies >= before
        assert all(now >= then for now, then in zip(energies, before, strict=True))
        before = energies


def test_the_busier_die_gets_more() -> None:
    card = CardOfTwoDies()
    card.split(DieReading(0, 100, 0.5), DieReading(0, 0xFFFFFFFF, 0.5))
    # The second die's sum of activity has turned over: it grew by 31.
    assert card.split(DieReading(400 * JOULE, 193, 0.9), DieReading(0, 30, 0.0)) == (300_000, 100_000)
    assert card.split(DieReading(402 * JOULE, 193, 0.9), DieReading(0, 30, 0.0)) == (301_000, 101_000)


@pytest.mark.parametrize(
    ("what", "joules", "gained"),
    [
        ("it goes on", (1000, 997, 1001, 1002), 2),
        ("it goes on after two", (1000, 997, 990, 1001, 1002), 2),
        ("it starts again", (1000, 2, 3, 4), 2),
        ("it starts again twice", (1000, 2, 3, 1, 2), 2),
        ("it stands still after the fall", (1000, 2, 2, 3), 1),
    ],
)
def test_a_fall_of_the_counter_books_nothing_twice(what: str, joules: tuple[int, ...], gained: int) -> None:
    card = CardOfTwoDies()
    for number in joules:
        found = card.split(DieReading(number * JOULE, None, 1.0), DieReading(0, None, 1.0))
    assert sum(found) == gained * 1000, what


def die_card(address: str, board: str, device: int = 0x740C) -> DrmCard:
    return DrmCard("", address, "amdgpu", (0x1002, device), Gpu(address, 0, vendor=AMD), board=board)


def pairs_of(cards: list[DrmCard], zeros: set[str]) -> set[tuple[str, str]]:
    found = pair_dies(cards, lambda card: card.address in zeros)
    return {(first.address, second.address) for first, second in found.values()}


def test_dies_of_one_board_are_a_pair_wherever_they_are() -> None:
    cards = [die_card("c1", "B"), die_card("a1", "A"), die_card("a0", "B"), die_card("c0", "A")]
    assert pairs_of(cards, {"a1", "c1"}) == {("c0", "a1"), ("a0", "c1")}


def test_without_serial_numbers_neighbors_are_a_pair_if_one_has_no_counter() -> None:
    cards = [die_card(address, "") for address in ("a0", "a1", "b0", "b1")]
    assert pairs_of(cards, {"a1", "b1"}) == {("a0", "a1"), ("b0", "b1")}


def test_other_cards_and_dies_with_counters_are_no_pair() -> None:
    assert pairs_of([die_card("a0", "A", 0x740F), die_card("a1", "A", 0x740F)], {"a1"}) == set()
    assert pairs_of([die_card("a0", "A"), die_card("a1", "A")], set()) == set()


@pytest.mark.parametrize(
    ("name", "label", "joules"),
    [
        ("a380-i915", "energy1", "energy1_joules"),
        ("a380-xe", "pkg", "energy2_joules"),
        ("b580", "card", "energy1_joules"),
        ("b580-6.16", "pkg", "energy2_joules"),
    ],
)
def test_the_counter_of_the_card_is_preferred_if_it_counts(
    tmp_path: Path, name: str, label: str, joules: str
) -> None:
    hwmon = hwmon_of(tmp_path, name)
    energy = IntelEnergy()
    found = energy.read(hwmon, labelled_files(hwmon, "energy"), 5.0)
    assert found == int(load_dump(name)["expected"][joules] * 1000)
    assert (energy.label, energy.watts) == (label, None)


def test_power_is_the_growth_of_the_counter(tmp_path: Path) -> None:
    hwmon, energy = hwmon_of(tmp_path, "b580"), IntelEnergy()
    labels, file = labelled_files(hwmon, "energy"), Path(hwmon.path, "energy1_input")
    energy.read(hwmon, labels, 5.0)
    file.write_text("11032745544\n")
    energy.read(hwmon, labels, 7.0)
    assert energy.watts == 0.5
    file.write_text("12\n")
    assert energy.read(hwmon, labels, 8.0) == 0
    assert energy.watts is None
    file.unlink()
    assert energy.read(hwmon, labels, 9.0) is None


def test_the_file_is_not_changed_while_the_program_runs(tmp_path: Path) -> None:
    hwmon, energy = hwmon_of(tmp_path, "b580-6.16"), IntelEnergy()
    labels = labelled_files(hwmon, "energy")
    energy.read(hwmon, labels, 5.0)
    Path(hwmon.path, "energy1_input").write_text("77000000\n")
    assert energy.read(hwmon, labels, 6.0) == 29_523_753
    assert energy.label == "pkg"


def hwmon_of(folder: Path, name: str) -> SysfsFolder:
    card = DrmMachine(folder).add_dump(name)
    return SysfsFolder(str(next((card / "device/hwmon").iterdir())))
