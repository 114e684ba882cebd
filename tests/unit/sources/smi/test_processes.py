"""pmon: columns are found by name in the output of any driver version."""

from __future__ import annotations

import pytest

from gpuledger.model.process import NO_USAGE, Usage
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.processes import parse_pmon

HEADS = {
    "before 550": (
        "# gpu        pid  type    sm   mem   enc   dec    fb   command",
        "# Idx          #   C/G     %     %     %     %    MB   name",
        "    0      4100     C    57    29     -     0   812   python3",
        Usage(sm=0.57, memory=0.29, decoder=0.0),
    ),
    "550": (
        "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command",
        "# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name",
        "    0       4100      C     57     29      -      0      3      4    812      0    python3",
        Usage(sm=0.57, memory=0.29, decoder=0.0, jpeg=0.03, ofa=0.04),
    ),
    "560": (
        "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command",
        "# Idx           #    C/G      %      %      %      %      %      %    name",
        "    0       4100      C     57     29      -      0      3      4    python3",
        Usage(sm=0.57, memory=0.29, decoder=0.0, jpeg=0.03, ofa=0.04),
    ),
    "in another order": (
        "# gpu pid type dec sm command",
        "# Idx # C/G % % name",
        "0 4100 C 9 57 python3",
        Usage(sm=0.57, decoder=0.09),
    ),
}


@pytest.mark.parametrize("driver", HEADS)
def test_columns_are_found_by_their_names(driver: str) -> None:
    *lines, usage = HEADS[driver]
    assert parse_pmon("\n".join([*map(str, lines), ""]), SourceFindings()) == {(0, 4100): usage}


def test_a_dash_is_absent_not_zero() -> None:
    title, units, *_ = HEADS["560"]
    sample = parse_pmon(
        f"{title}\n{units}\n 0 4100 C - - - - - - x\n 0 - - - - - - - - -\n", SourceFindings()
    )
    assert sample == {(0, 4100): NO_USAGE}


def test_spaces_in_the_command_do_not_shift_columns() -> None:
    title, units, *_ = HEADS["560"]
    sample = parse_pmon(f"{title}\n{units}\n 1 7 C 5 0 - - - - run 99 a, b\n", SourceFindings())
    assert sample == {(1, 7): Usage(sm=0.05, memory=0.0)}


def test_a_value_above_100_percent_is_counted_as_invalid() -> None:
    title, units, *_ = HEADS["560"]
    findings = SourceFindings()
    assert parse_pmon(f"{title}\n{units}\n 0 7 C 4294967295 3 - - - - x\n", findings) == {
        (0, 7): Usage(memory=0.03)
    }
    assert findings.invalid == 1


def test_a_short_row_is_dropped_and_the_others_are_kept() -> None:
    title, units, *_ = HEADS["560"]
    findings = SourceFindings()
    sample = parse_pmon(f"{title}\n{units}\n 0 7 C 5 0 - -\n 0 8 C 6 0 - - - - x\n", findings)
    assert sample == {(0, 8): Usage(sm=0.06, memory=0.0)}
    assert findings.invalid == 1


MESSAGES = (
    "WARNING: infoROM is corrupted at gpu 0000:17:00.0",
    "WARNING: infoROM is corrupted",
    "GPU 0000:01:00.0: GPU requires reset",
    "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error",
    "Failed to initialize NVML: Unknown Error",
    "Not supported on the device(s)",
)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_beside_the_rows_is_no_invalid_value(message: str, place: int) -> None:
    title, units, *_ = HEADS["560"]
    rows = [" 0 8 C 6 0 - - - - x", " 1 9 C 7 0 - - - - y"]
    rows.insert(place, message)
    findings = SourceFindings()
    sample = parse_pmon("\n".join((title, units, *rows, "")), findings)
    assert sample == {(0, 8): Usage(sm=0.06, memory=0.0), (1, 9): Usage(sm=0.07, memory=0.0)}
    assert findings.invalid == 0


@pytest.mark.parametrize("row", [" 0 99999999999 C 5 0 - - - - x", " 0 7"])
def test_a_garbled_row_is_an_invalid_value(row: str) -> None:
    title, units, *_ = HEADS["560"]
    findings = SourceFindings()
    assert parse_pmon(f"{title}\n{units}\n{row}\n", findings) == {}
    assert findings.invalid == 1


@pytest.mark.parametrize("text", ["", "Not supported on the device(s)\n", "# nonsense\n 0 1 C 5\n"])
def test_output_that_is_not_a_table_has_no_usage(text: str) -> None:
    sample = parse_pmon(text, SourceFindings())
    assert sample is None


def test_a_column_with_a_unit_other_than_percent_is_ignored() -> None:
    title, *_ = HEADS["560"]
    units = "# Idx # C/G MB % % % % % name"
    assert parse_pmon(f"{title}\n{units}\n 0 7 C 5 1 - - - - x\n", SourceFindings()) == {
        (0, 7): Usage(memory=0.01)
    }
