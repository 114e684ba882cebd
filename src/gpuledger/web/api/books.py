"""`/api/v1/books`: the ledger's rows of a range, as `gpuledger books export` writes them, in one archive."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from gpuledger.http.routes import Response
from gpuledger.model.errors import UsageError
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.endpoints import ARCHIVE_TYPE
from gpuledger.web.api.energy import range_between
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.responses import ApiError, bad_request

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.ledger.report.ranges import RequestedRange
    from gpuledger.ledger.store.history import History

# Bytes that are sent at a time.
_PIECE: Final = 64 * 1024
# gzip level: rows are repetitive, and the machine needs its CPUs for other work.
_GZIP_LEVEL: Final = 3
_HEADERS: Final = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


def books_response(
    state: NodeState, ledger_access: LedgerAccess, parameters: Mapping[str, Any], node: str, zone: tzinfo
) -> Response:
    """The archive of the requested range; runs in a worker thread. Raises ApiError.

    It is written to the directory of the ledger, and removed there before it is sent.
    """
    from gpuledger.ledger.books.work_folder import work_folder
    from gpuledger.ledger.store.watched_range import NothingWatched

    with ledger_access.open() as history:
        now = ledger_access.now(state, history)
        requested = range_between(parameters["since"], parameters["until"], now, zone)
        try:
            with work_folder(history.file.parent) as folder:
                archive = _write_archive(history, requested, folder, node, simulated=ledger_access.simulated)
        except NothingWatched as error:
            raise ApiError(404, "not_watched", str(error), "since") from None
        except UsageError as error:
            raise bad_request("since", str(error).replace("--", "")) from None
    return Response(content_type=ARCHIVE_TYPE, headers=_HEADERS, stream=archive.open_stream)


def _write_archive(
    history: History, requested: RequestedRange, folder: Path, node: str, *, simulated: bool
) -> OpenArchive:
    """Export the range, and pack its files. Raises GpuledgerError, OSError and sqlite3.Error."""
    # Imported lazily: few nodes export anything, and OpenSSL's hashes need 4 MiB.
    import tarfile

    from gpuledger.ledger.books.exporting import ExportScope, export_ledger
    from gpuledger.ledger.books.table_files import CSV
    from gpuledger.ledger.store.watched_range import resolve_watched_range

    within = resolve_watched_range(history, requested)
    export, packed = folder / "export", folder / "export.tar.gz"
    export.mkdir()
    export_ledger(history, ExportScope(node, socket.gethostname(), within, CSV, simulated), export)
    with tarfile.open(packed, "w:gz", compresslevel=_GZIP_LEVEL) as archive:
        for file in sorted(export.iterdir()):
            archive.add(file, file.name, filter=_without_owner)
    return OpenArchive(os.open(packed, os.O_RDONLY | os.O_CLOEXEC))


def _without_owner(entry: Any) -> Any:
    # Names of users of this machine are of no use elsewhere.
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


class OpenArchive:
    """A file without a name, which ends with this object: a client may be gone before it is sent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def open_stream(self) -> ArchiveStream:
        """A stream of the file's bytes for one client."""
        return ArchiveStream(self)

    def read_at(self, place: int) -> bytes:
        """The next bytes from a place; empty at the end."""
        return os.pread(self._descriptor, _PIECE, place)

    def __del__(self) -> None:
        os.close(self._descriptor)


class ArchiveStream:
    """The bytes of an archive for one client; implements `http.routes.ResponseStream`."""

    def __init__(self, archive: OpenArchive) -> None:
        self._archive: OpenArchive | None = archive
        self._place = 0

    def begin(self, wake: Callable[[], None]) -> None:
        """See `ResponseStream.begin`. All bytes are there: nobody has to be woken."""

    def take(self) -> bytes | None:
        """See `ResponseStream.take`."""
        if self._archive is None:
            return None
        piece = self._archive.read_at(self._place)
        self._place += len(piece)
        return piece or None

    def end(self) -> None:
        """See `ResponseStream.end`."""
        self._archive = None
