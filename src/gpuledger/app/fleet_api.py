"""A client of the API of `gpuledger fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, BinaryIO
from urllib.parse import urlencode

from gpuledger.app.node_api import NodeApiClient
from gpuledger.http.blocking_client import BlockingConnection
from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse, json_error
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.fleet_picture import FleetPicture, parse_fleet

_FLEET = "/api/v1/fleet"
_TERMS = "/api/v1/fleet/terms"
_BOOKS = "/api/v1/fleet/books"
# Bytes of the archive of one node, and seconds: until the node has made it, and between two pieces.
_LARGEST = 4 << 30
_PATIENCE = 150.0
# Bytes a second below which an archive is no longer waited for, once the patience is over.
_SLOWEST = 64 << 10


class NodeBooksRefused(GpuledgerError):
    """The fleet has no ledger rows of a node. `code` is that of the API: `not_watched` without any."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class FleetApiClient(NodeApiClient):
    """A client of one fleet. Raises UsageError as `NodeApiClient` does. Not thread-safe."""

    product = "gpuledger fleet"
    flag = "--fleet"
    advice = "is gpuledger fleet running there, on that port?"
    page = _FLEET
    port = 9410

    def fleet(self) -> FleetPicture:
        """All nodes. Raises GpuledgerError with one line."""
        return parse_fleet(self.fleet_json())

    def fleet_json(self) -> Mapping[str, Any]:
        """All nodes, as they were sent. Raises GpuledgerError with one line."""
        return self._object(_FLEET)

    def terms(self) -> Mapping[str, Any]:
        """Prices, teams and time zone of the fleet, as `parse_terms` reads them. Raises GpuledgerError."""
        return self._object(_TERMS)

    def download_books(self, node: str, since: float, until: float | None, into: BinaryIO) -> None:
        """Write the archive with a node's ledger rows of a range into a file; `until` None is now.

        Raises NodeBooksRefused and GpuledgerError with one line.
        """
        ends = "now" if until is None else f"{until:.6f}"
        path = f"{_BOOKS}?{urlencode({'node': node, 'since': f'{since:.6f}', 'until': ends})}"
        try:
            self._download(path, into)
        except TimeoutError:
            self.close()
            raise GpuledgerError(
                f"{self.url} did not send the ledger of {node} within {_PATIENCE:g} s, or sends less than"
                f" {_SLOWEST >> 10} KiB a second: {self.advice}"
            ) from None
        except (OSError, ValueError, HttpRequestFailed) as error:
            self.close()
            raise GpuledgerError(self._describe(error)) from None

    def _download(self, path: str, into: BinaryIO) -> None:
        # On a new connection: one that was idle may be closed meanwhile.
        self.close()
        self._socket = connected = self._connect()
        connected.settimeout(_PATIENCE)
        connection = self._connection = BlockingConnection(connected)
        began = monotonic()
        connection.send_request(self._encode(path, {}))
        response = connection.receive_head(began + _PATIENCE)
        size, failed = 0, response.status != 200
        kept = bytearray()
        for piece in connection.receive_chunks(began + _PATIENCE, _SLOWEST):
            size += len(piece)
            if size > (1 << 16 if failed else _LARGEST):
                raise HttpRequestFailed(f"the answer is larger than {_LARGEST >> 30} GiB", "body_limit")
            if failed:
                kept += piece
            else:
                into.write(piece)
        self.close()
        if failed:
            response.body = bytes(kept)
            raise self._refusal(response)

    def _refusal(self, response: HttpResponse) -> NodeBooksRefused:
        """The error of the API, else a sentence on its status."""
        try:
            code, message = json_error(response.decoded_body(1 << 16))
        except HttpRequestFailed:
            code = message = ""
        return NodeBooksRefused(message or self._describe_status(response), code)

    def _object(self, path: str) -> Mapping[str, Any]:
        return self._parse_object(self._get(path, {}), path)

    def _describe_not_found(self) -> str:
        return f"{self.url} is not a gpuledger fleet: give the URL of `gpuledger fleet`"
