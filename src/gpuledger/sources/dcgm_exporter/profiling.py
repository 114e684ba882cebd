"""Read profiling metrics that NVML does not report from a dcgm-exporter and add them to a Snapshot."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from gpuledger.http.blocking_client import BlockingConnection
from gpuledger.http.client_messages import HttpRequestFailed, encode_request, request_target
from gpuledger.http.hosts import host_field
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import IndexHealth, NodeState
from gpuledger.model.quantities import DRAM_ACTIVITY, Level, Quantity
from gpuledger.model.snapshot import Reading, Snapshot

# By UUID of the Gpu and id of the GPU instance; the id is None for the whole Gpu.
ProfilingValues = Mapping[tuple[str, int | None], Mapping[Quantity, float]]

# Field names of both dcgm-exporter schemas, without DCGM_FI_PROF_. All use the quantity's unit.
QUANTITY_BY_FIELD: Final[Mapping[str, Quantity]] = {
    "GR_ENGINE_ACTIVE": q.ENGINE_ACTIVITY,
    "GR_ENGINE_UTIL_RATIO": q.ENGINE_ACTIVITY,
    "SM_ACTIVE": q.SM_ACTIVITY,
    "SM_UTIL_RATIO": q.SM_ACTIVITY,
    "SM_OCCUPANCY": q.SM_OCCUPANCY,
    "SM_OCCUPANCY_RATIO": q.SM_OCCUPANCY,
    "PIPE_TENSOR_ACTIVE": q.TENSOR_ACTIVITY,
    "TENSOR_UTIL_RATIO": q.TENSOR_ACTIVITY,
    "DRAM_ACTIVE": q.DRAM_ACTIVITY,
    "DRAM_UTIL_RATIO": q.DRAM_ACTIVITY,
    "PIPE_FP64_ACTIVE": q.FP64_ACTIVITY,
    "FP64_UTIL_RATIO": q.FP64_ACTIVITY,
    "PIPE_FP32_ACTIVE": q.FP32_ACTIVITY,
    "FP32_UTIL_RATIO": q.FP32_ACTIVITY,
    "PIPE_FP16_ACTIVE": q.FP16_ACTIVITY,
    "FP16_UTIL_RATIO": q.FP16_ACTIVITY,
    "PCIE_TX_BYTES": q.PCIE_TX_RATE,
    "PCIE_RX_BYTES": q.PCIE_RX_RATE,
    "NVLINK_TX_BYTES": q.NVLINK_TX_RATE,
    "NVLINK_RX_BYTES": q.NVLINK_RX_RATE,
}

_PREFIX: Final = "DCGM_FI_PROF_"
# Label values may contain any character, including braces. A timestamp may follow the value.
_SAMPLE: Final = re.compile(
    rf'{_PREFIX}(\w+)\{{((?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}}[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*'
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_profiling_metrics(page: str) -> ProfilingValues:
    """Parse a metrics page into values per GPU and GPU instance.

    Other families and malformed lines are skipped. Impossible values (DCGM's blanks, NaN, a ratio of 3) are
    omitted. If a field occurs twice, the first value counts.
    """
    values: dict[tuple[str, int | None], dict[Quantity, float]] = {}
    for name, labels, value in _samples(page):
        quantity = QUANTITY_BY_FIELD.get(name)
        uuid = labels.get("UUID") or labels.get("uuid")
        if quantity is None or not uuid:
            continue
        gi = labels.get("GPU_I_ID", "")
        if quantity.is_possible(value) and (not gi or _is_id(gi)):
            values.setdefault((uuid, int(gi) if gi else None), {}).setdefault(quantity, value)
    return values


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in page.split("\n"):
        found = _SAMPLE.fullmatch(line.rstrip("\r")) if line.startswith(_PREFIX) else None
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield found[1], dict(_LABEL.findall(found[2])), value


# Enough for 16 GPUs with 7 MIG instances each, all fields and many labels.
_MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
_HEADERS: Final = (("Accept", "text/plain;version=0.0.4"), ("Connection", "close"))
# Every metrics page of gpuledger has both headers; dcgm-exporter never sends both.
_GPULEDGER_HEADERS: Final = {"vary": "Accept, Accept-Encoding", "x-content-type-options": "nosniff"}


def fetch_profiling_values(url: str, *, timeout: float = 5.0) -> ProfilingValues:
    """Fetch the current profiling values from the dcgm-exporter at `url`. Blocks: do not call in the tick.

    `timeout` is of the connection and of the whole response, in seconds. Raises GpuledgerError with one line
    that names the remedy.
    """
    parts = urlsplit(url)
    try:
        request = encode_request(
            "GET", request_target(parts), [("Host", host_field(parts.netloc)), *_HEADERS]
        )
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout) as connected:
            response = BlockingConnection(connected).exchange(request, _MAX_PAGE_BYTES, monotonic() + timeout)
    except TimeoutError:
        raise GpuledgerError(
            f"{url} did not respond within {timeout:.0f} s; check that dcgm-exporter is healthy"
        ) from None
    except (OSError, UnicodeError, HttpRequestFailed) as error:
        raise GpuledgerError(
            f"{url} cannot be read ({error}); check that dcgm-exporter is running, or remove "
            "--dcgm-exporter-url"
        ) from None
    if response.headers.items() >= _GPULEDGER_HEADERS.items():
        # gpuledger would read back its own merged values, which would never become stale.
        raise GpuledgerError(
            f"{url} is gpuledger itself; set --dcgm-exporter-url to dcgm-exporter's metrics page"
        )
    if response.status != 200:
        raise GpuledgerError(
            f"{url} responded with status {response.status}; set --dcgm-exporter-url to dcgm-exporter's "
            "metrics page"
        )
    values = parse_profiling_metrics(response.body.decode("utf-8", "replace"))
    if not values:
        raise GpuledgerError(
            f"{url} has no DCGM_FI_PROF_* field; enable them in dcgm-exporter's collectors file, and give it "
            "SYS_ADMIN"
        )
    return values


# A busy exporter can be late by one period; older values no longer describe the present.
_STALE_PERIODS = 3


def add_profiling(
    state: NodeState, profiling: ProfilingValues, health: IndexHealth, period: float
) -> NodeState:
    """Return the NodeState with the profiling values, if the last poll is at most three `period`s old.

    `health` is the health of the poll; `period` is in seconds. Use the result for serving only: the ledger is
    posted without these values.
    """
    polled_at = health.last_success
    if state.snapshot is None or polled_at is None:
        return state
    # The lower bound rejects old values after the clock was set back.
    if not -period <= state.unix - polled_at <= _STALE_PERIODS * period:
        return state
    return replace(state, snapshot=merge_profiling(state.snapshot, profiling))


def merge_profiling(snapshot: Snapshot, profiling: ProfilingValues) -> Snapshot:
    """Return the Snapshot with the profiling values that Devices which are up do not report themselves.

    Not for the ledger: the values are means over the exporter's interval, which is longer and unknown.
    """
    if not profiling:
        return snapshot
    instances = [item.device for item in snapshot.readings if isinstance(item.device, Instance)]
    per_gi = Counter((item.parent, item.gi) for item in instances)
    mig_gpus = {item.parent for item in instances}
    readings = tuple(
        [_add_values(item, _values_of(item, profiling, per_gi, mig_gpus)) for item in snapshot.readings]
    )
    return replace(snapshot, readings=readings)


def _add_values(reading: Reading, more: Mapping[Quantity, float]) -> Reading:
    missing = {quantity: value for quantity, value in more.items() if quantity not in reading.values}
    if not missing or not reading.up:
        return reading
    supported = {**reading.supported, **{quantity.key: True for quantity in missing}}
    return replace(reading, values={**missing, **reading.values}, supported=supported)


def _values_of(
    reading: Reading,
    profiling: ProfilingValues,
    per_gi: Mapping[tuple[Gpu, int], int],
    mig_gpus: set[Gpu],
) -> Mapping[Quantity, float]:
    device = reading.device
    if isinstance(device, Instance):
        alone = per_gi[device.parent, device.gi] == 1
        found = profiling.get((device.parent.uuid, device.gi), {})
        # dcgm-exporter has no values per compute instance. Values of a GPU instance with several compute
        # instances cannot be split, except DRAM activity, which they share.
        return {
            quantity: value
            for quantity, value in found.items()
            if quantity.level is Level.INSTANCE and (alone or quantity is DRAM_ACTIVITY)
        }
    if device not in mig_gpus:
        return profiling.get((device.uuid, None), {})
    # dcgm-exporter repeats values of the whole GPU on each GPU instance.
    return {
        quantity: value
        for (uuid, _), values in profiling.items()
        if uuid == device.uuid
        for quantity, value in values.items()
        if quantity.level is Level.GPU
    }
