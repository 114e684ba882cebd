"""`/api/v1/receipt`, and the page `/receipt/KIND:NAME`: receipts from the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gpuledger.host.time_zone import find_time_zone
from gpuledger.http.routes import PendingResponse, Request, Response, text_response
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.page import receipt_page
from gpuledger.ledger.store.explain_target import OwnerNotFound
from gpuledger.ledger.store.receipt_query import ReceiptScope, read_receipt
from gpuledger.ledger.store.watched_range import require_watched_time
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.node_state import NodeState
from gpuledger.outputs.responses import content_response
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.energy import refuse_unwatched, requested_range, resolve_requested
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import RECEIPT_RANGE, read_query
from gpuledger.web.api.responses import ApiError, bad_request

_HTML: Final = "text/html; charset=utf-8"
_HEADERS: Final = (("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store"))

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History
    from gpuledger.model.access import Reader


def answer_receipt(
    state: NodeState,
    ledger_access: LedgerAccess,
    options: ApiOptions,
    parameters: Mapping[str, Any],
    reader: Reader,
) -> ReceiptJson:
    """The receipt that the parameters request, of what the reader may read. Raises ApiError."""
    with ledger_access.open(reader) as history, refuse_unwatched(state):
        now = ledger_access.now(state, history)
        receipt = receipt_from_parameters(history, parameters, options, now)
    receipt["made"], receipt["simulated"] = ledger_access.clock.unix(), ledger_access.simulated
    return receipt


def receipt_from_parameters(
    history: History, parameters: Mapping[str, Any], options: ApiOptions, now: float
) -> ReceiptJson:
    """The receipt from an open ledger, at the time `now`.

    Raises ApiError, and NothingWatched for a range without data.
    """
    who = _target(history, parameters)
    require_watched_time(history)
    within = resolve_requested(history, requested_range(parameters, now, find_time_zone(options.timezone)))
    prices = options.prices
    if parameters["basis"] is not None:
        prices = replace(prices, basis=parameters["basis"])
    scope = ReceiptScope(within, prices, options.teams, options.node, options.advice, now)
    with _api_errors():
        return read_receipt(history, who, scope)


def _target(history: History, parameters: Mapping[str, Any]) -> str:
    """The KIND:NAME that is requested. Raises ApiError."""
    who, mine = parameters["of"], parameters["mine"]
    if (who is None) == (mine is None):
        raise bad_request("of", "expected one of: of=KIND:NAME, mine=true")
    if who is not None:
        return str(who)
    name = history.reader.name
    if not name:
        raise bad_request(
            "mine",
            "the name of the caller is not known here: give user:NAME (in a URL of=user:NAME)",
        )
    return f"user:{name}"


@contextmanager
def _api_errors() -> Iterator[None]:
    """A context that turns the errors of reading into ApiErrors."""
    try:
        yield
    except OwnerNotFound as error:
        raise ApiError(404, "unknown_owner", str(error), "of") from None
    except UsageError as error:
        raise bad_request("of", str(error)) from None
    except GpuledgerError as error:
        raise ApiError(400, "several_owners", str(error), "of") from None


def respond_receipt_page(
    api: Api, options: ApiOptions, request: Request, prefix: str
) -> Response | PendingResponse:
    """Respond to a request for the page of a receipt, KIND:NAME below the prefix. Used in the event loop."""
    name = request.path.removeprefix(prefix)
    # Relative: also right behind a proxy that adds a prefix. Without a dot, the kind would be a scheme.
    up = "./" + "../" * name.count("/")
    parameters: dict[str, Any] = {"of": name, "mine": None}
    try:
        parameters |= read_query(request.query, RECEIPT_RANGE)
    except ApiError as refusal:
        return _refusal_page(refusal)
    state = api.current[1]

    def build() -> Response:
        try:
            receipt = answer_receipt(state, api.ledger_access, options, parameters, request.reader)
        except ApiError as refusal:
            return _refusal_page(refusal)
        page = receipt_page(receipt, link=lambda other: f"{up}{quote(other, safe=':/')}", home=f"{up}../")
        return content_response(request, page.encode("ascii"), _HTML, _HEADERS)

    # Equal requests of one reader share a response.
    return api.workers["energy"].submit((request.path, request.query, request.reader), build)


def _refusal_page(refusal: ApiError) -> Response:
    return text_response(str(refusal), refusal.status)
