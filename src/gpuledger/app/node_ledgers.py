"""Makes the report of a lab without a Prometheus: the ledger rows of every node, added up exactly."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from gpuledger.app.exported_reports import Progress, report_from_exports
from gpuledger.app.fleet_api import FleetApiClient, NodeBooksRefused
from gpuledger.ledger.books.exported_history import Export
from gpuledger.ledger.books.layout import TABLES
from gpuledger.ledger.books.manifest import MANIFEST_NAME, read_manifest, verify_tables
from gpuledger.ledger.books.table_files import CSV
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.statement.terms import StatementTerms, parse_terms
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import list_some
from gpuledger.terminal.fleet_picture import FleetNodeRow, FleetPicture

# Nodes that export at the same time: they are different machines, and the fleet passes their rows through.
_TOGETHER: Final = 4
# Seconds of one request: a node makes its archive before it sends the first byte.
_LONGEST_PIECE: Final = 31 * 86_400
_DAY: Final = 86_400
# The latest begin that the API of nodes accepts, in the year 2096.
_LATEST: Final = 3_999_999_999.0
# Bytes of one file of an archive.
_LARGEST: Final = 16 << 30
_NAMED: Final = 20
# Begin and end in unix seconds; None is now, whatever the clock.
RangePiece = tuple[float, float | None]
_FILES: Final = frozenset({MANIFEST_NAME, *(f"{table}.{CSV}" for table in TABLES)})


class MissingNodeRows(NamedTuple):
    """A node that is not in the report, and why."""

    node: FleetNodeRow
    reason: str


@dataclass(slots=True)
class NodeExports:
    """What the nodes sent: exports of their ledgers, nodes without any row, and nodes that are missing."""

    exports: list[Export] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    missing: list[MissingNodeRows] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)


def report_from_nodes(
    open_client: Callable[[], FleetApiClient],
    terms: StatementTerms,
    requested: RequestedRange,
    progress: Progress,
) -> UsageReport:
    """The report of all nodes of a fleet; `open_client` opens a client for one thread.

    Nodes that cannot be read are named in its notes, with the hours that are missing. Raises GpuledgerError
    if no node has a row of the range.
    """
    client = open_client()
    try:
        picture = client.fleet()
    finally:
        client.close()
    with TemporaryDirectory(prefix="gpuledger-fleet-") as folder:
        found = fetch_exports(open_client, picture, requested, Path(folder), progress)
        if not found.exports:
            raise GpuledgerError(_nothing(found, picture))
        report = report_from_exports(
            found.exports, terms.by, terms.prices, requested, progress, every=terms.every, teams=terms.teams
        )
    return replace(report, notes=(*_notes(found, picture, requested), *report.notes))


def terms_of_fleet(
    client: FleetApiClient, local: StatementTerms, values: Mapping[str, Any]
) -> StatementTerms:
    """The terms of a report: each setting that is set here counts, else the fleet's own.

    `values` are the settings that are given here. Raises GpuledgerError.
    """
    try:
        fleet = parse_terms(client.terms())
    except (ValueError, KeyError, TypeError) as error:
        raise GpuledgerError(
            f"the prices of the fleet {client.url} cannot be read ({error}): use the same gpuledger version, "
            "or set them here"
        ) from None
    prices, theirs = fleet.prices.changed_by(values), fleet.prices
    amounts = {"price.kwh": theirs.kwh, "price.gpu_hour": theirs.gpu_hour}
    kept = [key for key, price in amounts.items() if price is not None and key not in values]
    if kept and theirs.currency not in ("", prices.currency):
        raise UsageError(
            f"{' and '.join(kept)} of the fleet {client.url} {'is' if len(kept) == 1 else 'are'} in "
            f"{theirs.currency}, and price.currency is {prices.currency or 'empty'} here: omit it, or set "
            f"{' and '.join(kept)} here, too"
        )
    return StatementTerms(
        local.by,
        local.every,
        prices,
        local.teams if "teams" in values else fleet.teams,
        local.zone if "report.timezone" in values else fleet.zone,
    )


def fetch_exports(
    open_client: Callable[[], FleetApiClient],
    picture: FleetPicture,
    requested: RequestedRange,
    folder: Path,
    progress: Progress,
) -> NodeExports:
    """Fetch the rows of the range of all nodes into a directory. A node that fails is named as missing."""
    found = NodeExports()
    nodes = [node for node in picture.nodes if node.gpus or not node.counted_elsewhere]
    pieces = range_pieces(requested, picture.unix)
    with ThreadPoolExecutor(_TOGETHER, "fleet") as threads:
        fetched = {
            threads.submit(_fetch_node, open_client, node, pieces, folder / str(number)): node
            for number, node in enumerate(nodes)
        }
        results: dict[str, list[Export]] = {}
        for done, one in enumerate(as_completed(fetched), 1):
            node = fetched[one]
            progress("ledgers of nodes", done / len(fetched))
            try:
                results[node.key] = one.result()
            except GpuledgerError as error:
                found.missing.append(MissingNodeRows(node, str(error)))
    _add_in_order(found, nodes, results)
    return found


def _add_in_order(
    found: NodeExports, nodes: Sequence[FleetNodeRow], results: Mapping[str, list[Export]]
) -> None:
    """Add the exports in the order of the nodes. A ledger that two addresses gave counts once."""
    books: set[str] = set()
    exports: list[Export] = []
    for node in nodes:
        own = results.get(node.key)
        if own is None:
            continue
        if not own:
            found.empty.append(node.name)
        elif own[0].manifest.books in books:
            found.twice.append(node.name)
        else:
            books.add(own[0].manifest.books)
            exports += own
    found.missing.sort(key=lambda one: one.node.name)
    found.exports = sorted(
        exports, key=lambda one: (one.manifest.node, one.manifest.books, one.manifest.begins)
    )


def _fetch_node(
    open_client: Callable[[], FleetApiClient], node: FleetNodeRow, pieces: Sequence[RangePiece], folder: Path
) -> list[Export]:
    """The exports of one node, in order; none if it watched nothing. Raises GpuledgerError."""
    found: list[Export] = []
    client = open_client()
    try:
        # The newest first: it says when the ledger begins, before which there is nothing to fetch.
        for number, (since, until) in reversed(list(enumerate(pieces))):
            place = folder / str(number)
            place.mkdir(parents=True)
            archive = place.with_suffix(".tar.gz")
            try:
                with archive.open("wb") as opened:
                    client.download_books(node.key, since, until, opened)
            except NodeBooksRefused as error:
                if error.code == "not_watched":
                    continue
                raise
            unpack_export(archive, place)
            archive.unlink()
            export = Export(place, read_manifest(place / MANIFEST_NAME))
            # Here, so that one damaged answer costs only its own node.
            verify_tables(*export)
            # The ends of two pieces can move to the same hour of the ledger.
            if not found or export.manifest.ends <= found[0].manifest.begins:
                found.insert(0, export)
            if export.manifest.first >= since:
                break
    except OSError as error:
        raise GpuledgerError(
            f"cannot write its rows to {folder.parent} ({error.strerror}): free some space there, or set "
            "TMPDIR"
        ) from None
    finally:
        client.close()
    return found


def range_pieces(requested: RequestedRange, now: float) -> list[RangePiece]:
    """The range in pieces that a node exports within a minute; they meet at midnights of UTC.

    Each has at least a day, if the range has: a shorter one can have no cut of a ledger inside. An end in the
    future is now: the report cuts what it gets, also of simulated nodes, which are ahead.
    """
    since, until = min(requested.since, _LATEST), requested.until
    until = None if until is None or until >= now else until
    ends = now if until is None else until
    pieces: list[RangePiece] = []
    while ends - since > _LONGEST_PIECE:
        cut = float(min(since + _LONGEST_PIECE, ends - _DAY) // _DAY * _DAY)
        pieces.append((since, cut))
        since = cut
    return [*pieces, (since, until)]


def unpack_export(archive: Path, folder: Path) -> None:
    """Unpack the known files of an archive from a node, and nothing else. Raises GpuledgerError, OSError."""
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for entry in opened:
                source = opened.extractfile(entry) if entry.isfile() and entry.name in _FILES else None
                if source is None or entry.size > _LARGEST:
                    raise GpuledgerError(f"its archive has the unexpected file {entry.name[:40]!r}")
                with source, (folder / entry.name).open("xb") as target:
                    shutil.copyfileobj(source, target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise GpuledgerError(f"its answer was cut off or damaged ({error}): try again") from None


def _notes(found: NodeExports, picture: FleetPicture, requested: RequestedRange) -> Iterator[str]:
    """Sentences on what is missing, before those of the report."""
    for one in found.missing[:_NAMED]:
        yield _missing_note(one, picture, requested)
    if len(found.missing) > _NAMED:
        yield f"{len(found.missing) - _NAMED} more nodes are not in this report."
    for error in picture.list_errors:
        # The fleet gives only the message: the list cannot be read, or some of its entries are wrong.
        yield f"Nodes can be missing, because a list of nodes or some of its entries cannot be read: {error}."
    if found.empty:
        yield f"Nothing was watched in this range on {list_some(found.empty, _NAMED)}."
    if found.twice:
        yield f"Listed under two addresses, and counted once: {list_some(found.twice, _NAMED)}."


def _missing_note(one: MissingNodeRows, picture: FleetPicture, requested: RequestedRange) -> str:
    node = one.node
    until = picture.unix if requested.until is None else min(requested.until, picture.unix)
    hours = max(until - requested.since, 0.0) / 3600
    gpus = len({gpu.uuid for gpu in node.gpus})
    amount = f"{hours:,.1f} hours"
    if gpus:
        amount += f" of {gpus} GPU{'s' * (gpus > 1)}, at most {hours * gpus:,.1f} GPU-hours,"
    verb = "are" if hours != 1 or gpus else "is"
    since = ""
    if node.status and node.since is not None:
        since = f", since {format_local_time(node.since, requested.zone)}"
    why = f"{node.status or one.reason}{since}"
    return f"Node {node.name} is not in this report: {why}. {amount} {verb} missing."


def _nothing(found: NodeExports, picture: FleetPicture) -> str:
    if not picture.nodes:
        why = f": {picture.list_errors[0]}" if picture.list_errors else ""
        return f"the fleet has no nodes{why}"
    if found.missing:
        first = found.missing[0]
        more = f", and {len(found.missing) - 1} more" if len(found.missing) > 1 else ""
        why = f"{first.node.name}: {first.reason}{more}"
        if found.empty:
            return f"nothing was watched in this range on the nodes that sent their rows; the others: {why}"
        return f"no node of the fleet sent its rows: {why}"
    return f"nothing was watched in this range on any of the {len(picture.nodes)} nodes of the fleet"
