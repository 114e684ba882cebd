"""docs/limits.md has the limits of the code."""

from __future__ import annotations

import pytest

from documentation import DOCS
from gpuledger.app import control_socket, fleet_api, free_requests, node_api, prometheus_api, statements
from gpuledger.app import user_requests as socket_requests
from gpuledger.app.slurm_receipts import accounting
from gpuledger.fleet import gpu_cells, node_client
from gpuledger.fleet.lists import node_list
from gpuledger.host import commands
from gpuledger.ledger.store import receipt_query, reservation_file
from gpuledger.sources.dcgm_exporter import profiling
from gpuledger.sources.smi import parsed_output
from gpuledger.workloads.containers import docker_api

PAGE = (DOCS / "limits.md").read_text(encoding="utf-8")
MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    "phrase",
    [
        f"snapshot to `fleet` {node_client.MOST_SENT // MIB} MiB",
        f"({node_client.MOST_DECODED // MIB} MiB unpacked)",
        f"with `--url` {node_api._MAX_BODY // MIB} MiB",
        f"a Prometheus {prometheus_api._MAX_BODY // MIB} MiB a query",
        f"dcgm-exporter and Docker {docker_api._MAX_BODY // MIB} MiB",
        f"`nvidia-smi` {commands.MAX_OUTPUT_BYTES // MIB} MiB, Slurm's commands "
        f"{accounting._MOST_BYTES // MIB} MiB, `sinfo` {node_list.LONGEST_LIST // MIB} MiB",
        f"one line for {commands.SHORTEST_LINE} bytes of the limit",
        f"an `nvidia-smi` with {parsed_output.MOST_GPUS} GPUs",
        f"{node_list.MOST_NODES:,} nodes, {node_list.LONGEST_LIST // MIB} MiB for a list",
        f"{gpu_cells.MOST_CELLS} GPUs and instances a node",
        f"{fleet_api._LARGEST // GIB} GiB, at no less than {fleet_api._SLOWEST >> 10} KiB a second",
        f"{socket_requests._MOST_THREADS} requests at once, {socket_requests._MOST_PER_USER} of one user",
        f"a request {socket_requests._LONGEST_REQUEST >> 10} KiB, sent within"
        f" {socket_requests._REQUEST_TIMEOUT:g} s",
        f"{receipt_query._MOST_OWNERS} owners and {receipt_query._MOST_PROCESSES} processes",
        f"files of {statements._LARGEST // GIB} GiB",
        f"{free_requests.LONGEST_RESERVATION / 3600:g} hours, or as long as a command runs",
    ],
)
def test_the_page_of_limits_has_the_limit(phrase: str) -> None:
    assert phrase in PAGE


def test_limits_of_one_kind_are_equal() -> None:
    assert docker_api._MAX_BODY == profiling._MAX_PAGE_BYTES
    assert control_socket._LONGEST_ANSWER == node_api._MAX_BODY
    assert reservation_file._MOST_SECONDS == free_requests.LONGEST_RESERVATION
