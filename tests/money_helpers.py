"""Reports of time and energy entries in memory, priced like those of a ledger."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from fractions import Fraction
from operator import itemgetter
from typing import Any

from builders import gpu
from gpuledger.ledger.report.focus import focus_keys
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.party import Party, party_of
from gpuledger.ledger.report.price_entries import CO2, GPU_HOUR, KWH, PUE, price_parser
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import UTC_DAY, CutsAround, ReportPart, split_range
from gpuledger.ledger.report.report_builder import ReportScope, build_usage_report
from gpuledger.ledger.report.segments import SegmentPrices, cut_segments, full_hours
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.tally import EnergyEntry, Tally
from gpuledger.ledger.report.usage_report import Period, UsageReport
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.workload import Workload

SECOND = 1_000_000
HOUR = 3600 * SECOND
KWH_MJ = 3_600_000_000
H100 = gpu(0, name="NVIDIA H100", sm_count=132)
H100_TOO = gpu(1, name="NVIDIA H100", sm_count=132)
A100 = gpu(2, name="NVIDIA A100", sm_count=108)


def prices(**settings: Any) -> Prices:
    """Prices as a configuration file would give them."""
    parsers = {"gpu_hour": GPU_HOUR, "kwh": KWH, "pue": PUE, "co2": CO2}
    parsed = {
        key: price_parser(parsers[key])(value) if key in parsers else value for key, value in settings.items()
    }
    return Prices(**{"currency": "EUR", **parsed})


def pod(name: str, namespace: str = "ml", device: Device = H100, command: str = "python3") -> Party:
    return party_of(device.uuid, Workload("pod", namespace, name, "main"), command)


@dataclass
class Entries:
    """Entries by quarter, of these Gpus."""

    gpus: Sequence[Gpu] = (H100, H100_TOO, A100)
    times: list[tuple[int, GpuTime]] = field(default_factory=list)
    energy: list[tuple[int, EnergyEntry]] = field(default_factory=list)

    def time(
        self,
        quarter: int,
        device: Gpu,
        who: Party | str,
        allocation: int,
        residence: int | None = None,
        part: GpuPart | None = None,
    ) -> None:
        """Add microseconds of an owner or an account."""
        whole = GpuPart(device.uuid, device.name)
        party, account = (None, who) if isinstance(who, str) else (who, "owner")
        other = allocation if residence is None else residence
        self.times.append((quarter, GpuTime(part or whole, account, party, False, allocation, other)))

    def joules(
        self, quarter: int, device: Gpu, shares: Mapping[Party, int], *, idle: int = 0, unobserved: int = 0
    ) -> None:
        """Add millijoules."""
        method = "unobserved" if unobserved else "activity"
        entry = EnergyEntry(device.uuid, method, HOUR, idle, 0, unobserved, list(shares.items()))
        self.energy.append((quarter, entry))

    def report(
        self,
        given: Prices,
        by: str = "owner",
        parts: Sequence[ReportPart] | None = None,
        zone: tzinfo = UTC,
        sights: Mapping[str, tuple[int, int]] | None = None,
    ) -> UsageReport:
        """The report of these parts of the range; by default of everything."""
        if parts is None:
            quarters = [quarter for quarter, _ in (*self.times, *self.energy)]
            parts = [ReportPart(min(quarters), max(quarters) + 4, "")]
        begins, ends = parts[0].begins, parts[-1].ends
        spread = given.idle == SPREAD
        listed = PriceList(given, zone)
        devices = {device.uuid: device for device in self.gpus}
        grouping = find_grouping(by, devices, node_of=lambda _: "node-1")
        tally = Tally(grouping, lambda _: Fraction(1), basis=given.basis, spread=spread)
        cuts: Iterable[int] = full_hours(begins, ends, zone) if spread else listed.boundaries(begins, ends)
        quarter = itemgetter(0)
        energy, times = sorted(self.energy, key=quarter), sorted(self.times, key=quarter)
        for segment in cut_segments(parts, cuts):
            tally.begin_segment(segment, SegmentPrices(listed, "", segment.since))
            ends_of = (segment.since, segment.until)
            for _, joules in energy[slice(*(bisect_left(energy, end, key=quarter) for end in ends_of))]:
                tally.add_energy(joules)
            for _, time in times[slice(*(bisect_left(times, end, key=quarter) for end in ends_of))]:
                tally.add_gpu_time(time)
        tally.finish()
        period = Period(begins * QUARTER, ends * QUARTER, begins * QUARTER, ends * QUARTER)
        scope = ReportScope(grouping, given, devices, period, parts, sights=sights)
        return build_usage_report(tally, scope, lambda segment: SegmentPrices(listed, "", segment.since))

    def focus_report(
        self, given: Prices, by: str = "owner", zone: tzinfo = UTC, cuts_around: CutsAround | None = None
    ) -> UsageReport:
        """The report that `--format focus` makes: by Gpu and owner, a part for each UTC day."""
        quarters = [quarter for quarter, _ in (*self.times, *self.energy)]
        around = cuts_around or (lambda quarter: (quarter, quarter))
        parts, _ = split_range(min(quarters), max(quarters) + 4, UTC_DAY, around, zone)
        return self.report(given, focus_keys(by, has_teams=False), parts, zone)


def costs(report: UsageReport) -> dict[str, Fraction]:
    """The cost of each row and account that has any, by the last part of its name."""
    owners = {line.key[-1]: line.cost for line in report.lines if line.cost}
    return {**owners, **{line.account: line.cost for line in report.gpu_accounts if line.cost}}
