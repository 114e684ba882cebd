"""Devices that are held without use now, with what that costs: values, and their JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpuledger.ledger.owners import user_of
from gpuledger.ledger.report.charges import unpriced_amount
from gpuledger.ledger.report.idle.release import find_release
from gpuledger.ledger.report.money import FILE_DIGITS, split_decimals
from gpuledger.ledger.report.usage_report import ReportLine
from gpuledger.model.devices import Device, Instance
from gpuledger.model.workload import Workload

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class IdleHold:
    """A Device that an owner has, and has not used since `begins` (unix seconds), for `seconds` that count.

    With `begins_earlier`, the ledger has no second before `begins`: it may have begun earlier. `key` are the
    names of the owner in a report by owner; `team` is empty without teams. `commands` and
    `pids` are those of its processes there; with none, the Device is only allocated to it. `line` is the row
    of a report of this owner on this Device from `priced_from` (unix seconds) to the last posting: all of it
    is time without use. None if that is less than a quarter of an hour.
    """

    device: Device
    owner: Workload
    key: tuple[str, ...]
    team: str
    begins: int
    seconds: int
    begins_earlier: bool = False
    pids: tuple[int, ...] = ()
    commands: tuple[str, ...] = ()
    priced_from: int | None = None
    line: ReportLine | None = None

    @property
    def cost(self) -> Fraction | None:
        """What it cost from `priced_from` on; None if that is not known or nothing has a price."""
        return None if self.line is None else self.line.cost


@dataclass(frozen=True, slots=True)
class IdleReport:
    """What is held without use at the last posting `until` (unix seconds), the most expensive first.

    `unjudged` is the number of owners on Devices of which it is not known whether they use them. `least` are
    the seconds from which on a hold is listed. `reader` is the user if it has only rows of that user, else
    empty.
    """

    node: str
    until: float
    holds: Sequence[IdleHold]
    unjudged: int
    least: float
    basis: str
    currency: str
    has_price: bool
    reader: str = ""
    notes: Sequence[str] = ()


def idle_json(report: IdleReport) -> dict[str, Any]:
    """The report as JSON. Money has ten decimals and adds up to its exact total, rounded half up."""
    return {
        "version": VERSION,
        "node": report.node,
        "reader": report.reader,
        "until": report.until,
        "least_seconds": report.least,
        "basis": report.basis,
        "currency": report.currency,
        "has_price": report.has_price,
        "unjudged": report.unjudged,
        "holds": holds_json(report.holds),
        **_total(report.holds),
        "notes": list(report.notes),
    }


def holds_json(holds: Sequence[IdleHold]) -> list[dict[str, Any]]:
    """The rows of these holds."""
    money = {
        name: _decimals([getattr(one.line, name, None) for one in holds])
        for name in ("time_cost", "energy_cost", "cost")
    }
    return [
        {**_hold_json(one), **{name: texts[place] for name, texts in money.items()}}
        for place, one in enumerate(holds)
    ]


def _hold_json(one: IdleHold) -> dict[str, Any]:
    device, owner, line = one.device, one.owner, one.line
    release = find_release(owner, one.pids)
    return {
        "kind": owner.kind,
        "namespace": owner.namespace,
        "owner": one.key[-1],
        "user": user_of(owner),
        "job_name": owner.job_name,
        "team": one.team,
        "explain": f"owner:{'/'.join(part for part in one.key if part)}",
        "uuid": device.gpu.uuid,
        "gpu": str(device.gpu.index),
        "instance": device.instance,
        "device_uuid": device.uuid,
        "name": device.gpu.name,
        "profile": device.profile if isinstance(device, Instance) else "",
        "idle_since": one.begins,
        "idle_earlier": one.begins_earlier,
        "idle_seconds": one.seconds,
        "pids": list(one.pids),
        "commands": list(one.commands),
        "priced_from": one.priced_from,
        "gpu_microseconds": None if line is None else line.gpu_microseconds,
        "millijoules": None if line is None else line.energy,
        "unpriced_microseconds": None if line is None else line.unpriced_microseconds,
        "unpriced_millijoules": _unpriced_energy(line),
        "release": release.command,
        "release_note": release.note,
    }


def _unpriced_energy(line: ReportLine | None) -> int | None:
    charges = None if line is None else line.energy_charges
    return None if charges is None else unpriced_amount(charges)


def _total(holds: Sequence[IdleHold]) -> dict[str, Any]:
    known = [cost for one in holds if (cost := one.cost) is not None]
    (total,) = _decimals([sum(known, Fraction(0))]) if known else (None,)
    lines = [one.line for one in holds if one.line is not None]
    return {
        "total_cost": total,
        "total_gpu_microseconds": sum(line.gpu_microseconds or 0 for line in lines),
    }


def _decimals(amounts: Sequence[Fraction | None]) -> list[str | None]:
    """Amounts as texts with ten decimals that add up to their exact sum, rounded half up."""
    rounded = iter(split_decimals([one for one in amounts if one is not None], FILE_DIGITS))
    return [None if one is None else format(next(rounded), "f") for one in amounts]
