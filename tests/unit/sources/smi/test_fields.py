"""The fields that are queried from nvidia-smi."""

from __future__ import annotations

import pytest

from gpuledger.model import quantities as q
from gpuledger.sources.smi.cell_names import GPU_CELLS, QUERY_FIELDS
from gpuledger.sources.smi.fields import (
    IDENTITY_FIELDS,
    exclude_fields,
    field_globs,
    field_names,
    parse_offered_fields,
)

HELP = """List of valid properties to query for the switch "--query-gpu":

"timestamp"
The timestamp of when the query was made.

Section about pci properties
"Enabled" begins a line that does not describe a field.

"pci.bus_id" or "gpu_bus_id"
PCI bus id as "domain:bus:device.function", in hex.

"pci.baseClass"
  "indented" is not a field either.

"fabric.health.bandwidth"
"""


def test_a_field_is_quoted_at_the_start_of_a_line_after_an_empty_line() -> None:
    assert parse_offered_fields(HELP) == (
        "timestamp",
        "pci.bus_id",
        "pci.baseClass",
        "fabric.health.bandwidth",
    )


@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("\n\n", "\n \n"), ("\n\n", "\n\n\n")])
def test_line_ends_and_blanks_make_no_difference(old: str, new: str) -> None:
    assert parse_offered_fields(HELP.replace(old, new)) == parse_offered_fields(HELP)


def test_output_that_is_not_the_help_text_offers_no_field() -> None:
    assert (
        parse_offered_fields("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n") == ()
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("AUTO", ("AUTO",)),
        ("auto", ("AUTO",)),
        ("uuid,power.draw", ("uuid", "power.draw")),
        (" uuid , power.draw,uuid,", ("uuid", "power.draw")),
        (["uuid", "pci.baseClass"], ("uuid", "pci.baseClass")),
    ],
)
def test_field_names_are_a_list_without_duplicates(text: object, names: tuple[str, ...]) -> None:
    assert field_names(text) == names


@pytest.mark.parametrize("text", ["", ",", "power draw", "uuid;name", "AUTO,uuid", "power.*", "--help"])
def test_an_invalid_field_name_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected AUTO, or fields such as"):
        field_names(text)


def test_an_invalid_glob_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"remapped_rows\.histogram\.\*"):
        field_globs("a[b]")


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        ("", ("uuid", "ecc.mode.current", "ecc.mode.pending", "xecc", "hostname")),
        ("ecc.*", ("uuid", "xecc", "hostname")),
        ("*.pending,hostname", ("uuid", "ecc.mode.current", "xecc")),
        ("ecc.mode", ("uuid", "ecc.mode.current", "ecc.mode.pending", "xecc", "hostname")),
        ("ecc.mode.current", ("uuid", "ecc.mode.pending", "xecc", "hostname")),
        # Identity fields cannot be excluded.
        ("*", ("uuid",)),
        ("uuid,ecc*", ("uuid", "xecc", "hostname")),
    ],
)
def test_a_star_matches_any_text_and_other_characters_match_themselves(
    globs: str, expected: tuple[str, ...]
) -> None:
    fields = ("uuid", "ecc.mode.current", "ecc.mode.pending", "xecc", "hostname")
    assert exclude_fields(fields, field_globs(globs)) == expected


def test_identity_fields_cannot_be_excluded() -> None:
    assert exclude_fields(IDENTITY_FIELDS, ("*",)) == IDENTITY_FIELDS


def test_each_quantity_is_queried_unless_only_the_full_report_has_it() -> None:
    queried = {quantity for quantity, names in GPU_CELLS.items() if not set(names).isdisjoint(QUERY_FIELDS)}
    # Old drivers reject the fields of the second line, one call for each.
    only_in_report = {
        *(q.PCIE_REPLAYS, q.BAR1_TOTAL, q.BAR1_USED, q.BAR1_FREE, q.VIRTUALIZATION_MODE, q.MAX_VIDEO_CLOCK),
        *(q.POWER_INSTANT, q.RECOVERY_ACTION, q.FABRIC_STATE, q.POWER_VIOLATION, q.SYNC_BOOST_VIOLATION),
        *(q.REMAPPED_ROWS_CORRECTABLE, q.REMAPPED_ROWS_UNCORRECTABLE),
        *(q.PCIE_GENERATION_GPU_MAX, q.SOFTWARE_THERMAL_TIME, q.HARDWARE_THERMAL_TIME, q.POWER_BRAKE_TIME),
        *(q.ROW_REMAP_PENDING, q.ROW_REMAP_FAILURE, q.TEMPERATURE_SLOWDOWN, q.TEMPERATURE_SHUTDOWN),
    }
    assert GPU_CELLS.keys() - queried == only_in_report, "add its field to QUERY_FIELDS in cell_names.py"
