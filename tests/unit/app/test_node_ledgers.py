"""`report --fleet`: the rows of all nodes add up exactly, and what is missing is named."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu
from exported_ledgers import SINCE, UNTIL, write_export, write_node
from gpuledger.app.fleet_api import NodeBooksRefused
from gpuledger.app.node_ledgers import (
    range_pieces,
    report_from_nodes,
    terms_of_fleet,
    unpack_export,
)
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.price_entries import GPU_HOUR, price_parser
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.statement.terms import StatementTerms, terms_as_json
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings, declared_settings
from gpuledger.terminal.fleet_picture import parse_fleet
from time_books import A, B

NODES = ("node-1", "node-2", "node-3")
gpu_hours = price_parser(GPU_HOUR)
PRICES = Prices(gpu_hour=gpu_hours('[{"node": "node-2", "price": 7}, {"price": 1.1}]'), currency="EUR")
TERMS = StatementTerms("owner", "", PRICES, (), UTC)
WITHIN = RequestedRange(float(SINCE), float(UNTIL), "--since", "--until", UTC)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place, found = tmp_path_factory.mktemp("nodes"), {}
    for number, node in enumerate(NODES):
        cards = [gpu(2 * number + one, name=card.name) for one, card in enumerate((A, B))]
        found[node] = write_node(place / node, *cards, ticks=180 - 40 * number, begins=SINCE + 100.0 * number)
    return found


def fleet_node(name: str, *, up: bool = True, gpus: int = 2, elsewhere: int = 0) -> dict[str, Any]:
    cell = {"gpu": "0", "instance": "", "state": "active", "owners": []}
    return {
        "key": f"http://{name}:9400",
        "name": name,
        "up": up,
        "reason": "" if up else "cannot connect: connection refused",
        "since": None if up else UNTIL - 600,
        "counted_elsewhere": elsewhere,
        "gpus": [{**cell, "uuid": f"{name}-{number}"} for number in range(gpus)],
    }


class Lab:
    """A fleet in place of an HTTP client. `archives` are by URL of the node; an error is raised."""

    url, host = "http://lab:9410", "lab"

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes = nodes
        self.archives: dict[str, bytes | GpuledgerError] = {}
        self.requests: list[tuple[str, float, float | None]] = []
        self.lists: list[dict[str, Any]] = []

    def fleet(self) -> Any:
        keys = [node["key"] for node in self.nodes]
        head = {"version": "v1", "now": float(UNTIL), "keys": keys, "lists": self.lists}
        return parse_fleet({**head, "nodes": list(self.nodes)})

    def terms(self) -> Mapping[str, Any]:
        return terms_as_json(TERMS)

    def download_books(self, node: str, since: float, until: float | None, into: BinaryIO) -> None:
        self.requests.append((node, since, until))
        found = self.archives.get(node, GpuledgerError("the fleet has no such node"))
        if isinstance(found, GpuledgerError):
            raise found
        into.write(found)

    def close(self) -> None:
        pass

    def report(self, terms: StatementTerms = TERMS) -> UsageReport:
        return report_from_nodes(lambda: self, terms, WITHIN, lambda _, __: None)  # type: ignore[arg-type,return-value]


def pack(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return packed.getvalue()


@pytest.fixture(scope="module")
def archives(ledgers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("exports")
    places = {node: write_export(file, folder / node, node)[0] for node, file in ledgers.items()}
    return {f"http://{node}:9400": pack(place) for node, place in places.items()}


@pytest.fixture
def lab(archives: dict[str, bytes]) -> Lab:
    made = Lab(*map(fleet_node, NODES))
    made.archives |= archives
    return made


def notes(report: UsageReport) -> list[str]:
    """What is said about the fleet, without the notes of the nodes' own reports."""
    ours = ("Node ", "Nodes can be missing", "Nothing was watched", "Listed under")
    return [note for note in report.notes if note.startswith(ours)]


def own_report(file: Path, node: str, by: str) -> UsageReport:
    with closing(History(file)) as history:
        grouping = find_grouping(by, history.devices, node_of=lambda _: node)
        return build_report(history, grouping, PRICES, resolve_watched_range(history, WITHIN), node=node)


def amounts(reports: list[UsageReport]) -> Counter[tuple[Any, str]]:
    """All exact amounts by row, account and kind."""
    found: Counter[tuple[Any, str]] = Counter()
    for report in reports:
        for line in (*report.lines, *report.gpu_accounts):
            name = (line.account, line.key)
            found[name, "microseconds"] += line.gpu_microseconds or 0
            found[name, "millijoules"] += line.millijoules
            found[name, "cost"] += line.cost or Fraction(0)
            found[name, "held"] += line.held or Fraction(0)
        for one in report.unbilled:
            found[(one.account, one.key), "unbilled"] += one.microseconds
    return +found


@pytest.mark.parametrize("by", ["owner", "namespace", "gpu", "model", "node", "pod,node"])
def test_the_report_is_the_exact_sum_of_those_of_the_nodes(
    lab: Lab, ledgers: dict[str, Path], by: str
) -> None:
    own = [own_report(file, node, by) for node, file in ledgers.items()]
    found = lab.report(replace(TERMS, by=by))
    assert amounts([found]) == amounts(own)
    assert found.total.cost == sum((one.total.cost or Fraction(0) for one in own), Fraction(0))
    assert notes(found) == []


def test_a_node_that_is_gone_is_named_with_its_hours(lab: Lab) -> None:
    lab.nodes = (*lab.nodes[:2], fleet_node("node-3", up=False, gpus=8))
    lab.archives.pop("http://node-3:9400")
    (note,) = notes(lab.report())
    assert note == (
        "Node node-3 is not in this report: cannot connect: connection refused, since 1970-01-01 03:50. "
        "3.0 hours of 8 GPUs, at most 24.0 GPU-hours, are missing."
    ).replace("1970-01-01 03:50", note.partition("since ")[2].partition(". ")[0])


def test_a_node_that_was_never_read_has_no_invented_number_of_gpus(lab: Lab) -> None:
    lab.nodes = (*lab.nodes, fleet_node("node-9", up=False, gpus=0))
    (note,) = notes(lab.report())
    assert note.endswith("3.0 hours are missing.")


def test_a_node_that_is_up_but_too_old_says_so(lab: Lab) -> None:
    lab.archives["http://node-3:9400"] = NodeBooksRefused("it is older than this API", "old")
    (note,) = notes(lab.report())
    assert note.startswith(
        "Node node-3 is not in this report: it is older than this API. 3.0 hours of 2 GPUs"
    )


def test_a_node_without_a_row_is_no_missing_node(lab: Lab) -> None:
    lab.archives["http://node-3:9400"] = NodeBooksRefused("nothing was watched", "not_watched")
    assert notes(lab.report()) == ["Nothing was watched in this range on node-3."]


def test_two_addresses_of_one_ledger_count_once(lab: Lab) -> None:
    once = amounts([lab.report()])
    lab.nodes = (*lab.nodes, fleet_node("10.0.0.1"), fleet_node("twin", gpus=0, elsewhere=2))
    lab.archives["http://10.0.0.1:9400"] = lab.archives["http://node-1:9400"]
    found = lab.report()
    assert amounts([found]) == once
    assert notes(found) == ["Listed under two addresses, and counted once: 10.0.0.1."]
    assert "http://twin:9400" not in [node for node, *_ in lab.requests]


@pytest.mark.parametrize("cut", [0, 10, 1000, -2000])
def test_an_archive_that_is_cut_off_is_a_missing_node(lab: Lab, cut: int) -> None:
    packed = lab.archives["http://node-3:9400"]
    assert isinstance(packed, bytes)
    lab.archives["http://node-3:9400"] = packed[:cut]
    (note,) = notes(lab.report())
    assert "node-3 is not in this report" in note


def test_an_archive_without_a_table_is_a_missing_node(lab: Lab, tmp_path: Path) -> None:
    packed = lab.archives["http://node-3:9400"]
    assert isinstance(packed, bytes)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as opened:
        opened.extractall(tmp_path / "less", filter="data")
    (tmp_path / "less" / "gpu_time.csv").unlink()
    lab.archives["http://node-3:9400"] = pack(tmp_path / "less")
    (note,) = notes(lab.report())
    assert "gpu_time.csv is missing" in note


@pytest.mark.parametrize(
    "error",
    ["cannot read the list of nodes /etc/nodes: no such file", "nodes, line 3: expected a port, not 'x'"],
)
def test_lists_that_cannot_be_read_as_a_whole_or_in_part_are_named(lab: Lab, error: str) -> None:
    lab.lists = [{"error": error}]
    start = "Nodes can be missing, because a list of nodes or some of its entries cannot be read"
    assert notes(lab.report()) == [f"{start}: {error}."]


def test_without_any_row_the_reason_is_an_error(lab: Lab) -> None:
    for key in lab.archives:
        lab.archives[key] = NodeBooksRefused("nothing", "not_watched")
    with pytest.raises(GpuledgerError, match="nothing was watched in this range on any of the 3 nodes"):
        lab.report()
    del lab.archives["http://node-3:9400"]
    match = "nothing was watched in this range on the nodes that sent their rows; the others: node-3: "
    with pytest.raises(GpuledgerError, match=match):
        lab.report()
    lab.archives.clear()
    with pytest.raises(GpuledgerError, match=r"no node of the fleet sent its rows: node-1: .*, and 2 more"):
        lab.report()
    with pytest.raises(GpuledgerError, match="the fleet has no nodes"):
        Lab().report()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "evil.csv"])
def test_an_archive_cannot_write_other_files(tmp_path: Path, name: str) -> None:
    archive, packed = tmp_path / "x.tar.gz", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        opened.addfile(entry, io.BytesIO(b"x"))
    archive.write_bytes(packed.getvalue())
    (tmp_path / "out").mkdir()
    with pytest.raises(GpuledgerError, match="unexpected file"):
        unpack_export(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    archive, packed = tmp_path / "x.tar.gz", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        entry = tarfile.TarInfo("manifest.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(entry)
    archive.write_bytes(packed.getvalue())
    with pytest.raises(GpuledgerError, match="unexpected file"):
        unpack_export(archive, tmp_path)


DAY = 86_400.0


@pytest.mark.parametrize(
    ("days", "until"),
    [(1, "end"), (31, "end"), (31.5, "end"), (61.944, "end"), (200, "end"), (200, "now"), (0.01, "now")],
)
def test_a_long_range_is_fetched_in_pieces_that_meet_at_midnights(days: float, until: str) -> None:
    since = 10_000 * DAY + 5000
    end = since + days * DAY
    requested = replace(WITHIN, since=since, until=None if until == "now" else end)
    pieces = range_pieces(requested, end + 1)
    assert (pieces[0][0], pieces[-1][1]) == (since, requested.until)
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
    assert all(one[1] % DAY == 0 for one in pieces[:-1])  # type: ignore[operator]
    assert all((last or end) - first <= 31 * DAY for first, last in pieces)
    # A piece of minutes can have no cut of a ledger inside: the node would be missing.
    assert all((last or end) - first >= min(days, 1) * DAY for first, last in pieces)


@pytest.mark.parametrize(
    ("since", "until", "piece"),
    [
        (5 * DAY, 50_000 * DAY, (5 * DAY, None)),
        (5 * DAY, 10 * DAY, (5 * DAY, None)),
        (5 * DAY, 9 * DAY, (5 * DAY, 9 * DAY)),
        (90_000 * DAY, None, (3_999_999_999.0, None)),
    ],
)
def test_an_end_in_the_future_is_now(since: float, until: float | None, piece: Any) -> None:
    assert range_pieces(replace(WITHIN, since=since, until=until), 10 * DAY) == [piece]


def test_prices_of_the_fleet_count_unless_they_are_set_here() -> None:
    lab: Any = Lab()
    local = StatementTerms("team", "day", Prices(basis="residence", currency="USD"), (), UTC)
    found = terms_of_fleet(lab, local, {})
    assert (found.by, found.every, found.prices) == ("team", "day", PRICES)
    found = terms_of_fleet(lab, local, {"price.basis": "residence"})
    assert found.prices == replace(PRICES, basis="residence")


HERE = {
    "price.kwh": Decimal("0.5"),
    "price.gpu_hour": Decimal(7),
    "price.currency": "USD",
    "price.basis": "residence",
    "price.idle": "spread",
    "pue": Decimal("1.4"),
    "co2.g_per_kwh": Decimal(99),
    "price.note": "here",
}


@given(st.sets(st.sampled_from(sorted(HERE))))
def test_each_price_setting_counts_for_itself(names: set[str]) -> None:
    lab: Any = Lab()
    values = {name: HERE[name] for name in names}
    local = StatementTerms("team", "", build_settings(Prices, values), (), UTC)
    if "price.currency" in names and "price.gpu_hour" not in names:
        with pytest.raises(UsageError, match=r"of the fleet .* in EUR, and price.currency is USD here"):
            terms_of_fleet(lab, local, values)
        return
    found = terms_of_fleet(lab, local, values).prices
    for name, item, _ in declared_settings(Prices):
        assert getattr(found, name) == values.get(item.key, getattr(PRICES, name))
