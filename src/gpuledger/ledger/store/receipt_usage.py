"""Reads what the owners of a receipt did on each device, and on the node's CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuledger.ledger.report.grouping import Grouping
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.receipt.content import BarScale, DeviceUsage, ReceiptHost
from gpuledger.ledger.report.receipt.timeline import DeviceTimeline
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.report.usage_rows import UsageBar, UsageRow
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.rows import session_from_row
from gpuledger.ledger.store.usage_history import IsOwn, read_host_usage, read_usage, usage_from
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.session import UNOBSERVED

# More bars than a receipt shows: they have other bounds.
_FINE_BARS = 480


def memory_sizes(history: History) -> dict[str, int]:
    """The bytes of memory of each device, by its uuid."""
    return dict(history.connection.execute("SELECT uuid, bytes FROM device_memory"))


def usage_rows(history: History, since: int, until: int, is_own: IsOwn) -> dict[str, UsageRow]:
    """What the parties of which `is_own` is true did together in these quarters, by the device's uuid."""
    together = Grouping("receipt", (), lambda _: (), lambda _: ())
    return {row.device: row for row in read_usage(history, together, since, until, is_own, _FINE_BARS)}


def device_usage(row: UsageRow | None, size: int | None) -> DeviceUsage:
    """The fields of a row; nothing is known without one, but the size of the memory.

    Traffic is that of the whole GPU: it is omitted if another owner was there, too.
    """
    if row is None:
        return _unknown_usage(size)
    own = row.shared == 0
    known = row.sm_known / MICRO
    return DeviceUsage(
        memory_bytes=size if row.memory_size is None else row.memory_size,
        memory_peak_bytes=row.memory_peak,
        memory_mean_bytes=row.memory_mean,
        sm_seconds=round((row.sm_mean or 0.0) * known, 6),
        sm_known_seconds=round(known, 6),
        sm_mean=None if row.sm_mean is None else round(row.sm_mean, 6),
        sm_peak=None if row.sm_peak is None else round(row.sm_peak, 6),
        throttled={reason: length / MICRO for reason, length in row.throttled.items()},
        throttle_known_seconds=row.throttle_known / MICRO,
        pcie_rx_bytes=row.pcie_rx if own else None,
        pcie_tx_bytes=row.pcie_tx if own else None,
        nvlink_rx_bytes=row.nvlink_rx if own else None,
        nvlink_tx_bytes=row.nvlink_tx if own else None,
    )


def _unknown_usage(size: int | None) -> DeviceUsage:
    return DeviceUsage(
        memory_bytes=size,
        memory_peak_bytes=None,
        memory_mean_bytes=None,
        sm_seconds=0.0,
        sm_known_seconds=0.0,
        sm_mean=None,
        sm_peak=None,
        throttled={},
        throttle_known_seconds=0.0,
        pcie_rx_bytes=None,
        pcie_tx_bytes=None,
        nvlink_rx_bytes=None,
        nvlink_tx_bytes=None,
    )


def process_usage(history: History, since: int, sizes: Mapping[str, int]) -> dict[str, DeviceUsage]:
    """What the only session of the target on a device did, by the device's uuid.

    Sessions have their numbers over their whole life: those that began before the range are omitted.
    """
    query = "SELECT * FROM sessions JOIN usage USING (number) WHERE number IN own_sessions"
    found: dict[str, list[DeviceUsage]] = {}
    for stored in history.connection.execute(query):
        session = session_from_row(tuple(stored), history.devices)
        uuid, row, known = session.process.device.uuid, session.row(), session.sm_known
        usage = _unknown_usage(sizes.get(uuid))
        if row.first_seen >= since * QUARTER:
            usage["memory_peak_bytes"], usage["memory_mean_bytes"] = row.peak_memory, row.memory_mean
            usage["sm_mean"], usage["sm_peak"] = row.sm_mean, row.sm_most
            usage["sm_known_seconds"] = round(known, 6)
            usage["sm_seconds"] = round((row.sm_mean or 0.0) * known, 6)
        found.setdefault(uuid, []).append(usage)
    return {uuid: several[0] for uuid, several in found.items() if len(several) == 1}


def fitted_utilization(bars: Iterable[UsageBar], scale: BarScale) -> list[float | None]:
    """The mean utilization in each bar of a receipt, of the known bars that overlap it; None without one."""
    used, seen = [0.0] * scale["count"], [0.0] * scale["count"]
    begins, step = scale["begins"], scale["step_seconds"]
    for bar in bars:
        if bar.ratio is None or not bar.seen:
            continue
        first = max(int((bar.begins - begins) // step), 0)
        last = min(int((bar.begins + bar.seconds - 1 - begins) // step), scale["count"] - 1)
        for place in range(first, last + 1):
            overlap = min(bar.begins + bar.seconds, begins + (place + 1) * step) - max(
                bar.begins, begins + place * step
            )
            weight = max(overlap, 0.0) / bar.seconds * bar.seen
            used[place] += weight * bar.ratio
            seen[place] += weight
    return [round(amount / known, 4) if known else None for amount, known in zip(used, seen, strict=True)]


def host_rows(history: History, node: str, since: int, until: int, is_own: IsOwn) -> list[ReceiptHost]:
    """CPU and memory of the cgroups of these owners on the node, the longest first."""

    def job(party: Party) -> tuple[str, ...]:
        return (party.owner.job,)

    by_job = Grouping("receipt", ("job",), job, lambda _: ("",))
    rows = read_host_usage(history, by_job, since, until, is_own)
    found = [
        ReceiptHost(
            node=node,
            job=row.key[0],
            seconds=round(row.ends - row.begins, 3),
            cpu_seconds=None if row.cpu is None else row.cpu / MICRO,
            cores=None if row.cpus is None else float(row.cpus),
            memory_peak_bytes=row.memory_peak,
            memory_limit_bytes=row.memory_limit,
            is_limited=row.is_limited,
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (-(one["seconds"] or 0.0), one["job"]))


# Seconds until the first posting with a new owner.
_SLACK: Final = 60


class WatchedEvidence:
    """What the ledger has watched in the range of a report: only that is evidence."""

    def __init__(self, history: History, report: UsageReport) -> None:
        self._since = max(report.period.since, report.period.first)
        self._until = report.period.until
        self._is_open = report.period.until >= report.period.last
        self._first = {uuid: first / MICRO for uuid, (first, _) in history.gpu_sights.items()}
        self._unwatched = {
            gpu.uuid: (gpu.unwatched + gpu.accounts.get(UNOBSERVED, 0)) / MICRO for gpu in report.gpus
        }
        first = usage_from(history)
        self._usage_from = None if first is None else first * QUARTER

    def is_begun_before(self, gpu: str, line: DeviceTimeline) -> bool:
        """Whether it was there when the range begins, or when the GPU was first watched."""
        if line.begins is None:
            return False
        return line.begins <= self._since or line.begins <= self._first.get(gpu, 0.0) + _SLACK

    def may_go_on(self, line: DeviceTimeline) -> bool:
        """Whether the range ends while it is there, and the ledger goes on."""
        return not self._is_open and line.ends is not None and line.ends >= self._until

    def unwatched_seconds(self, gpu: str, line: DeviceTimeline) -> float:
        """The seconds between the first and the last sight in which the GPU was not watched, at most."""
        if line.begins is None or line.ends is None:
            return 0.0
        hole = max(line.ends - line.begins - line.present, 0)
        return round(min(hole, self._unwatched.get(gpu, hole)), 6)

    def is_usage_complete(self, line: DeviceTimeline) -> bool:
        """Whether the ledger has memory and utilization of the whole time."""
        return self._usage_from is not None and (line.begins is None or line.begins >= self._usage_from)
