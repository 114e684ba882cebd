"""The page on exported ledgers: its columns are those of the files, and its queries run in DuckDB."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documentation import ROOT
from exported_ledgers import SINCE, UNTIL, write_export, write_metered_node, write_node
from gpuledger.ledger.books.layout import COMMON, TABLES
from report_helpers import report_of
from time_books import B

PAGE = (ROOT / "docs" / "books.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_of_each_table_are_described(table: str) -> None:
    section = PAGE.split(f"\n`{table}`: ")[1].split("\n\n`")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", "".join(cells)) and set(re.findall(r"`(\w+)`", "".join(cells))) == {
        column.name for column in TABLES[table]
    }
    assert all(f"`{column.name}`" in PAGE for column in COMMON)


def test_the_queries_give_the_numbers_of_the_report(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "metered").mkdir()
    files = {"a": write_node(tmp_path / "a"), "b": write_metered_node(tmp_path / "metered")}
    for node, file in files.items():
        write_export(file, tmp_path / "ledgers", node, form="parquet")
    by_namespace, law = (
        query.replace("/srv/ledgers", str(tmp_path / "ledgers"))
        for query in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    )
    connection = duckdb.connect()
    ((namespace, microseconds, millijoules, *_),) = connection.execute(by_namespace).fetchall()
    lines = [line for file in files.values() for line in report_of(file, "namespace", (SINCE, UNTIL)).lines]
    assert namespace == "ml"
    assert microseconds == sum(line.gpu_microseconds or 0 for line in lines)
    assert millijoules == sum(line.millijoules for line in lines)
    assert connection.execute(law).fetchall() == []
    watched = "SELECT sum(allocation_microseconds) FROM read_parquet(?) WHERE gpu = ?"
    ((found,),) = connection.execute(watched, [f"{tmp_path}/ledgers/*/*/gpu_time.parquet", B.uuid]).fetchall()
    assert found == sum(
        gpu.watched for gpu in report_of(files["a"], "gpu", (SINCE, UNTIL)).gpus if gpu.uuid == B.uuid
    )
