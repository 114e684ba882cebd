"""Converts values to table rows and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from gpuledger.ledger.allocation_times import AllocationPeriod
from gpuledger.ledger.energy.counter import EnergyCounter
from gpuledger.ledger.journal import (
    EpochEntry,
    GpuEntry,
    GpuTimeEntry,
    JournalTimeSpan,
    SeriesEntry,
    TimeOwner,
)
from gpuledger.ledger.ownership import Ownership, owner_fields, owner_from_fields
from gpuledger.ledger.sessions import PAGE, OpenSession
from gpuledger.ledger.spans import Span
from gpuledger.ledger.time.span import QUARTER_MICROSECONDS
from gpuledger.ledger.time.stored import time_fields
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import GpuProcess, HostFacts, ProcessKey, ProcessStart, ProcessType, program_name
from gpuledger.model.workload import FACTS, UNKNOWN, Workload

Row = tuple[Any, ...]
# Columns of `sessions`; in joined rows, the columns of `usage` (without number) follow.
SESSION_COLUMNS = 37
# Fields of Workload with a column: those before the labels, and the first facts. The others are JSON.
_NAMES = tuple(item.name for item in fields(Workload))
_NAMES = _NAMES[: _NAMES.index("labels")]
_FACT_COLUMNS = ("controller_kind", "controller", "slurm_account", "partition")
_owner_names, _owner_facts = attrgetter(*_NAMES), attrgetter(*_FACT_COLUMNS)
_OTHER_FACTS = tuple(name for name in FACTS if name not in _FACT_COLUMNS)
# The columns of `sessions` from which `facts_from_columns` reads.
FACT_COLUMNS = (*_FACT_COLUMNS, "facts")


def device_row(device: Device) -> Row:
    """A row of `devices`."""
    gpu = device.gpu
    own: Row = (None,) * 4
    if isinstance(device, Instance):
        own = (device.gi, device.ci, device.index, device.profile)
    return (device.uuid, gpu.uuid, gpu.index, gpu.name, gpu.pci_bus_id, device.sm_count, *own)


def devices_from_rows(rows: Sequence[Row]) -> dict[str, Device]:
    """Devices by uuid from rows of `devices`. A missing Gpu of an Instance is created."""
    found: dict[str, Device] = {}
    for uuid, gpu, index, name, bus, sms, gi, *_ in rows:
        if gi is None and uuid == gpu:
            found[uuid] = Gpu(uuid, index, name, bus, sm_count=sms)
    for uuid, gpu, index, name, bus, sms, gi, ci, position, profile in rows:
        if gi is not None:
            parent = found.get(gpu) or Gpu(gpu, index, name, bus)
            assert isinstance(parent, Gpu)
            found[uuid] = Instance(uuid, parent, gi, ci, position, profile, sms)
    return found


def epoch_row(entry: EpochEntry) -> Row:
    """A row of `epochs`."""
    return (*_epoch_columns(entry.uuid, entry.counter), entry.unix)


def gpu_row(entry: GpuEntry) -> Row:
    """A row of `gpus`."""
    counter = entry.counter
    last_reading = (counter.last, counter.last_at, counter.refresh, entry.last_unix)
    return (*_epoch_columns(entry.uuid, counter), *last_reading, entry.total, entry.base, entry.closed)


def _epoch_columns(uuid: str, counter: EnergyCounter) -> Row:
    """The columns with which both `epochs` and `gpus` begin."""
    epoch = counter.epoch
    return (uuid, counter.epoch_number, epoch.boot_id, epoch.driver_load, counter.opening, counter.booked)


def session_row(one: OpenSession) -> Row:
    """A row of `sessions`."""
    process, host = one.process, one.process.host
    device, start = process.device, host.start
    owner = process.workload
    return (
        one.number,
        device.uuid,
        device.gpu.uuid,
        device.gpu.index,
        device.instance,
        process.pid,
        start.boot_id,
        start.ticks,
        start.seen,
        start.unix,
        process.command,
        host.executable,
        host.comm,
        process.type_text,
        host.uid,
        host.user,
        host.missing,
        *_owner_names(owner),
        one.first_seen,
        _text(owner.labels),
        *_owner_facts(owner),
        _text({name: value for name in _OTHER_FACTS if (value := getattr(owner, name))}),
    )


def facts_from_columns(*columns: str) -> dict[str, str]:
    """The facts of an owner by name, from FACT_COLUMNS."""
    return {**dict(zip(_FACT_COLUMNS, columns, strict=False)), **json.loads(columns[-1])}


def usage_row(one: OpenSession) -> Row:
    """A row of `usage`."""
    exit_seen = one.ended is not None and one.watched
    return (one.number, one.last_seen, one.ended, exit_seen, *_used(one), *_sums(one))


def open_usage_row(one: OpenSession) -> Row:
    """The changing columns of an open Session's row in `usage`, and its number."""
    return (one.last_seen, *_used(one), one.number)


def usage_sums_row(one: OpenSession) -> Row:
    """The columns of an open Session's row in `usage` that are not written at each tick, and its number."""
    return (*_sums(one), one.number)


def _used(one: OpenSession) -> Row:
    return (
        one.peak_memory,
        one.sm_seconds,
        one.sm_known,
        one.sm_most,
        one.held_seconds,
        one.measured,
        one.apportioned,
        one.high,
        one.stretch.lowest,
        one.stretch.highest,
        one.stretch.begins,
        one.stretch.count,
    )


def _sums(one: OpenSession) -> Row:
    return (one.memory_sum // PAGE, one.memory_known, one.active, one.first_active)


def session_from_row(row: Row, devices: Mapping[str, Device]) -> OpenSession:
    """An open Session from its rows in `sessions` and `usage`, not yet seen in this run."""
    number, uuid, gpu, index, instance, pid, boot, ticks, seen, started = row[:10]
    command, executable, comm, types, uid, login, gone = row[10:17]
    device = devices.get(uuid) or _unlisted_device(uuid, gpu, index, instance)
    usage = row[SESSION_COLUMNS:]
    last, _, _, *sums = usage[:11]
    host = HostFacts(ProcessStart(boot, ticks, started, seen), executable, comm, uid, login, missing=gone)
    owner = owner_from_row(row)
    process = GpuProcess(device, pid, host, _name(command), _types(types), workload=owner)
    found = OpenSession(process, row[30], last, *sums)
    found.number, found.stored = number, True
    found.watched = found.changed = found.renamed = False
    stay = found.stretch
    stay.lowest, stay.highest, stay.begins, stay.count = usage[11:15]
    pages, found.memory_known, found.active, found.first_active = usage[15:]
    found.memory_sum = pages * PAGE
    return found


def owner_from_row(row: Row) -> Workload:
    """The owner from a row of `sessions`; the columns are in the order of Workload's fields."""
    names = dict(zip(_NAMES, row[17:30], strict=True))
    facts = facts_from_columns(*row[32:SESSION_COLUMNS])
    return owner_from_fields({**names, "labels": json.loads(row[31]), **facts})


def allocation_row(one: AllocationPeriod) -> Row:
    """A row of `handovers`."""
    return (one.number, one.device.uuid, _text(owner_fields(one.owner)), one.begins, one.ends, one.over)


def allocation_from_row(row: Row, devices: Mapping[str, Device]) -> AllocationPeriod:
    """An active allocation from its row; raises KeyError if its Device is unknown."""
    number, uuid, owner, begins, ends, _ = row
    workload = workload_from_text(owner) or UNKNOWN
    return AllocationPeriod(devices[uuid], workload, begins, ends, number, changed=False, stored=True)


def _unlisted_device(uuid: str, gpu: str, index: int, instance: str) -> Device:
    parent = Gpu(gpu, index)
    if not instance:
        return parent
    gi, _, ci = instance.partition("_")
    return Instance(uuid, parent, int(gi), int(ci), 0)


def _name(command: str) -> str:
    """A driver's name that yields the same command; empty if executable and comm yield it."""
    # Behind a slash, `A:\b` is no path of Windows.
    return next((name for name in (command, f"/{command}") if program_name(name) == command), "")


def _types(text: str) -> frozenset[ProcessType]:
    return frozenset(ProcessType(word) for word in text.split("+") if word)


def span_row(span: Span) -> Row:
    """A row of `spans`."""
    kind = (span.number, span.uuid, span.epoch_number, span.method, span.begins)
    return (*kind, *_span_changes(span), span.quarter)


def share_rows(span: Span) -> list[Row]:
    """Rows of `shares` for a span that is not stored yet."""
    return [
        (span.number, session, share.millijoules, share.resident, share.work)
        for session, share in span.shares.items()
    ]


def span_update_row(span: Span) -> Row:
    """The changing columns of a stored span, and its number."""
    return (*_span_changes(span), span.number)


def _span_changes(span: Span) -> Row:
    floors = span.floors
    return (span.ends, span.idle, span.unattributed, span.unobserved, floors.empty, floors.resident)


def share_update_rows(span: Span) -> list[Row]:
    """The changing columns of a stored span's shares, and their keys."""
    return [
        (share.millijoules, share.resident, share.work, span.number, session)
        for session, share in span.shares.items()
    ]


def time_span_row(entry: JournalTimeSpan) -> Row:
    """A row of `time_spans`."""
    span = entry.span
    quarter = span.begins // QUARTER_MICROSECONDS
    return (span.number, quarter, span.gpu.uuid, entry.split, span.begins, span.ends, span.microseconds)


def gpu_time_row(entry: GpuTimeEntry) -> Row:
    """A row of `gpu_times`, without what is forgotten."""
    fields = time_fields(entry.time)
    posted = entry.time.posted - entry.span_length
    uuid, state = entry.time.gpu.uuid, _text(fields)
    own = (uuid, entry.basis, posted, entry.span, entry.base, entry.closed, state)
    return (*own, entry.first, entry.last)


def time_owner_row(one: TimeOwner) -> Row:
    """A row of `time_owners`."""
    return (one.number, one.device, _text(owner_fields(one.owner)), one.command, one.split)


def series_row(number: int, entry: SeriesEntry) -> Row:
    """A row of `series`."""
    counter = entry.counter
    process = None if entry.process is None else process_text(entry.process)
    return (number, entry.book, _text(entry.labels), process, counter.born, counter.alive == float("inf"))


def owner_row(key: ProcessKey, owner: Ownership) -> Row:
    """A row of `owners`."""
    return (
        *owner_key(key),
        process_text(owner.shown or owner.process),
        None if owner.owner is None else _text(owner_fields(owner.owner)),
        owner.since,
        owner.resolved,
        _text(dict(owner.waiting)),
        _text(sorted(owner.methods)),
    )


def owner_key(key: ProcessKey) -> Row:
    """The key of `owners`."""
    device, pid, *start = key
    return (device, pid, _text(start))


def process_text(process: GpuProcess) -> str:
    """A process as text, with the facts that its labels need.

    The driver's name is left out: it can hold arguments, and arguments can hold secrets.
    """
    host = process.host
    start = host.start
    facts = {
        "device": process.device.uuid,
        "pid": process.pid,
        "start": [start.boot_id, start.ticks, start.unix, start.seen],
        "command": process.command,
        "executable": host.executable,
        "comm": host.comm,
        "types": process.type_text,
        "uid": host.uid,
        "user": host.user,
        "workload": owner_fields(process.workload),
    }
    return _text(facts)


def workload_from_text(text: str | None) -> Workload | None:
    """The owner from a row of `owners`, None if it was unknown."""
    return None if text is None else owner_from_fields(json.loads(text))


def process_from_text(text: str, devices: Mapping[str, Device]) -> GpuProcess:
    """The inverse of `process_text`; raises KeyError if the Device is unknown."""
    facts = json.loads(text)
    boot, ticks, unix, seen = facts["start"]
    workload = owner_from_fields(facts["workload"])
    host = HostFacts(
        ProcessStart(boot, ticks, unix, seen), facts["executable"], facts["comm"], facts["uid"], facts["user"]
    )
    return GpuProcess(
        devices[facts["device"]],
        facts["pid"],
        host,
        _name(facts["command"]),
        _types(facts["types"]),
        workload=workload,
    )


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
