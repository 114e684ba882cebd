"""Reads the receipts that the nodes of a job have of it: from their API, or from files of their epilogs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time
from typing import Any, Final, cast
from urllib.parse import urlencode

from gpuledger.app.node_api import NodeApiClient
from gpuledger.app.slurm_receipts.accounting import JobRow
from gpuledger.host.files import read_at_most
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.http.client_messages import json_error
from gpuledger.ledger.report.receipt.conformity import find_malformed
from gpuledger.ledger.report.receipt.content import RECEIPT_VERSION, ReceiptJson
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import to_short_line

RECEIPT_PATH: Final = "/api/v1/receipt"
NODE: Final = "{node}"
# Nodes that are read at the same time, and bytes of a receipt.
_THREADS: Final = 16
_MAX_FILE: Final = 16 << 20
# Seconds after which files of epilogs are removed.
KEEP_FILES: Final = 30 * 86_400.0
# Errors of a node without this endpoint. All others of status 404 mean that its ledger has no such owner.
_NO_API: Final = ("not_found", "not_served")


class _ReceiptClient(NodeApiClient):
    """The receipts of one node's API."""

    flag = "--from"
    page = RECEIPT_PATH

    def receipt(self, query: Mapping[str, str]) -> Any:
        """The node's answer as JSON; None if its ledger does not have the owner. Raises GpuledgerError."""
        answer = self._get(f"{RECEIPT_PATH}?{urlencode(query)}", {})
        if answer.status == 404 and json_error(answer.body)[0] not in ("", *_NO_API):
            return None
        return self._parse_object(answer, RECEIPT_PATH)


class NodeReceipts:
    """Reads the receipts of jobs from `place`: a URL with {node} for the node, or a directory.

    `access` has the credentials for the URL. Raises UsageError for another place.
    """

    def __init__(self, place: str, access: ClientAccessSettings, timeout: float) -> None:
        self._is_url = "://" in place
        self._place = place
        self._access = access
        self._timeout = timeout
        # Nodes that could not be read: they are not waited for again for each of their jobs.
        self._failed: dict[str, GpuledgerError] = {}
        if self._is_url and NODE not in place:
            raise UsageError(f"--from: expected a URL with {NODE}, such as http://{NODE}:9400")

    def read(self, job: JobRow) -> list[ReceiptJson]:
        """The receipts of the nodes that have seen the job on a GPU, named as Slurm names the nodes.

        Raises GpuledgerError if any node cannot be read: the sum of the others would be wrong.
        """
        with ThreadPoolExecutor(max_workers=min(_THREADS, max(1, len(job.nodes)))) as pool:
            found = list(pool.map(lambda node: self._read_node(node, job), job.nodes))
        return [receipt for receipt in found if receipt is not None]

    def remove_old_files(self) -> None:
        """Remove files of epilogs that are older than 30 days."""
        if self._is_url:
            return
        for file in Path(self._place).glob("[0-9]*.json"):
            try:
                if time() - file.stat().st_mtime > KEEP_FILES:
                    file.unlink()
            except OSError:
                # Another machine has removed it, or owns it.
                continue

    def _read_node(self, node: str, job: JobRow) -> ReceiptJson | None:
        raw = self._from_api(node, job) if self._is_url else self._from_file(node, job)
        if raw is None:
            return None
        found = require_receipt(raw, node)
        if not self._is_url and found["made"] < job.start:
            # The Epilog writes its file some time after the end: until then it is that of the run before.
            raise GpuledgerError(f"the receipt of {node} is of an earlier run of job {job.name}")
        return name_node(found, node)

    def _from_api(self, node: str, job: JobRow) -> Any:
        if node in self._failed:
            raise self._failed[node]
        client = _ReceiptClient(self._place.replace(NODE, node), self._access, self._timeout)
        # Ranges begin and end with quarters of an hour. Of a requeued job, only the last run counts.
        query = {"of": f"job:{job.number}", "since": f"{math.floor(job.start / QUARTER) * QUARTER}"}
        try:
            return client.receipt(query)
        except GpuledgerError as error:
            self._failed[node] = error
            raise
        finally:
            client.close()

    def _from_file(self, node: str, job: JobRow) -> Any:
        file = Path(self._place, f"{job.number}.{node}.json")
        try:
            return json.loads(read_at_most(file, _MAX_FILE))
        except FileNotFoundError:
            raise GpuledgerError(
                f"{file} is missing: set Epilog=/usr/share/gpuledger/slurm/epilog.sh on {node}, and "
                "GPULEDGER_RECEIPTS there"
            ) from None
        except OSError as error:
            raise GpuledgerError(f"cannot read {file}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise GpuledgerError(f"{file} is not a receipt in JSON") from None


def require_receipt(raw: object, node: str) -> ReceiptJson:
    """The receipt, if it has the form of this version. Raises GpuledgerError."""
    version = raw.get("version") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or version is None:
        raise GpuledgerError(f"the answer of {node} is not a receipt")
    if version != RECEIPT_VERSION:
        raise GpuledgerError(
            f"the receipt of {node} has version {to_short_line(version)}, this gpuledger reads "
            f"{RECEIPT_VERSION}: run the same version of gpuledger on all nodes and here"
        )
    if wrong := find_malformed(raw):
        raise GpuledgerError(
            f"the receipt of {node} is incomplete or malformed ({to_short_line(wrong)}): upgrade gpuledger"
            " there"
        )
    return cast("ReceiptJson", raw)


def name_node(receipt: ReceiptJson, node: str) -> ReceiptJson:
    """The receipt of one node with the name by which Slurm knows it: gpuledger may use the full host name."""

    def named(rows: Sequence[Any]) -> list[Any]:
        return [{**row, "node": node} for row in rows]

    return {
        **receipt,
        "nodes": [node],
        "gpus": named(receipt["gpus"]),
        "hosts": named(receipt["hosts"]),
        "processes": named(receipt["processes"]),
    }
