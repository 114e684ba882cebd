"""Modes and lists of `-q -x`: words that are values, and bits of clock reasons."""

from __future__ import annotations

import pytest

from gpuledger.model import quantities as q
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.cell_values import parse_quantity
from smi.recorded import fixture, read

XML = fixture("cards/xml")


@pytest.mark.parametrize(
    ("cell", "quantity", "value"),
    [
        ("Enabled", q.PERSISTENCE_MODE, 1),
        ("Disabled", q.PERSISTENCE_MODE, 0),
        ("[N/A]", q.PERSISTENCE_MODE, None),
        ("Exclusive_Process", q.COMPUTE_MODE, 3),
        ("None", q.RECOVERY_ACTION, 0),
        ("Drain and Reset", q.RECOVERY_ACTION, 4),
        ("[N/A]", q.RECOVERY_ACTION, None),
        ("None", q.VIRTUALIZATION_MODE, 0),
        ("Pass-Through", q.VIRTUALIZATION_MODE, 1),
        ("Completed", q.FABRIC_STATE, 3),
        ("N/A", q.FABRIC_STATE, None),
        ("Yes", q.ROW_REMAP_PENDING, 1),
        ("No", q.ROW_REMAP_FAILURE, 0),
        ("200740215 us", q.POWER_VIOLATION, 200_740_215_000),
        ("0x0000000000000004", q.CLOCK_EVENT_REASONS, 4),
        ("Some New Word", q.RECOVERY_ACTION, None),
        ("None", q.POWER, None),
    ],
)
def test_a_word_has_the_value_of_the_drivers_enumeration(
    cell: str, quantity: q.Quantity, value: float | None
) -> None:
    assert parse_quantity(cell, quantity, SourceFindings()) == value


def test_clock_reasons_are_bits_of_all_listed_reasons() -> None:
    first, second = read("cards").readings
    assert (first.values[q.CLOCK_EVENT_REASONS], second.values[q.CLOCK_EVENT_REASONS]) == (4.0, 1.0)
    old = XML.replace("clocks_event_reason", "clocks_throttle_reason")
    assert read("cards", xml=old).readings[0].values[q.CLOCK_EVENT_REASONS] == 4.0


def test_an_incomplete_list_of_clock_reasons_has_no_value() -> None:
    line = "<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>"
    for text in (XML.replace(line, ""), XML.replace(line, line.replace("Active", "N/A"))):
        assert q.CLOCK_EVENT_REASONS not in read("cards", xml=text).readings[0].values
