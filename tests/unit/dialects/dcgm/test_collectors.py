"""Collectors files in dcgm-exporter's format: valid and invalid ones, with their warnings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.dialects.dcgm.collectors import (
    DEFAULT_COLLECTORS,
    UNSUPPORTED_FIELDS,
    Collectors,
    parse_collectors,
)
from gpuledger.dialects.dcgm.field_definition import BYTES, MEBIBYTES, Schema
from gpuledger.model.errors import UsageError

GOOD = "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n"


def read(text: str) -> Collectors:
    return parse_collectors(text.encode(), "a.csv")


def columns_of(text: str, schema: Schema = "4.8") -> list[tuple[str, bool, str]]:
    return [(column.name(schema), column.is_label, column.help) for column in read(text).columns]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock (in MHz).",
            ("DCGM_FI_DEV_SM_CLOCK", False, "SM clock (in MHz)."),
        ),
        ("DCGM_FI_DEV_DEC_UTIL ,     gauge, x", ("DCGM_FI_DEV_DEC_UTIL", False, "x")),
        ("  DCGM_FI_DEV_GPU_TEMP\t,gauge,x", ("DCGM_FI_DEV_GPU_TEMP", False, "x")),
        ("DCGM_FI_DRIVER_VERSION, label, Driver Version", ("DCGM_FI_DRIVER_VERSION", True, "Driver Version")),
        ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL, counter, x", ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", False, "x")),
        ("DCGM_FI_DEV_PSTATE, label, x", ("DCGM_FI_DEV_PSTATE", True, "x")),
        ('"DCGM_FI_DEV_GPU_TEMP","gauge","a, b ""c"""', ("DCGM_FI_DEV_GPU_TEMP", False, 'a, b "c"')),
        ('DCGM_FI_DEV_GPU_TEMP, "gauge", "a, b"', ("DCGM_FI_DEV_GPU_TEMP", False, "a, b")),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a, b, c", ("DCGM_FI_DEV_GPU_TEMP", False, "a, b, c")),
        ("DCGM_FI_DEV_GPU_TEMP, gauge", ("DCGM_FI_DEV_GPU_TEMP", False, "")),
        ("DCGM_FI_DEV_GPU_TEMP, Gauge, x", ("DCGM_FI_DEV_GPU_TEMP", False, "x")),
        ("150, gauge, by id", ("DCGM_FI_DEV_GPU_TEMP", False, "by id")),
        ("1603, gauge, by new id", ("DCGM_FI_DEV_SM_CLOCK", False, "by new id")),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ, gauge, by new name", ("DCGM_FI_DEV_SM_CLOCK", False, "by new name")),
        ("dcgm_gpu_utilization, gauge, of 1.x", ("dcgm_gpu_utilization", False, "of 1.x")),
        ("dcgm_fi_prof_sm_active, gauge, of 1.x", ("dcgm_fi_prof_sm_active", False, "of 1.x")),
        ("DCGM_EXP_XID_ERRORS_TOTAL, counter, x", ("DCGM_EXP_XID_ERRORS_TOTAL", False, "x")),
    ],
)
def test_a_line_names_a_field_by_any_name_or_id_and_keeps_its_help(
    line: str, found: tuple[str, bool, str]
) -> None:
    assert columns_of(line) == [found]
    assert read(line).warnings == ()


@pytest.mark.parametrize(
    "file",
    [
        f"# Format\n\n{GOOD}",
        f"   # an indented comment\n{GOOD}# another\n",
        f"#DCGM_FI_DEV_SM_CLOCK, gauge, off\r\n\r\n{GOOD.rstrip()}\r\n",
        f"\ufeff{GOOD}",
        f"\ufeff# comment\r\n{GOOD}\t\r\n   \r\n",
        GOOD.rstrip("\n"),
        GOOD.replace("\n", "\r"),
    ],
)
def test_comments_blank_lines_byte_order_marks_and_line_ends_are_ignored(file: str) -> None:
    assert columns_of(file) == columns_of(GOOD)
    assert read(file).warnings == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "DCGM_FI_DEV_GPU_TMP, gauge, x",
            "unknown field 'DCGM_FI_DEV_GPU_TMP'; did you mean 'DCGM_FI_DEV_GPU_TEMP'?",
        ),
        ("dcgm_fi_dev_gpu_temp, gauge, x", "unknown field 'dcgm_fi_dev_gpu_temp'; did you mean"),
        (
            "temperature, gauge, x",
            "unknown field 'temperature'; expected a name such as DCGM_FI_DEV_GPU_TEMP, or an id",
        ),
        ("9999, gauge, x", "the field id 9999 is unknown or not supported"),
        ("99999999999999999999999999, gauge, x", "the field id 99999999999999999999 is unknown"),
        ("DCGM_FI_DEV_SM_CLOCK", "expected FIELD, TYPE, HELP"),
        (
            "DCGM_FI_DEV_SM_CLOCK, histogram, x",
            "the type 'histogram' is invalid; expected one of label, gauge, counter",
        ),
        ("DCGM_FI_DEV_XID_ERRORS, label, x", "cannot be a label: it is a metric with own labels"),
        ("DCGM_FI_DEV_BRAND, label, x", "DCGM_FI_DEV_BRAND: brands are not read"),
        ("DCGM_EXP_XID_ERRORS_COUNT, counter, x", "use increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])"),
    ],
)
def test_an_invalid_line_is_skipped_with_one_warning(line: str, problem: str) -> None:
    found = read(f"# head\n{line}\n{GOOD}")
    assert [column.field.id for column in found.columns] == [150]
    (warning,) = found.warnings
    assert warning.startswith("a.csv line 2 is skipped: ")
    assert problem in warning


@pytest.mark.parametrize("content", ["", "\n\n", "# only comments\n", "{}", "nonsense\nmore, nonsense\n"])
def test_a_file_without_valid_lines_is_an_error(content: str) -> None:
    with pytest.raises(UsageError, match=r"^a\.csv has no field that can be exported"):
        read(content)


def test_the_error_contains_the_problem_of_the_first_line() -> None:
    with pytest.raises(UsageError, match="did you mean 'DCGM_FI_DEV_GPU_UTIL'"):
        read("DCGM_FI_DEV_GPU_UTL, gauge, x\n")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00D", b"DCGM_FI_DEV_GPU_TEMP, gauge, \xe9\n", b"\x89PNG\r\n\x1a\n"]
)
def test_a_file_that_is_not_utf_8_is_an_error(content: bytes) -> None:
    with pytest.raises(UsageError, match=r"a\.csv is not UTF-8 text"):
        parse_collectors(content, "a.csv")


def test_types_are_those_of_dcgm_and_one_warning_lists_changed_types() -> None:
    found = read(
        "DCGM_FI_PROF_PCIE_TX_BYTES, counter, x\n"
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, x\n"
        "DCGM_FI_DRIVER_VERSION, gauge, x\n"
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, gauge, x\n" + GOOD
    )
    assert found.warnings == (
        "a.csv: types were changed to those of DCGM: DCGM_FI_PROF_PCIE_TX_BYTES is a gauge, "
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL is a gauge, DCGM_FI_DRIVER_VERSION is a label, "
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION is a counter",
    )
    assert [column.is_label for column in found.columns] == [False, False, True, False, False]


def test_the_first_line_of_a_field_is_used_and_it_can_also_be_a_label() -> None:
    found = read(
        "DCGM_FI_DEV_PSTATE, gauge, one\n"
        "DCGM_FI_DEV_GPU_PSTATE, gauge, two\n"
        "DCGM_FI_DEV_PSTATE, label, three\n"
    )
    assert [(column.is_label, column.help) for column in found.columns] == [(False, "one"), (True, "three")]


@pytest.mark.parametrize(
    ("first", "second", "schema", "exported"),
    [
        ("DCGM_FI_DEV_FB_USED, gauge, a", "DCGM_FI_DEV_FB_USED, gauge, b", "4.8", 1),
        ("DCGM_FI_DEV_FB_USED, gauge, a", "252, gauge, b", "4.8", 1),
        ("DCGM_FI_DEV_FB_USED_BYTES, gauge, a", "DCGM_FI_DEV_FB_USED, gauge, b", "4.9", 1),
        ("DCGM_FI_DEV_FB_USED, gauge, a", "dcgm_fb_used, gauge, b", "4.8", 2),
        (
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, a",
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS, gauge, b",
            "4.8",
            2,
        ),
        (
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, a",
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS, gauge, b",
            "4.9",
            1,
        ),
        ("DCGM_FI_DRIVER_VERSION, label, a", "DCGM_FI_DRIVER_VERSION, label, b", "4.8", 1),
        ("DCGM_FI_DEV_PSTATE, gauge, a", "DCGM_FI_DEV_PSTATE, label, b", "4.8", 2),
    ],
)
def test_every_line_is_exported_or_has_a_warning(
    first: str, second: str, schema: Schema, exported: int
) -> None:
    found = parse_collectors(f"{GOOD}{first}\n# comment\n{second}\n".encode(), "a.csv", schema)
    names = [column.name(schema) for column in found.columns[1:]]
    assert len(names) == exported and found.columns[1].help == "a"
    kind = "label" if found.columns[1].is_label else "metric"
    skipped = f"a.csv line 4 is skipped: line 2 exports the {kind} {names[0]}"
    assert found.warnings == (() if exported == 2 else (skipped,))


def test_the_schema_determines_the_name_for_any_name_in_the_file() -> None:
    names = "DCGM_FI_DEV_FB_USED, gauge, x\nDCGM_FI_DEV_GPU_UTIL_RATIO, gauge, x\n"
    assert [name for name, _, _ in columns_of(names, "4.8")] == [
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_GPU_UTIL",
    ]
    assert [name for name, _, _ in columns_of(names, "4.9")] == [
        "DCGM_FI_DEV_FB_USED_BYTES",
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
    ]


def test_an_alias_is_exported_as_written() -> None:
    for name in ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"):
        assert columns_of(f"{name}, gauge, x")[0][0] == name
        assert columns_of(f"{name}, gauge, x", "4.9")[0][0] == "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def test_names_of_dcgm_exporter_1_keep_their_units_in_every_schema() -> None:
    (column,) = read("dcgm_fb_used, gauge, x").columns
    assert {column.name("4.8"), column.name("4.9")} == {"dcgm_fb_used"}
    assert column.scale("4.8") is column.scale("4.9") is MEBIBYTES
    assert read("DCGM_FI_DEV_FB_USED, gauge, x").columns[0].scale("4.9") is BYTES


# The default fields of dcgm-exporter 4.8, except vGPU licenses.
UPSTREAM = {100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251, 252, 253, 449}
UPSTREAM |= {393, 394, 395, 1, 1001, 1004, 1005, 1009, 1010}
DOCUMENT_LABELS = {1, 2, 50, 53, 54, 65, 66, 500, 67, 69, 76, 77}
DOCUMENT_METRICS = {100, 101, 155, 190, 150, 203, 1009, 1010, 250, 251, 252, 253, 254, 312, 313}
DOCUMENT_METRICS |= {1001, 1002, 1003, 1004, 1005}


def test_default_fields_are_those_of_the_document_and_of_dcgm_exporter() -> None:
    labels = {column.field.id for column in DEFAULT_COLLECTORS.columns if column.is_label}
    metrics = {column.field.id for column in DEFAULT_COLLECTORS.columns if not column.is_label}
    assert labels == DOCUMENT_LABELS
    assert metrics == DOCUMENT_METRICS | (UPSTREAM - DOCUMENT_LABELS)
    assert len(DEFAULT_COLLECTORS.columns) == len(labels) + len(metrics)
    assert "DCGM_FI_DEV_VGPU_LICENSE_STATUS" in UNSUPPORTED_FIELDS


@given(st.binary(max_size=200))
def test_any_file_is_parsed_or_rejected_with_a_one_line_error(content: bytes) -> None:
    try:
        parse_collectors(content, "a.csv")
    except UsageError as error:
        assert "\n" not in str(error)


@given(st.lists(st.text(max_size=40), max_size=6))
def test_invalid_lines_do_not_affect_a_valid_line(lines: list[str]) -> None:
    content = "\n".join(["", *lines, "", GOOD]).encode("utf-8", "replace")
    assert 150 in {column.field.id for column in parse_collectors(content, "a.csv").columns}
