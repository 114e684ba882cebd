"""/api/v1/receipt and the page /receipt/KIND:NAME: receipts, and errors that say what to send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from builders import FakeClock, gpu, node_state, process, snapshot
from gpuledger.http.routes import Handler, Request, Response
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.store.history import History
from gpuledger.model.access import Reader
from gpuledger.model.workload import Workload
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.handlers import ApiHandlers
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.schemas import SCHEMAS
from gpuledger.web.routes import RECEIPT_PREFIX, receipt_handler
from ledger_helpers import UNIX, Run
from money_helpers import prices
from running import PATIENCE

CARD = gpu(0, name="NVIDIA H100 80GB HBM3")
POD = Workload("pod", "ml", "train-0", "main")
DAN = Workload("user", user="dan")
MIRA = Workload("user", user="mira")
PRICES = prices(gpu_hour=2, kwh=0.3)
OPTIONS = ApiOptions("node-17", PRICES, timezone="UTC")
NAMED_DAN = Reader("dan", frozenset({"dan"}), 1000)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty minutes of a pod, a user, and another one."""
    run = Run(tmp_path_factory.mktemp("books"), clock=FakeClock(UNIX))
    for minute in range(20):
        here = [process(CARD, 10 + place, workload=one) for place, one in enumerate((POD, DAN, MIRA))]
        run.tick({CARD: minute * 10_000_000}, here, seconds=60.0)
    run.store.close()
    return run.store.file


class ReceiptClient:
    """A client of a node with this ledger."""

    def __init__(
        self, file: Path | None, options: ApiOptions = OPTIONS, reader: Reader | None = None
    ) -> None:
        clock = FakeClock(UNIX + 1260)
        opening: Callable[[], History] | None = None if file is None else lambda: History(file)
        self.api = Api(node_state(snapshot(unix=UNIX)), LedgerAccess(clock, opening), clock)
        self.options = options
        self.more = {} if reader is None else {"reader": reader}

    def json(self, query: str) -> tuple[int, dict[str, Any]]:
        """Status and body of `/api/v1/receipt`."""

        async def respond() -> Response:
            handlers = ApiHandlers(self.api, self.options)
            request = Request("GET", "/api/v1/receipt", query, **self.more)
            return await self._settled(handlers.respond(request))

        found = asyncio.run(respond())
        return found.status, json.loads(found.body)

    def page(self, name: str, query: str = "") -> Response:
        """The page `/receipt/NAME`."""

        async def respond() -> Response:
            handler: Handler = receipt_handler(self.api, self.options)
            request = Request("GET", RECEIPT_PREFIX + name, query, **self.more)
            return await self._settled(handler(request))

        return asyncio.run(respond())

    async def _settled(self, answer: Any) -> Response:
        return answer if isinstance(answer, Response) else await asyncio.wait_for(answer, PATIENCE)


@pytest.fixture
def client(file: Path) -> Iterator[ReceiptClient]:
    yield ReceiptClient(file)


def test_a_receipt_follows_its_schema(client: ReceiptClient) -> None:
    schema = {**SCHEMAS["Receipt"], "components": {"schemas": SCHEMAS}}
    for who in ("pod:ml/train-0", "user:dan", "gpu:0", "pid:10", "namespace:-"):
        status, body = client.json(f"of={who}")
        assert status == 200
        jsonschema_rs.validate(schema, body)


def test_it_has_the_prices_the_node_and_the_range_of_the_request(client: ReceiptClient) -> None:
    _, body = client.json("of=user:dan&since=2023-11-14")
    assert body["nodes"] == ["node-17"]
    assert body["who"]["explain"] == "user:dan"
    # A third of nearly twenty minutes at 2 EUR an hour.
    assert float(body["total"]["time_cost"]) == pytest.approx(2 / 3 * 19.5 / 60, abs=0.01)
    assert (body["made"], body["simulated"]) == (UNIX + 1260, False)


def test_the_basis_can_be_chosen(client: ReceiptClient) -> None:
    _, body = client.json("of=user:dan&basis=residence")
    assert body["basis"] == "residence"


def test_thresholds_are_those_of_the_options(file: Path) -> None:
    held = ReceiptClient(
        file, ApiOptions("n", PRICES, advice=AdviceSettings(without=("unused_gpu",)), timezone="UTC")
    )
    assert all(one["rule"] != "unused_gpu" for one in held.json("of=user:dan")[1]["advice"])


@pytest.mark.parametrize(
    ("query", "status", "code", "parameter"),
    [
        ("", 400, "bad_request", "of"),
        ("of=user:dan&mine=true", 400, "bad_request", "of"),
        ("mine=yes", 400, "bad_request", "mine"),
        ("mine=true", 400, "bad_request", "mine"),
        ("of=user:nobody", 404, "unknown_owner", "of"),
        ("of=", 404, "unknown_owner", "of"),
        ("of=*a*", 400, "several_owners", "of"),
        ("of=idle", 400, "bad_request", "of"),
        ("of=user:dan&since=x", 400, "bad_request", "since"),
        ("of=user:dan&since=2020-01-01&until=2020-01-02", 404, "not_watched", "since"),
        ("of=user:dan&in=2020&since=1h", 400, "bad_request", "in"),
        ("of=user:dan&by=owner", 400, "bad_request", "by"),
    ],
)
def test_errors_name_the_parameter(
    client: ReceiptClient, query: str, status: int, code: str, parameter: str
) -> None:
    found, body = client.json(query)
    assert (found, body["error"]["code"], body["error"]["parameter"]) == (status, code, parameter)
    assert "\n" not in body["error"]["message"]


def test_a_caller_without_a_name_reads_a_remedy_for_the_command_too(client: ReceiptClient) -> None:
    # `gpuledger receipt --mine --url` prints it.
    assert client.json("mine=true")[1]["error"]["message"].endswith("give user:NAME (in a URL of=user:NAME)")


def test_without_a_ledger_on_disk_there_is_none() -> None:
    status, body = ReceiptClient(None).json("of=user:dan")
    assert (status, body["error"]["code"]) == (503, "no_books")


def test_the_page_is_the_receipt_with_links(client: ReceiptClient) -> None:
    found = client.page("pod:ml/train-0", "since=1d")
    assert (found.status, found.content_type) == (200, "text/html; charset=utf-8")
    text = found.body.decode()
    assert "pod ml/train-0" in text
    # Relative to a path with a slash in the name.
    assert 'href="./../../"' in text
    assert "node-17" in text


def test_the_page_of_several_owners_links_to_each(client: ReceiptClient) -> None:
    text = client.page("gpu:0").body.decode()
    for name in ("owner:pod/ml/train-0", "owner:user/dan"):
        assert f'href="./{name}"' in text
    assert 'href="./../"' in text


@pytest.mark.parametrize(
    ("name", "query", "status"),
    [("user:nobody", "", 404), ("", "", 404), ("user:dan", "since=x", 400), ("user:dan", "of=x", 400)],
)
def test_errors_of_the_page_are_one_line(client: ReceiptClient, name: str, query: str, status: int) -> None:
    found = client.page(name, query)
    assert found.status == status
    assert found.body.decode().count("\n") == 1


def test_a_reader_of_own_rows_reads_only_those(file: Path) -> None:
    client = ReceiptClient(file, reader=NAMED_DAN)
    status, own = client.json("mine=true")
    assert status == 200
    assert own["who"]["explain"] == "user:dan"
    for query in ("of=user:mira", "of=pod:ml/train-0", "of=pid:10", "of=namespace:ml"):
        status, body = client.json(query)
        assert (status, body["error"]["code"]) == (404, "unknown_owner")
        assert not {"mira'?", "train-0'?"} & set(body["error"]["message"].split())
    everything = ReceiptClient(file).json("of=user:dan")[1]
    for name in ("total", "gpus", "processes", "advice"):
        assert own[name] == everything[name]
    whole = client.json("of=gpu:0")[1]
    text = json.dumps(whole)
    assert "mira" not in text
    assert "train" not in text
    assert whole["total"]["gpu_microseconds"] == everything["total"]["gpu_microseconds"]
