"""The report of a test as one Markdown file, without identifiers: it can be attached to an issue."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from gpuledger.host.container import find_container
from gpuledger.model import quantities as q
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.devices import Gpu
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Reading
from gpuledger.selftest.checks import SelfTest
from gpuledger.selftest.driver_checks import (
    activity_and_utilization,
    device_name,
    failures_of,
    sample_period,
)
from gpuledger.selftest.ledger_checks import median_cost
from gpuledger.selftest.meters import counter_points, measure_agreement, measure_refresh, power_points
from gpuledger.selftest.observation import Observation
from gpuledger.selftest.smi_comparison import NumberComparison, SmiComparison

Rows = Iterable[Sequence[object]]
NO_IDENTIFIERS: Final = (
    "No identifiers are in this file: no UUIDs, serial numbers, bus addresses, names of hosts, users or "
    "programs. It has process ids only where processes differ from those of nvidia-smi."
)
_UUID: Final = re.compile(
    r"\b(?:(?:GPU|MIG)-[0-9a-fA-F]+(?:-[0-9a-fA-F]+)+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
)
_PCI_ADDRESS: Final = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_NONE: Final = "-"


def write_report(findings: Sequence[Finding], test: SelfTest, version: str) -> str:
    """Return the report of a finished test."""
    observation, comparison = test.measured.observation, test.measured.comparison
    parts = [
        "# Report of gpuledger selftest",
        NO_IDENTIFIERS,
        *findings_section("Findings", findings),
        *table_section("Machine", ("", ""), machine_rows(test, version)),
    ]
    if observation is not None:
        parts += measurement_sections(observation)
    if comparison is not None:
        parts += comparison_sections(comparison)
    return join_sections(parts)


def join_sections(parts: Sequence[str]) -> str:
    """The sections as one text, without the identifiers that a driver's or a program's message may have."""
    text = "\n\n".join(parts) + "\n"
    return _PCI_ADDRESS.sub("(address)", _UUID.sub("(UUID)", text))


def findings_section(title: str, findings: Sequence[Finding]) -> list[str]:
    """The findings as a table, those that need attention first."""
    order = (Verdict.FAILS, Verdict.WARNING, Verdict.UNKNOWN, Verdict.WORKS, Verdict.SKIPPED)
    ranked = sorted(findings, key=lambda one: order.index(one.verdict))
    rows = [(one.verdict.value, one.what, one.why, one.remedy) for one in ranked]
    return table_section(title, ("verdict", "what", "finding", "remedy"), rows)


def table_section(title: str, headers: Sequence[str], rows: Rows) -> list[str]:
    """A heading and a table; nothing without rows."""
    lines = [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    if not lines:
        return []
    head = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    return [f"## {title}", "\n".join([*head, *lines])]


def _cell(value: object) -> str:
    text = _NONE if value is None or value == "" else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def machine_rows(test: SelfTest, version: str) -> Rows:
    """Facts about the machine, the program and the driver."""
    yield "date", datetime.fromtimestamp(test.observer.clock.unix(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "gpuledger", version
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "kernel", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "CPUs", os.cpu_count()
    yield "container", find_container("/", test.procfs, test.environment) or "none found"
    yield "user", "root" if os.geteuid() == 0 else "not root"
    observation = test.measured.observation
    if observation is not None:
        info = observation.info
        yield "driver", f"{info.driver_version}, NVML {info.library_version}, CUDA {info.cuda_version}"
        yield "functions that the driver lacks", ", ".join(observation.missing) or "none"


def _gpus(observation: Observation) -> list[Reading]:
    return [reading for reading in observation.last.values() if isinstance(reading.device, Gpu)]


def measurement_sections(observation: Observation) -> Iterator[str]:
    """All figures of an observation as tables."""
    gpus, ticks = _gpus(observation), len(observation.snapshots)
    failures = ((text, f"{times} of {ticks}") for text, times in failures_of(observation.snapshots).items())
    tables: tuple[tuple[str, str, Rows], ...] = (
        (
            "GPUs",
            "GPU, model, architecture, compute capability, VBIOS, multiprocessors, MIG, up",
            map(_gpu_row, gpus),
        ),
        (
            "Refresh of the energy counter",
            "GPU, moves, shortest, usual, longest, time between readings of it",
            _refresh_rows(observation, gpus),
        ),
        (
            "Energy and power",
            "GPU, seconds, counter, power x time, difference, allowed",
            _agreement_rows(observation, gpus),
        ),
        (
            "Utilization samples that the driver keeps",
            "GPU, samples, timestamps, period, kept for, clock, highest sum of SM, why none",
            _sample_rows(observation),
        ),
        (
            "Process lists",
            "device, processes, longer than the first buffer, complete, why none",
            _list_rows(observation),
        ),
        (
            "Activity (means of the observation)",
            "GPU, engine activity (GPM), utilization",
            _activity_rows(observation, gpus),
        ),
        ("Course", "GPU, s, W, W instant, utilization, SM, J, processes", _course_rows(observation)),
        ("Accounts", "GPU, account, joules", _account_rows(observation.booked.state, gpus)),
        ("Cost of a reading", ", median, highest", _cost_rows(observation)),
        ("Failed calls", "call, readings", failures),
    )
    for title, headers, rows in tables:
        yield from table_section(title, headers.split(", "), rows)


def _cost_rows(observation: Observation) -> Rows:
    costs, usual = observation.costs, median_cost(observation.costs)
    walls, cpus = (usual.wall, max(one.wall for one in costs)), (usual.cpu, max(one.cpu for one in costs))
    yield "wall clock", *(f"{1000 * seconds:.2f} ms" for seconds in walls)
    yield "CPU time", *(f"{1000 * seconds:.2f} ms" for seconds in cpus)
    yield "calls to the driver", usual.calls, max(one.calls for one in costs)


def _gpu_row(reading: Reading) -> Sequence[object]:
    gpu = reading.device.gpu
    mig = "on" if reading.mig_enabled else "off"
    facts = (gpu.index, gpu.name, gpu.architecture, gpu.compute_capability, gpu.vbios, gpu.sm_count)
    return (*facts, mig, "yes" if reading.up else f"no: {reading.down_reason}")


def _refresh_rows(observation: Observation, gpus: list[Reading]) -> Rows:
    for reading in gpus:
        found = measure_refresh(counter_points(observation, reading.device.uuid))
        if found is None:
            yield reading.device.gpu.index, 0, None, None, None, None
            continue
        times = (found.shortest, found.usual, found.longest, found.resolution)
        yield reading.device.gpu.index, found.moves, *(f"{1000 * value:.1f} ms" for value in times)


def _agreement_rows(observation: Observation, gpus: list[Reading]) -> Rows:
    for reading in gpus:
        uuid = reading.device.uuid
        power = power_points(observation.meters.get(uuid, ()))
        found = measure_agreement(counter_points(observation, uuid), power)
        if found:
            joules = (f"{found.counter:.1f} J", f"{found.integral:.1f} J")
            difference = f"{found.counter - found.integral:+.1f} J ({found.ratio:+.1%})"
            yield (
                reading.device.gpu.index,
                f"{found.seconds:.2f}",
                *joules,
                difference,
                f"±{found.margin:.1f} J",
            )


def _sample_rows(observation: Observation) -> Rows:
    for uuid, kept in observation.kept.items():
        index = observation.last[uuid].device.gpu.index
        period = sample_period(kept)
        stamps = kept.timestamps
        span = f"{(stamps[-1] - stamps[0]) / 1e6:.2f} s" if stamps else None
        shown = None if period is None else f"{period * 1000:.1f} ms"
        top = f"{kept.highest_sum} %" if stamps else None
        yield index, kept.samples, len(stamps), shown, span, kept.clock, top, kept.error


def _list_rows(observation: Observation) -> Rows:
    for uuid, growth in observation.lists.items():
        grown, same = ("yes" if value else "no" for value in (growth.grown, growth.same))
        yield device_name(observation.last[uuid].device), growth.processes, grown, same, growth.error


def _activity_rows(observation: Observation, gpus: list[Reading]) -> Rows:
    for reading in gpus:
        means = activity_and_utilization(observation, reading.device.uuid)
        if means:
            yield reading.device.gpu.index, *(f"{mean:.1%}" for mean in means)


def _course_rows(observation: Observation) -> Rows:
    """The course of the observation, one row for each reading of a Gpu."""
    first = observation.snapshots[0]
    for snapshot in observation.snapshots:
        for reading in snapshot.readings:
            if isinstance(reading.device, Gpu):
                ratios = [reading.get(each) for each in (q.UTILIZATION, q.SM_ACTIVITY)]
                energy = reading.get(q.ENERGY)
                yield (
                    reading.device.index,
                    f"{snapshot.elapsed - first.elapsed:.2f}",
                    *(reading.get(each) for each in (q.POWER, q.POWER_INSTANT)),
                    *(None if ratio is None else f"{ratio:.0%}" for ratio in ratios),
                    None if energy is None else f"{energy / 1000:.3f}",
                    None if reading.processes is None else len(reading.processes),
                )


def _account_rows(state: LedgerState, gpus: list[Reading]) -> Rows:
    indexes = {reading.device.uuid: reading.device.gpu.index for reading in gpus}
    sums: dict[tuple[int, str], int] = {}
    for row in state.energy.owners:
        uuid, account, method = row.labels[:3]
        if uuid in indexes:
            key = indexes[uuid], f"{account} ({method})" if method else account
            sums[key] = sums.get(key, 0) + row.millijoules
    for uuid, millijoules in state.energy.pending.items():
        if millijoules and uuid in indexes:
            sums[indexes[uuid], "pending: its owner is not decided yet"] = millijoules
    for (index, account), millijoules in sorted(sums.items()):
        yield index, account, f"{millijoules / 1000:.3f}"


def comparison_sections(comparison: SmiComparison, *, compared_only: bool = False) -> Iterator[str]:
    """The numbers by Device: different ones first, then equal ones, then those of one side."""
    differing = ((each,) for each in comparison.differing_processes)
    yield from table_section("Processes that differ from nvidia-smi", ("process",), differing)
    by_device: dict[str, list[NumberComparison]] = {}
    for one in comparison.numbers.values():
        if one.equal is not None or (not compared_only and (one.ours or one.theirs)):
            by_device.setdefault(one.device, []).append(one)
    for device, numbers in by_device.items():
        headers = ("name", "gpuledger", "nvidia-smi", "equal")
        yield from table_section(
            f"Numbers of {device}", headers, map(_number_row, sorted(numbers, key=_number_rank))
        )


def _number_rank(one: NumberComparison) -> int:
    return 3 - bool(one.theirs) if one.equal is None else int(one.equal)


def _number_row(one: NumberComparison) -> Sequence[object]:
    quantity = QUANTITIES.get(one.name)
    unit = f" ({quantity.unit})" if quantity is not None and quantity.unit else ""
    different = "no, it moves" if one.moved else "**no**"
    equal = {None: "", True: "yes", False: different}[one.equal]
    name = one.name if one.column else f"{one.name}{unit}"
    return name, one.ours, one.theirs, equal
