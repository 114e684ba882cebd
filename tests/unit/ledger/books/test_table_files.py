"""Tables as files: every text comes back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuledger.ledger.books.layout import INTEGER, ExportColumn
from gpuledger.ledger.books.table_files import FORMATS, read_table, write_table

COLUMNS = (ExportColumn("text"), ExportColumn("number", INTEGER))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\r\n",=\t;'))


@pytest.mark.parametrize("form", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1) | st.none()), max_size=5))
def test_rows_round_trip(tmp_path: Path, form: str, rows: list[tuple[str, int | None]]) -> None:
    file = tmp_path / f"table.{form}"
    assert write_table(file, form, COLUMNS, rows).rows == len(rows)
    assert [tuple(row) for row in read_table(file, form, COLUMNS)] == rows


def test_lines_end_with_a_line_feed(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", "csv", COLUMNS, [("a\rb", 1)])
    assert (tmp_path / "table.csv").read_bytes() == b'text,number\n"a\rb",1\n'
