"""Requests the output of a command from a running node: over its control socket, or over HTTP with --url."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from gpuledger.app.control_socket import NoServeRunning, SocketForbidden, exchange, exchange_with
from gpuledger.app.flag_checks import refuse_other_flags
from gpuledger.app.ledger_file import LedgerForbidden, open_history
from gpuledger.app.node_api import NodeApiClient
from gpuledger.config.load import settings_of
from gpuledger.http.client_messages import json_error
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.read_only_file import LedgerNotFound
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.node.settings import NO_SOCKET, ControlSettings
from gpuledger.terminal.settings import NodeUrlSettings

T = TypeVar("T")

# A URL of a control socket: of the default one, or unix:/run/gpuledger/control.sock.
UNIX: Final = "unix:"
# Seconds: a report of a year.
_TIMEOUT: Final = 120.0


def fetch_node_answer(
    values: Mapping[str, Any], access: NodeUrlSettings, command: str, parameters: Mapping[str, str]
) -> Mapping[str, Any]:
    """The answer of the node to a command, with the rows that this user may read there.

    The node at --url, else the one that runs on this machine. The answer has `text` and `notes`, or an object
    under the name of the command. Raises GpuledgerError; NoServeRunning if no node runs on this machine.
    """
    if access.url and not access.url.startswith(UNIX):
        return _fetch_over_http(access, command, parameters)
    request = {"do": command, "parameters": dict(parameters)}
    path = access.url.removeprefix(UNIX)
    found = exchange_with([Path(path)], request, _TIMEOUT) if path else exchange(values, request)
    if command not in found and "text" not in found:
        raise GpuledgerError("malformed answer: the running gpuledger is another version, or another program")
    return found


def _fetch_over_http(
    access: NodeUrlSettings, command: str, parameters: Mapping[str, str]
) -> Mapping[str, Any]:
    client = _AnswerClient(access.url, access, _TIMEOUT)
    try:
        found = client.read_json(f"/api/v1/{command}", parameters)
    finally:
        client.close()
    return found if "text" in found else {command: found}


# Codes of errors that another version, or a node without the API, answers.
_NO_ENDPOINT: Final = ("", "not_found", "not_served")


class _AnswerClient(NodeApiClient):
    """Reads one answer of the API."""

    def read_json(self, path: str, parameters: Mapping[str, str]) -> Mapping[str, Any]:
        """The JSON object at a path. Raises GpuledgerError with the node's reason."""
        self.page = path
        answer = self._get(f"{path}?{urlencode(parameters)}" if parameters else path, {})
        if answer.status != 200:
            code, message = json_error(answer.body)
            if message and code not in _NO_ENDPOINT:
                raise GpuledgerError(f"{self.url}: {message}")
        return self._parse_object(answer, path)


def with_ledger_or_node(
    values: Mapping[str, Any],
    access: NodeUrlSettings,
    read: Callable[[History], T],
    ask: Callable[[], T],
) -> T:
    """What `read` makes of the ledger on this machine; with --url, or if this user cannot open it, of `ask`.

    A ledger that --state-dir names is never replaced by another one. Raises GpuledgerError.
    """
    if access.url:
        return ask()
    try:
        with open_history(values) as history:
            return read(history)
    except (LedgerForbidden, LedgerNotFound) as error:
        if not _may_ask(error, values):
            raise
        try:
            return ask()
        except NoServeRunning:
            raise error from None
        except SocketForbidden:
            raise GpuledgerError(
                f"{error}; or let users read their own rows: `gpuledger serve --access socket`"
            ) from None


def _may_ask(error: GpuledgerError, values: Mapping[str, Any]) -> bool:
    """Whether the running gpuledger has the ledger that could not be read."""
    socket, folder = build_settings(ControlSettings, values).socket, build_settings(StoreSettings, values)
    if not folder.state_dir or socket == NO_SOCKET:
        return socket != NO_SOCKET
    return isinstance(error, LedgerForbidden) and bool(socket)


def request_parameters(
    values: Mapping[str, Any], flags: Collection[str], names: Mapping[str, str], access: NodeUrlSettings
) -> dict[str, str]:
    """The parameters of a request: the values of these settings, by the names of the API.

    Raises UsageError for a flag that the node would not honor, such as a price or another ledger.
    """
    if "state_dir" in flags and access.url and not access.url.startswith(UNIX):
        raise UsageError("--url and --state-dir exclude each other: choose one ledger")
    where = access.url or "the running gpuledger"
    honored = {*names.values(), *settings_of(_LOCAL)}
    refuse_other_flags(flags, honored, f": {where} reports by its own settings; omit this flag")
    given = {name: values[key] for name, key in names.items() if key in values}
    return {name: _parameter(value) for name, value in given.items() if value not in (None, "")}


def _parameter(value: object) -> str:
    if isinstance(value, float):
        # The only settings with fractions are durations; seconds need no unit.
        return f"{value:.0f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


# Settings that say where to read.
_LOCAL: Final = (NodeUrlSettings, ControlSettings, StoreSettings)


def print_answer(answer: Mapping[str, Any], access: NodeUrlSettings) -> None:
    """Write the text of an answer to stdout, and the user of its rows to stderr.

    Raises GpuledgerError for an answer without a text: of another version, or of another program.
    """
    user, where = answer.get("user"), access.url or "gpuledger serve"
    text, notes = answer.get("text"), answer.get("notes") or []
    if not isinstance(text, str) or not isinstance(notes, list):
        raise GpuledgerError(
            f"{where} sends no text for this command, as another version or another program: "
            "run the same version of gpuledger there and here"
        )
    if user and not access.url:
        sys.stderr.write(f"rows that {user} may read, from {where}\n")
    for note in notes:
        sys.stderr.write(f"{note}\n")
    sys.stdout.write(text)
