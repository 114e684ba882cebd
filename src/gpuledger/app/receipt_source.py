"""Where a receipt comes from: the ledger on this machine, or the node that keeps it."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from gpuledger.app.ledger_file import current_time_of, is_simulated, node_of_ledger
from gpuledger.app.node_requests import fetch_node_answer, request_parameters, with_ledger_or_node
from gpuledger.config.report import ReceiptSettings
from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.report.ranges import RequestedRange, parse_range
from gpuledger.ledger.report.receipt.conformity import find_malformed
from gpuledger.ledger.report.receipt.content import RECEIPT_VERSION, ReceiptJson
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.store.explain_target import OwnerNotFound
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_query import ReceiptScope, read_receipt
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.session import BASES
from gpuledger.model.settings import build_settings, choice
from gpuledger.model.text import to_short_line
from gpuledger.terminal.settings import NodeUrlSettings

# Parameters of the API, and the settings that have their values.
_PARAMETERS: Final = {
    "in": "receipt.in",
    "since": "receipt.since",
    "until": "receipt.until",
    "basis": "price.basis",
}
# Settings that matter only here.
_OF_OUTPUT: Final = ("receipt.format", "receipt.mine")


def fetch_receipt(who: str, flags: Collection[str], values: Mapping[str, Any], period: str) -> ReceiptJson:
    """The receipt of KIND:NAME: from the ledger here or, if this user cannot open it, from the running node.

    `who` is empty for all that this user used. `flags` are the keys that the command line sets, `period` is
    that of `--in`. Raises GpuledgerError.
    """
    settings = build_settings(ReceiptSettings, values)
    access = build_settings(NodeUrlSettings, values)
    zone = configured_time_zone(values)

    def read(history: History) -> ReceiptJson:
        now = current_time_of(history)
        requested = parse_range(settings.since, settings.until, period, now, zone)
        if who:
            return receipt_from_ledger(history, who, requested, values)
        return _own_receipt(history, _own_user(), requested, values)

    def request() -> ReceiptJson:
        sent = [key for key in flags if key not in _OF_OUTPUT]
        parameters = request_parameters(values, sent, _PARAMETERS, access)
        named = {"of": who} if who else {"mine": "true"}
        receipt = fetch_node_answer(values, access, "receipt", {**named, **parameters})["receipt"]
        return _checked(receipt, access.url or "the running gpuledger")

    return with_ledger_or_node(values, access, read, request)


def _checked(receipt: Any, where: str) -> ReceiptJson:
    """The receipt that a node has sent. Raises GpuledgerError if another version has made it."""
    version = receipt.get("version") if isinstance(receipt, dict) else None
    if version != RECEIPT_VERSION:
        raise GpuledgerError(
            f"{where} sends receipts of version {version}, this gpuledger reads {RECEIPT_VERSION}: run the "
            "same version of gpuledger there and here"
        )
    if wrong := find_malformed(receipt):
        raise GpuledgerError(
            f"the receipt of {where} is malformed ({to_short_line(wrong)}): upgrade it there"
        )
    found: ReceiptJson = receipt
    return found


def receipt_from_ledger(
    history: History, who: str, requested: RequestedRange, values: Mapping[str, Any]
) -> ReceiptJson:
    """The receipt from an open ledger. Raises GpuledgerError."""
    scope = ReceiptScope(
        resolve_watched_range(history, requested),
        build_settings(Prices, values),
        build_settings(TeamSettings, values).teams,
        node_of_ledger(history, values),
        build_settings(AdviceSettings, values),
        time.time(),
        is_simulated(history),
    )
    return read_receipt(history, who, scope)


def receipt_of(history: History, parameters: Mapping[str, str], values: Mapping[str, Any]) -> ReceiptJson:
    """The receipt that a request of the control socket names: `of` or `mine`, and the range and basis.

    `values` are the settings of the program that keeps the ledger. Raises GpuledgerError.
    """
    unknown = parameters.keys() - {"of", "mine", *_PARAMETERS}
    if unknown:
        raise UsageError(f"unknown parameter {min(unknown)}")
    who, own = parameters.get("of"), history.reader.name
    if not who and not own:
        raise UsageError("the node does not know the name of this user: give user:NAME in place of --mine")
    period = parameters.get("in", "")
    if period and parameters.keys() & {"since", "until"}:
        raise UsageError("in excludes since and until: give a whole period or its ends")
    settings = ReceiptSettings()
    requested = parse_range(
        parameters.get("since", settings.since),
        parameters.get("until", settings.until),
        period,
        current_time_of(history),
        configured_time_zone(values),
    )
    if "basis" in parameters:
        try:
            values = {**values, "price.basis": choice(*BASES)(parameters["basis"])}
        except ValueError as error:
            raise UsageError(f"basis: {error}") from None
    if who:
        return receipt_from_ledger(history, who, requested, values)
    return _own_receipt(history, f"user:{own}", requested, values)


def _own_receipt(
    history: History, who: str, requested: RequestedRange, values: Mapping[str, Any]
) -> ReceiptJson:
    """The receipt of the user who requests. Raises GpuledgerError."""
    try:
        return receipt_from_ledger(history, who, requested, values)
    except OwnerNotFound:
        raise OwnerNotFound(
            f"--mine: the ledger has no GPU time of {who} in this range: set another one with --since or "
            "--in. Processes in containers can have other users: name their pod, job or container"
        ) from None


def _own_user() -> str:
    """`user:NAME` of the user who runs this program. Raises GpuledgerError for a uid without a name."""
    uid = os.getuid()
    try:
        return f"user:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        raise GpuledgerError(f"--mine: uid {uid} has no name here; give user:NAME") from None
