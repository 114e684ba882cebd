"""/api/v1/books: the export of a range in one archive, and nothing left behind."""

from __future__ import annotations

import io
import tarfile
from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock, node_state, snapshot
from exported_ledgers import SINCE, UNTIL, write_export, write_node
from gpuledger.ledger.books.manifest import MANIFEST_NAME, read_manifest, verify_tables
from gpuledger.ledger.store.history import History
from gpuledger.web.api.books import books_response
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.responses import ApiError

(PARAMETERS,) = (one.parameters for one in ENDPOINTS if one.name == "books")
STATE = node_state(snapshot(unix=float(UNTIL)))


class LedgerServer:
    """A node's ledger, and what its API sends of it."""

    def __init__(self, folder: Path) -> None:
        self.file = write_node(folder / "state")
        self.access = LedgerAccess(FakeClock(float(UNTIL)), lambda: History(self.file))

    def fetch(self, query: str = f"since={SINCE}&until={UNTIL}") -> bytes:
        found = books_response(STATE, self.access, read_query(query, PARAMETERS), "node-1", UTC)
        assert (found.status, found.content_type) == (200, "application/gzip")
        assert found.stream is not None
        stream = found.stream()
        stream.begin(lambda: None)
        received = bytearray()
        while (piece := stream.take()) is not None:
            received += piece
        stream.end()
        assert stream.take() is None
        return bytes(received)


@pytest.fixture
def node(tmp_path: Path) -> LedgerServer:
    return LedgerServer(tmp_path)


def unpack(archive: bytes, folder: Path) -> Any:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        opened.extractall(folder, filter="data")
    return read_manifest(folder / MANIFEST_NAME)


def test_the_archive_has_what_books_export_writes(node: LedgerServer, tmp_path: Path) -> None:
    manifest = unpack(node.fetch(), tmp_path / "out")
    verify_tables(tmp_path / "out", manifest)
    _, exported = write_export(node.file, tmp_path / "exported", between=(SINCE, manifest.ends))
    assert (manifest.content, manifest.totals) == (exported.content, exported.totals)


def test_nothing_is_left_beside_the_ledger(node: LedgerServer) -> None:
    node.fetch()
    names = {one.name for one in node.file.parent.iterdir()}
    # The others are those of SQLite, and the lock of the ledger.
    assert names <= {"gpuledger.db", "gpuledger.db-shm", "gpuledger.db-wal", "gpuledger.lock"}


def test_the_archive_has_no_names_of_this_machine(node: LedgerServer) -> None:
    with tarfile.open(fileobj=io.BytesIO(node.fetch()), mode="r:gz") as opened:
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in opened} == {(0, 0, "", 0)}


def test_a_range_without_a_second_is_not_watched(node: LedgerServer) -> None:
    with pytest.raises(ApiError) as refused:
        node.fetch(f"since={UNTIL + 86_400}&until={UNTIL + 90_000}")
    assert (refused.value.status, refused.value.code) == (404, "not_watched")


@pytest.mark.parametrize("query", ["since=now&until=now", f"since={UNTIL}&until={SINCE}"])
def test_an_empty_range_is_refused(node: LedgerServer, query: str) -> None:
    with pytest.raises(ApiError) as refused:
        node.fetch(query)
    assert refused.value.status == 400


def test_a_ledger_in_memory_has_no_books(node: LedgerServer) -> None:
    node.access = LedgerAccess(FakeClock(float(UNTIL)))
    with pytest.raises(ApiError) as refused:
        node.fetch()
    assert refused.value.code == "no_books"


def test_a_folder_that_cannot_be_written_is_one_error(
    node: LedgerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuledger.ledger.books.exporting.write_table", refuse)
    with pytest.raises(ApiError, match="free some space there"):
        node.fetch()
    with closing(History(node.file)):
        pass
