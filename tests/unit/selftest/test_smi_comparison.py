"""Comparing with nvidia-smi: what is equal, what moves, and what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from builders import MIB, gpu, instance, process, reading, snapshot
from gpuledger.model import quantities as q
from gpuledger.model.checks import Verdict
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.selftest.smi_comparison import (
    TRIES,
    SmiComparison,
    check_numbers,
    check_processes,
    compare_with_smi,
)

GPU = gpu()


def compare(ours: Iterator[Snapshot] | Snapshot, *theirs: Snapshot) -> SmiComparison:
    """Compare a Snapshot, or one after the other, with those of nvidia-smi; the last one is repeated."""
    remaining = list(theirs)
    read = (lambda: ours) if isinstance(ours, Snapshot) else lambda: next(ours)
    return compare_with_smi(read, lambda: remaining.pop(0) if len(remaining) > 1 else remaining[0])


def values(*pairs: tuple[Quantity, float], **raw: str) -> Reading:
    return reading(GPU, values=dict(pairs), raw=raw)


def verdicts(result: SmiComparison) -> list[tuple[str, str]]:
    return [(finding.verdict.value, finding.why) for finding in check_numbers(result)]


@pytest.mark.parametrize(
    ("quantity", "ours", "theirs", "equal"),
    [
        (q.MEMORY_USED, 5 * MIB + 1, 5 * MIB, True),
        (q.MEMORY_USED, 5 * MIB + 1, 7 * MIB, False),
        (q.POWER, 100.004, 100.0, True),
        (q.POWER, 100.03, 100.0, False),
        (q.SM_CLOCK, 1_980_000_000, 1_980_000_000, True),
        (q.UTILIZATION, 0.41, 0.42, True),
        (q.UTILIZATION, 0.41, 0.43, False),
        (q.TEMPERATURE, 41, 42, True),
        (q.PCIE_REPLAYS, 4, 4, True),
        (q.PCIE_REPLAYS, 4, 5, False),
        (q.ECC_CORRECTED, 1, 0, False),
        (q.POWER_VIOLATION, 1_234_567, 1_234_000, True),
    ],
)
def test_a_number_is_equal_within_one_printed_unit(
    quantity: Quantity, ours: float, theirs: float, equal: bool
) -> None:
    result = compare(snapshot(values((quantity, ours))), snapshot(values((quantity, theirs))))
    assert [one.equal for one in result.numbers.values()] == [equal]
    assert result.tries == (1 if equal else TRIES)
    assert (Verdict.FAILS in [finding.verdict for finding in check_numbers(result)]) is not equal


def test_a_number_that_rises_may_have_any_value_between_two_readings() -> None:
    rising = (snapshot(values((q.POWER, watts))) for watts in (100.0, 200.0))
    result = compare(rising, snapshot(values((q.POWER, 160.0))))
    assert verdicts(result) == [("works", "all 1 numbers that both read are equal")]


def test_a_number_that_moves_faster_than_it_is_read_is_no_failure() -> None:
    moving = (snapshot(values((q.POWER, watts))) for watts in (100, 110, 120, 130, 140, 150))
    result = compare(moving, snapshot(values((q.POWER, 300.0))))
    assert verdicts(result) == [
        ("warning", "power of nvidia-smi and gpuledger, in 5 tries: 300 and 150 (GPU 0)")
    ]


def test_a_number_that_was_equal_once_is_right() -> None:
    ours = snapshot(values((q.POWER, 100.0), (q.TEMPERATURE, 40)))
    first = snapshot(values((q.POWER, 500.0), (q.TEMPERATURE, 40)))
    second = snapshot(values((q.POWER, 100.0), (q.TEMPERATURE, 90)))
    result = compare(ours, first, second)
    assert result.different == []
    assert result.tries == 2


def test_equal_differences_of_several_gpus_are_one_line() -> None:
    both = [gpu(0), gpu(1)]
    ours = snapshot(*(reading(each, values={q.TEMPERATURE: 40}) for each in both))
    theirs = snapshot(*(reading(each, values={q.TEMPERATURE: 90}) for each in both))
    assert verdicts(compare(ours, theirs)) == [
        ("fails", "temperature of nvidia-smi and gpuledger, in 5 tries: 90 and 40 (GPU 0), 90 and 40 (GPU 1)")
    ]


def test_the_enforced_limit_is_not_compared_with_the_requested_one() -> None:
    ours, theirs = (snapshot(values((q.POWER_LIMIT, watts))) for watts in (650.0, 700.0))
    assert verdicts(compare(ours, theirs)) == [
        ("skipped", "nvidia-smi printed no number that gpuledger reads")
    ]


def test_a_number_that_only_nvidia_smi_has_is_named() -> None:
    ours, theirs = snapshot(values((q.TEMPERATURE, 40))), snapshot(values((q.TEMPERATURE, 40), (q.POWER, 99)))
    assert ("warning", "nvidia-smi has power, and gpuledger does not read them on this GPU") in verdicts(
        compare(ours, theirs)
    )


@pytest.mark.parametrize(
    ("header", "quantity", "value", "cell", "equal"),
    [
        ("power.draw [W]", q.POWER, 100.0, "100.00 W", True),
        ("power.draw [W]", q.POWER, 100.0, "101.00 W", False),
        ("memory.used [MiB]", q.MEMORY_USED, 5 * MIB + 1, "5 MiB", True),
        ("pstate", q.PERFORMANCE_STATE, 2, "P2", True),
        ("pstate", q.PERFORMANCE_STATE, 2, "P8", False),
        ("persistence_mode", q.PERSISTENCE_MODE, 1, "Enabled", True),
        ("persistence_mode", q.PERSISTENCE_MODE, 1, "Disabled", False),
        ("ecc.errors.corrected.aggregate.total", q.ECC_CORRECTED, 4, "5", False),
        ("fan.speed [%]", q.FAN_SPEED, 0.3, "[N/A]", None),
        ("fan.speed [%]", q.TEMPERATURE, 30, "30 %", None),
        ("clocks_event_reasons.active", q.CLOCK_EVENT_REASONS, 1, "0x0000000000000001", True),
        ("clocks_event_reasons.active", q.CLOCK_EVENT_REASONS, 1, "0x1", True),
        ("clocks_event_reasons.active", q.CLOCK_EVENT_REASONS, 1, "0x0000000000000004", False),
    ],
)
def test_the_exported_columns_are_compared_as_printed(
    header: str, quantity: Quantity, value: float, cell: str, equal: bool | None
) -> None:
    theirs = replace(values(), raw={header: cell})
    source = replace(snapshot().source, driver_version="570.1")
    ours = replace(snapshot(values((quantity, value))), source=source)
    result = compare(ours, snapshot(theirs))
    (found,) = [one for one in result.numbers.values() if one.column and one.name == header]
    assert found.equal is equal


def test_identifiers_are_compared_and_not_shown() -> None:
    result = compare(snapshot(values()), snapshot(replace(values(), raw={"uuid": "GPU-1", "serial": "77"})))
    shown = {one.name: (one.ours, one.theirs) for one in result.numbers.values()}
    assert shown["uuid"] == ("(not shown)", "(not shown)")
    assert "77" not in str(shown)
    assert [finding.verdict for finding in check_numbers(result)] == [Verdict.FAILS]


@pytest.mark.parametrize(
    "header",
    [
        "gpu_uuid",
        "hostname",
        "pci.bus",
        "fabric.clusterUuid",
        "platform.chassis_serial_number",
        "platform.gpu_fabric_guid",
    ],
)
def test_cells_that_identify_the_machine_are_not_shown(header: str) -> None:
    result = compare(snapshot(values()), snapshot(replace(values(), raw={header: "node-77"})))
    assert "node-77" not in str(result)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (("C",), ("C",), "works"),
        (("C",), ("C+G",), "fails"),
        ((), ("C",), "fails"),
        (("C",), (), "skipped"),
        (("C", "G"), ("C",), "works"),
        ((), (), "skipped"),
    ],
)
def test_processes_of_nvidia_smi_must_be_listed_with_their_types(
    ours: tuple[str, ...], theirs: tuple[str, ...], expected: str
) -> None:
    def listed(types: tuple[str, ...]) -> Snapshot:
        return snapshot(reading(GPU, *(process(GPU, 100 + n, types=kind) for n, kind in enumerate(types))))

    assert [finding.verdict.value for finding in check_processes(compare(listed(ours), listed(theirs)))] == [
        expected
    ]


def test_instances_are_the_same_without_their_uuids() -> None:
    ours, theirs = instance(GPU, 1), replace(instance(GPU, 1), uuid="MIG-unknown")
    result = compare(
        snapshot(reading(GPU), reading(ours, process(ours))),
        snapshot(reading(GPU), reading(theirs, process(theirs))),
    )
    assert [finding.verdict.value for finding in check_processes(result)] == ["works"]
    assert ("GPU 0 instance 1_0", "memory_total", False) in result.numbers


def test_an_entry_without_a_pid_is_no_process() -> None:
    result = compare(snapshot(reading(GPU)), snapshot(reading(GPU, process(GPU, 0))))
    assert result.differing_processes == ()


def test_without_nvidia_smi_nothing_is_compared() -> None:
    def fail() -> Snapshot:
        raise SourceUnavailable("nvidia-smi not found; install it")

    result = compare_with_smi(lambda: snapshot(values()), fail)
    (found,) = check_numbers(result)
    assert (found.verdict, found.why, found.remedy) == (
        Verdict.UNKNOWN,
        "not compared: nvidia-smi not found",
        "install it",
    )
    assert [finding.verdict.value for finding in check_processes(result)] == ["skipped"]


@pytest.mark.parametrize(("seconds", "tries", "verdict"), [(11.0, TRIES, "fails"), (25.0, 3, "warning")])
def test_a_slow_nvidia_smi_is_not_read_again_after_a_minute(seconds: float, tries: int, verdict: str) -> None:
    """With fewer tries, a number that differs may only have moved."""
    now = [0.0]

    def read_smi() -> Snapshot:
        now[0] += seconds
        return snapshot(reading(GPU, process(GPU, 7), values={q.TEMPERATURE: 61}))

    result = compare_with_smi(
        lambda: snapshot(reading(GPU, values={q.TEMPERATURE: 40})), read_smi, lambda: now[0]
    )
    assert result.tries == tries
    found = [*check_numbers(result), *check_processes(result)]
    assert [finding.verdict.value for finding in found] == [verdict, verdict]
    assert ("no more after 60 s" in found[0].why) == (tries < TRIES)
