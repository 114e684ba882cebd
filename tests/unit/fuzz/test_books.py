"""Fuzz tests of exported ledgers with altered files and manifests, also with hashes made to fit."""

from __future__ import annotations

import atexit
import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from hypothesis import given, settings
from hypothesis import strategies as st

from exported_ledgers import SINCE, UNTIL, write_export, write_metered_node
from fuzzing import EXAMPLES, bounded, check_line, fuzzed, mutated, mutated_values
from gpuledger.ledger.books import manifest as manifests
from gpuledger.ledger.books.exported_history import open_exports
from gpuledger.ledger.books.layout import TABLES
from gpuledger.ledger.books.library import check_exports, find_exports
from gpuledger.ledger.books.manifest import MANIFEST_NAME, Manifest, file_hash, file_name, write_manifest
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store.report_query import build_report
from gpuledger.model.errors import GpuledgerError
from report_helpers import quarters

# A report of an altered export takes longer than a parser.
fuzzed_slowly = settings(fuzzed, max_examples=max(EXAMPLES // 5, 10))


@cache
def an_export() -> tuple[Path, Manifest]:
    """An export of two pods, for all tests."""
    folder = Path(mkdtemp(prefix="gpuledger-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_export(write_metered_node(folder, 30), folder / "out")


def read_manifest_file(content: bytes) -> None:
    with TemporaryDirectory() as folder, bounded():
        file = Path(folder, MANIFEST_NAME)
        file.write_bytes(content)
        try:
            manifests.read_manifest(file)
        except GpuledgerError as error:
            check_line(error)


@fuzzed
@given(st.data())
def test_no_manifest_raises_another_error(data: st.DataObject) -> None:
    """Also one with a hash that fits."""
    values = json.loads((an_export()[0] / MANIFEST_NAME).read_text())
    known = values.pop("sha256", None)
    content = data.draw(mutated_values(values))
    if isinstance(content, dict):
        content["sha256"] = manifests._hash_of(content) if data.draw(st.booleans()) else known
    read_manifest_file(json.dumps(content).encode())


@fuzzed_slowly
@given(st.data())
def test_no_altered_table_raises_another_error(data: st.DataObject) -> None:
    """With a size and a hash that fit: of somebody who can write the whole directory."""
    place, manifest = an_export()
    table = data.draw(st.sampled_from(sorted(TABLES)))
    name = file_name(table, manifest.format)
    content = data.draw(
        mutated([(place / name).read_bytes()], b",", b"-1", b"GPU-b", b"9" * 30, b"1970-01-01")
    )
    with TemporaryDirectory() as folder, bounded(60):
        copy = Path(folder, "export")
        shutil.copytree(place, copy)
        file = copy / name
        file.write_bytes(content)
        facts = replace(manifest.tables[table], bytes=len(content), sha256=file_hash(file))
        write_manifest(copy, replace(manifest, tables={**manifest.tables, table: facts}))
        try:
            check_exports(copy)
            with open_exports(find_exports([copy])) as history:
                build_report(history, "owner", Prices(), quarters(SINCE, UNTIL))
        except GpuledgerError as error:
            check_line(error)
