"""A Snapshot with the profiling metrics that NVML did not tell, from a dcgm-exporter."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import h11

from gpuledger.http.blocking_client import get
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import IndexHealth, NodeState
from gpuledger.model.quantities import DRAM_ACTIVITY, Level, Quantity
from gpuledger.model.snapshot import Reading, Snapshot

# By uuid of the Gpu and id of the GPU instance, None for the whole.
Told = Mapping[tuple[str, int | None], Mapping[Quantity, float]]

# Names of both schemas of dcgm-exporter, without DCGM_FI_PROF_. All are told in the quantity's own unit.
FIELDS: Final[Mapping[str, Quantity]] = {
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
# Label values may hold any character, braces too; a timestamp may follow the value.
_SAMPLE: Final = re.compile(
    rf'{_PREFIX}(\w+)\{{((?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}}[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*'
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(page: str) -> Told:
    """What the page tells of each GPU and GPU instance.

    Other families, and lines that are none, are passed over; a value that cannot be (blanks of DCGM, NaN, a
    ratio of 3) is absent. Of two values of one field the first counts.
    """
    told: dict[tuple[str, int | None], dict[Quantity, float]] = {}
    for name, labels, value in _samples(page):
        quantity = FIELDS.get(name)
        uuid = labels.get("UUID") or labels.get("uuid")
        if quantity is None or not uuid:
            continue
        gi = labels.get("GPU_I_ID", "")
        if quantity.believes(value) and (not gi or _is_id(gi)):
            told.setdefault((uuid, int(gi) if gi else None), {}).setdefault(quantity, value)
    return told


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


# 16 GPUs cut into 7, all fields, many labels; a page that is longer is another program's.
_LONGEST: Final = 16 * 1024 * 1024
_HEADERS: Final = (("Accept", "text/plain;version=0.0.4"), ("Connection", "close"))
# Both are on every metrics page of gpuledger, and together on none of dcgm-exporter.
_OWN: Final = {b"vary": b"Accept, Accept-Encoding", b"x-content-type-options": b"nosniff"}


def ask(url: str, *, timeout: float = 5.0) -> Told:
    """What the dcgm-exporter at `url` tells now. May wait: not to be called in the tick.

    `timeout` in seconds is the longest wait for the next bytes. Raises GpuledgerError with one line that says
    what to do.
    """
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout) as connected:
            status, headers, body = get(connected, target, [("Host", parts.netloc), *_HEADERS], _LONGEST)
    except TimeoutError:
        raise GpuledgerError(
            f"{url} said nothing for {timeout:.0f} s; see that dcgm-exporter is well"
        ) from None
    except (OSError, h11.ProtocolError) as error:
        raise GpuledgerError(
            f"{url} gave no answer ({error}); see that dcgm-exporter runs, or leave --dcgm-exporter-url out"
        ) from None
    if headers.items() >= _OWN.items():
        # What was merged would come back, and never grow old.
        raise GpuledgerError(f"{url} is gpuledger itself; name dcgm-exporter's page by --dcgm-exporter-url")
    if status != 200:
        raise GpuledgerError(
            f"{url} answers with status {status}; name dcgm-exporter's metrics page by --dcgm-exporter-url"
        )
    told = parse(body.decode("utf-8", "replace"))
    if not told:
        raise GpuledgerError(
            f"{url} tells no DCGM_FI_PROF_* field; enable them in its collectors file, and give it SYS_ADMIN"
        )
    return told


# Asked every period, and late by one when it is busy: what is older says nothing of now.
_STALE_PERIODS = 3


def with_profiling(page: NodeState, told: Told, health: IndexHealth, period: float) -> NodeState:
    """The Page with what a dcgm-exporter told, if its last answer is at most three `period`s (seconds) old.

    `health` is of the asking. For what is served; the books are posted without.
    """
    answered = health.last_success
    if page.snapshot is None or answered is None:
        return page
    # A clock that was set back makes no old answer a new one.
    if not -period <= page.unix - answered <= _STALE_PERIODS * period:
        return page
    return replace(page, snapshot=merged(page.snapshot, told))


def merged(snapshot: Snapshot, told: Told) -> Snapshot:
    """The Snapshot with what is `told` where a Device that is up does not tell it itself.

    Not for the books: the values are means over the exporter's own interval, which is longer and not known.
    """
    if not told:
        return snapshot
    instances = [item.device for item in snapshot.readings if isinstance(item.device, Instance)]
    per_gi = Counter((item.parent, item.gi) for item in instances)
    cut = {item.parent for item in instances}
    readings = tuple([_with(item, _of(item, told, per_gi, cut)) for item in snapshot.readings])
    return replace(snapshot, readings=readings)


def _with(reading: Reading, more: Mapping[Quantity, float]) -> Reading:
    missing = {quantity: value for quantity, value in more.items() if quantity not in reading.values}
    if not missing or not reading.up:
        return reading
    supported = {**reading.supported, **{quantity.key: True for quantity in missing}}
    return replace(reading, values={**missing, **reading.values}, supported=supported)


def _of(
    reading: Reading, told: Told, per_gi: Mapping[tuple[Gpu, int], int], cut: set[Gpu]
) -> Mapping[Quantity, float]:
    device = reading.device
    if isinstance(device, Instance):
        alone = per_gi[device.parent, device.gi] == 1
        found = told.get((device.parent.uuid, device.gi), {})
        # dcgm-exporter knows no compute instances: what all of a GPU instance did is none's in particular.
        return {
            quantity: value
            for quantity, value in found.items()
            if quantity.level is Level.INSTANCE and (alone or quantity is DRAM_ACTIVITY)
        }
    if device not in cut:
        return told.get((device.uuid, None), {})
    # It tells what is the whole GPU's again with each of its instances.
    return {
        quantity: value
        for (uuid, _), values in told.items()
        if uuid == device.uuid
        for quantity, value in values.items()
        if quantity.level is Level.GPU
    }
