"""pmon: columns by the header's names, whatever the driver prints."""

from __future__ import annotations

import pytest

from gpuledger.model.process import NO_USAGE, Usage
from gpuledger.sources.findings import Findings
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
def test_columns_go_by_their_names(driver: str) -> None:
    *lines, usage = HEADS[driver]
    assert parse_pmon("\n".join([*map(str, lines), ""]), Findings()).usage == {(0, 4100): usage}


def test_a_dash_is_absent_and_not_zero() -> None:
    title, units, *_ = HEADS["560"]
    activity = parse_pmon(f"{title}\n{units}\n 0 4100 C - - - - - - x\n 0 - - - - - - - - -\n", Findings())
    assert activity.usage == {(0, 4100): NO_USAGE}


def test_a_command_with_spaces_moves_nothing() -> None:
    title, units, *_ = HEADS["560"]
    activity = parse_pmon(f"{title}\n{units}\n 1 7 C 5 0 - - - - run 99 a, b\n", Findings())
    assert activity.usage == {(1, 7): Usage(sm=0.05, memory=0.0)}


def test_a_value_above_100_percent_is_not_believed_and_counted() -> None:
    title, units, *_ = HEADS["560"]
    findings = Findings()
    assert parse_pmon(f"{title}\n{units}\n 0 7 C 4294967295 3 - - - - x\n", findings).usage == {
        (0, 7): Usage(memory=0.03)
    }
    assert findings.invalid == 1


def test_a_short_row_is_lost_alone() -> None:
    title, units, *_ = HEADS["560"]
    findings = Findings()
    activity = parse_pmon(f"{title}\n{units}\n 0 7 C 5 0 - -\n 0 8 C 6 0 - - - - x\n", findings)
    assert activity.usage == {(0, 8): Usage(sm=0.06, memory=0.0)}
    assert findings.invalid == 1


@pytest.mark.parametrize("text", ["", "Not supported on the device(s)\n", "# nonsense\n 0 1 C 5\n"])
def test_an_answer_that_is_no_table_tells_nothing(text: str) -> None:
    activity = parse_pmon(text, Findings())
    assert (activity.told, activity.usage) == (False, {})


def test_a_column_in_another_unit_than_percent_is_not_taken() -> None:
    title, *_ = HEADS["560"]
    units = "# Idx # C/G MB % % % % % name"
    assert parse_pmon(f"{title}\n{units}\n 0 7 C 5 1 - - - - x\n", Findings()).usage == {
        (0, 7): Usage(memory=0.01)
    }
