"""Values as rows, and rows as values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.ledger.allocation_times import Handover
from gpuledger.ledger.journal import GpuEntry, SeriesEntry
from gpuledger.ledger.ownership import Ownership, owner_from, owner_words
from gpuledger.ledger.sessions import OpenSession
from gpuledger.ledger.spans import Span
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import GpuProcess, HostFacts, ProcessKey, ProcessType, Start
from gpuledger.model.workload import UNKNOWN, Workload

Row = tuple[Any, ...]
# Of `sessions`; those of `usage` but its number follow where both are asked for.
SESSION_COLUMNS = 34


def device_row(device: Device) -> Row:
    """A row of `devices`."""
    gpu = device.gpu
    own: Row = (None,) * 4
    if isinstance(device, Instance):
        own = (device.gi, device.ci, device.index, device.profile)
    return (device.uuid, gpu.uuid, gpu.index, gpu.name, gpu.pci_bus_id, device.sm_count, *own)


def devices_of(rows: Sequence[Row]) -> dict[str, Device]:
    """Devices by uuid out of rows of `devices`; an Instance whose Gpu is unknown has one made for it."""
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


def gpu_row(entry: GpuEntry) -> Row:
    """A row of `gpus`."""
    counter = entry.counter
    return (
        entry.uuid,
        counter.life,
        counter.epoch.boot_id,
        counter.epoch.driver_load,
        counter.opening,
        counter.booked,
        counter.last,
        counter.last_at,
        counter.refresh,
        entry.last_unix,
        entry.total,
        entry.base,
        entry.closed,
    )


def session_row(one: OpenSession) -> Row:
    """A row of `sessions`."""
    process, host, owner = one.process, one.process.host, one.process.workload
    device, start = process.device, host.start
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
        owner.kind,
        owner.namespace,
        owner.pod,
        owner.container,
        owner.pod_uid,
        owner.container_id,
        owner.runtime,
        owner.job,
        owner.step,
        owner.unit,
        owner.user,
        owner.found_by,
        owner.missing,
        one.first_seen,
        _text(owner.labels),
        owner.controller_kind,
        owner.controller,
    )


def usage_row(one: OpenSession) -> Row:
    """A row of `usage`."""
    exit_seen = one.ended is not None and one.watched
    return (one.number, one.last_seen, one.ended, exit_seen, *_used(one))


def going_on_row(one: OpenSession) -> Row:
    """What changes in the row of `usage` while a Session is open, and its number."""
    return (one.last_seen, *_used(one), one.number)


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
        one.stay.lowest,
        one.stay.highest,
        one.stay.begins,
        one.stay.count,
    )


def session_of(row: Row, devices: Mapping[str, Device]) -> OpenSession:
    """An open Session out of its rows of `sessions` and `usage`: nobody has seen it in this run yet."""
    number, uuid, gpu, index, instance, pid, boot, ticks, seen, started = row[:10]
    command, executable, comm, types, uid, login, gone = row[10:17]
    device = devices.get(uuid) or _lost_device(uuid, gpu, index, instance)
    usage = row[SESSION_COLUMNS:]
    last, _, _, peak, sm_seconds, sm_known, sm_most, held, measured, apportioned, high = usage[:11]
    host = HostFacts(Start(boot, ticks, started, seen), executable, comm, uid, login, missing=gone)
    owner = owner_of(row)
    process = GpuProcess(device, pid, host, _name(command), _types(types), workload=owner)
    found = OpenSession(
        process,
        row[30],
        last,
        peak,
        sm_seconds,
        sm_known,
        sm_most,
        held,
        measured,
        apportioned,
        high,
        number=number,
        watched=False,
        changed=False,
        renamed=False,
        stored=True,
    )
    stay = found.stay
    stay.lowest, stay.highest, stay.begins, stay.count = usage[11:]
    return found


def owner_of(row: Row) -> Workload:
    """The owner out of a row of `sessions`, whose columns stand in the order of Workload's fields."""
    return Workload(*(*row[17:30], labels_of(row[31]), *row[32:34]))


def labels_of(text: str) -> tuple[tuple[str, str], ...]:
    """Pod labels out of a column."""
    return () if text == "[]" else tuple((name, value) for name, value in json.loads(text))


def handover_row(one: Handover) -> Row:
    """A row of `handovers`."""
    return (one.number, one.device.uuid, _text(owner_words(one.owner)), one.begins, one.ends, one.over)


def handover_of(row: Row, devices: Mapping[str, Device]) -> Handover:
    """One in force out of its row; raises KeyError when its Device is not known."""
    number, uuid, owner, begins, ends, _ = row
    workload = workload_of(owner) or UNKNOWN
    return Handover(devices[uuid], workload, begins, ends, number, changed=False, stored=True)


def _lost_device(uuid: str, gpu: str, index: int, instance: str) -> Device:
    parent = Gpu(gpu, index)
    if not instance:
        return parent
    gi, _, ci = instance.partition("_")
    return Instance(uuid, parent, int(gi), int(ci), 0)


def _name(command: str) -> str:
    """A driver's name that gives the same command again; else executable and comm give it by themselves."""
    return "" if "/" in command or any(char.isspace() for char in command) else command


def _types(text: str) -> frozenset[ProcessType]:
    return frozenset(ProcessType(word) for word in text.split("+") if word)


def span_row(span: Span) -> Row:
    """A row of `spans`."""
    return (
        span.number,
        span.uuid,
        span.life,
        span.method,
        span.begins,
        span.ends,
        span.idle,
        span.unattributed,
        span.unobserved,
        span.floors.empty,
        span.floors.resident,
        span.hour,
    )


def new_shares(span: Span) -> list[Row]:
    """Rows of `shares` for a span that is not stored yet."""
    return [
        (span.number, session, share.millijoules, share.resident, share.work)
        for session, share in span.shares.items()
    ]


def longer_span(span: Span) -> Row:
    """What changes in a span that is stored, and its number."""
    floors = span.floors
    own = (span.idle, span.unattributed, span.unobserved)
    return (span.ends, *own, floors.empty, floors.resident, span.number)


def grown_shares(span: Span) -> list[Row]:
    """What changes in its shares, and their keys."""
    return [
        (share.millijoules, share.resident, share.work, span.number, session)
        for session, share in span.shares.items()
    ]


def series_row(number: int, entry: SeriesEntry) -> Row:
    """A row of `series`."""
    held = entry.held
    process = None if entry.process is None else process_text(entry.process)
    return (number, entry.book, _text(entry.labels), process, held.born, held.alive == float("inf"))


def owner_row(key: ProcessKey, owner: Ownership) -> Row:
    """A row of `owners`."""
    return (
        *owner_key(key),
        process_text(owner.shown or owner.process),
        None if owner.owner is None else _text(owner_words(owner.owner)),
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
    """A process as its labels need it. The driver's name can hold arguments, and those hold secrets."""
    host = process.host
    start = host.start
    told = {
        "device": process.device.uuid,
        "pid": process.pid,
        "start": [start.boot_id, start.ticks, start.unix, start.seen],
        "command": process.command,
        "executable": host.executable,
        "comm": host.comm,
        "types": process.type_text,
        "uid": host.uid,
        "user": host.user,
        "workload": owner_words(process.workload),
    }
    return _text(told)


def workload_of(text: str | None) -> Workload | None:
    """The owner of a row of `owners`, None where it was not known."""
    return None if text is None else owner_from(json.loads(text))


def process_of(text: str, devices: Mapping[str, Device]) -> GpuProcess:
    """What `process_text` made a text of; raises KeyError when its Device is not known."""
    told = json.loads(text)
    boot, ticks, unix, seen = told["start"]
    workload = owner_from(told["workload"])
    host = HostFacts(
        Start(boot, ticks, unix, seen), told["executable"], told["comm"], told["uid"], told["user"]
    )
    return GpuProcess(
        devices[told["device"]],
        told["pid"],
        host,
        _name(told["command"]),
        _types(told["types"]),
        workload=workload,
    )


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
