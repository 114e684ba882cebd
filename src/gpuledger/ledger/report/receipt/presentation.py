"""What a receipt shows to people, in the same words in the terminal, in Markdown and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from gpuledger.ledger.report.receipt.content import (
    ABOUT,
    AT_MOST,
    Amounts,
    ReceiptAdvice,
    ReceiptGpu,
    ReceiptHost,
    ReceiptJson,
    gpu_label,
    is_cut_off,
)
from gpuledger.ledger.report.receipt.sentence import lacks_energy
from gpuledger.ledger.report.receipt.wording import (
    UNKNOWN,
    bytes_text,
    clock_text,
    co2_text,
    duration_text,
    energy_text,
    hours_text,
    money_text,
    ratio_text,
    receipt_zone,
    span_text,
)
from gpuledger.ledger.watched_time import MICRO

_MOST_NAMED: Final = 4
# How a saving is introduced.
_SAVES: Final = {ABOUT: "saves about", AT_MOST: "saves at most"}


@dataclass(frozen=True, slots=True)
class ReceiptFact:
    """A number of the head: its name, the number, and words beside it."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BarRow:
    """The bars of one device: ratios from 0 to 1, None where it is not known, -1 where it was not there."""

    label: str
    ratios: tuple[float | None, ...]


# The owner did not have the device.
ABSENT: Final = -1.0


@dataclass(frozen=True, slots=True)
class ShownTable:
    """Headings and rows of text; the first `names` columns are names, the others numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int


@dataclass(frozen=True, slots=True)
class ShownAdvice:
    """One piece of advice, its evidence and what it would save, empty if that is not known."""

    rule: str
    text: str
    evidence: tuple[str, ...]
    saving: str


@dataclass(frozen=True, slots=True)
class ShownReceipt:
    """A receipt as texts. `bars` has a row for each device, with `bar_text` below; both can be empty."""

    title: str
    period: str
    scope: str
    facts: tuple[ReceiptFact, ...]
    gpus: ShownTable
    bars: tuple[BarRow, ...]
    bar_text: str
    owners: ShownTable | None
    processes: tuple[str, ...]
    advice: tuple[ShownAdvice, ...]
    notes: tuple[str, ...]


def show_receipt(receipt: ReceiptJson) -> ShownReceipt:
    """The texts of a receipt."""
    zone = receipt_zone(receipt["zone"])
    bars = _bars(receipt)
    return ShownReceipt(
        title=_title(receipt),
        period=_period(receipt, zone),
        scope=_scope(receipt, zone),
        facts=tuple(_facts(receipt)),
        gpus=_gpu_table(receipt),
        bars=bars,
        bar_text=_bar_text(receipt, zone) if bars else "",
        owners=_owner_table(receipt),
        processes=tuple(_processes(receipt, zone)),
        advice=tuple(_advice(one, receipt["currency"]) for one in receipt["advice"]),
        notes=tuple(_notes(receipt)),
    )


def _title(receipt: ReceiptJson) -> str:
    """The target, what is known of its owner, and the nodes."""
    owner, nodes = receipt["owner"], receipt["nodes"]
    name = receipt["who"]["name"]
    if owner is not None:
        facts = [owner["job_name"], owner["user"] and f"of {owner['user']}"] if owner["job"] else []
        name = " ".join(filter(None, (name, *facts)))
        # The last task of an array has the number of the array, of which this receipt has one task.
        array, task = owner["array_job"], owner["array_task"]
        more = [f"task {task} of array {array}"] if array and task else []
        more += [
            f"{word} {owner[key]}"
            for key, word in (("slurm_account", "account"), ("partition", "partition"))
            if owner[key]
        ]
        name += f" ({', '.join(more)})" if more else ""
    where = ", ".join(nodes) if len(nodes) <= _MOST_NAMED else f"{len(nodes)} nodes"
    return f"{name} on {where}" if where else name


def _period(receipt: ReceiptJson, zone: tzinfo) -> str:
    begins, ends = receipt["begins"], receipt["ends"]
    if begins is None or ends is None:
        return "no time was seen with the GPUs"
    state = "not ended" if receipt["running"] else "ended"
    if state == "ended" and is_cut_off(receipt, ends):
        state = "up to the end of the range"
    longer = " or longer" if any(gpu["begun_before"] for gpu in receipt["gpus"]) else ""
    return f"{span_text(begins, ends, zone)} ({duration_text(ends - begins)}{longer}), {state}"


def _scope(receipt: ReceiptJson, zone: tzinfo) -> str:
    prices = f", price list {receipt['price_list']}" if receipt["price_list"] else ""
    return (
        f"range {span_text(receipt['since'], receipt['until'], zone)}, GPU time by {receipt['basis']}{prices}"
    )


def _facts(receipt: ReceiptJson) -> Iterator[ReceiptFact]:
    total, currency = receipt["total"], receipt["currency"]
    left_out = "+" if lacks_energy(receipt) else ""
    if total["cost"] is not None:
        parts = [
            f"{name} {money_text(amount, '')}"
            for name, amount in (("GPU time", total["time_cost"]), ("energy", total["energy_cost"]))
            if amount is not None
        ]
        value = _cost_text(total, receipt, currency, is_measured=not left_out)
        yield ReceiptFact("cost", value, ", ".join(parts) if len(parts) > 1 else "")
    mark = "~" if total["estimated_microseconds"] else ""
    yield ReceiptFact("GPU-hours", hours_text(total["gpu_microseconds"]) + mark, _hours_detail(total))
    detail = _energy_detail(total) + (", without GPUs that were not measured" if left_out else "")
    yield ReceiptFact("energy", energy_text(total["millijoules"]) + left_out, detail)
    if total["co2_grams"] is not None:
        yield ReceiptFact("CO2", co2_text(total["co2_grams"]))
    yield from _traffic(receipt)
    # Of several owners each has its own cgroup.
    for host in receipt["hosts"] if receipt["owner"] is not None else ():
        where = f" {host['node']}" if len(receipt["nodes"]) > 1 else ""
        yield ReceiptFact(f"CPU{where}", _cpu_text(host), _host_memory_text(host))


def _hours_detail(total: Amounts) -> str:
    """The hours that are not billed but seen: allocated, with an engine busy, idle, unknown."""
    names = (("allocated_seconds", "allocated"), ("active_seconds", "active"), ("held_seconds", "idle"))
    found = [(total[key], name) for key, name in names]  # type: ignore[literal-required]  # fields of Amounts
    parts = [f"{hours_text(seconds * MICRO)} {name}" for seconds, name in found if seconds is not None]
    if total["unknown_seconds"]:
        parts.append(f"{hours_text(total['unknown_seconds'] * MICRO)} of unknown activity")
    return ", ".join(parts)


def _energy_detail(total: Amounts) -> str:
    """The bounds that need no model."""
    low, high = total["measured_millijoules"], total["high_millijoules"]
    if total["millijoules"] is None or low is None:
        return "" if total["millijoules"] is not None else "the GPUs were not measured"
    if low == total["millijoules"]:
        return "measured"
    least = f"at least {energy_text(low)}"
    return least if high is None else f"{least}, at most {energy_text(high)}"


def _cpu_text(host: ReceiptHost) -> str:
    cpu, cores, seconds = host["cpu_seconds"], host["cores"], host["seconds"]
    if cpu is None:
        return UNKNOWN
    if not cores or not seconds:
        return f"{hours_text(cpu * MICRO)} core-hours"
    had = cores * seconds
    part = ratio_text(min(cpu / had, 1.0))
    return f"{hours_text(cpu * MICRO)} of {hours_text(had * MICRO)} core-hours ({part})"


def _host_memory_text(host: ReceiptHost) -> str:
    if host["memory_peak_bytes"] is None:
        return ""
    limit = host["memory_limit_bytes"]
    return f"memory of the node at most {bytes_text(host['memory_peak_bytes'])}" + (
        "" if limit is None else f" of {bytes_text(limit)}"
    )


def _gpu_table(receipt: ReceiptJson) -> ShownTable:
    """A row for each device. Columns without any value are omitted."""
    gpus = receipt["gpus"]
    has_money = receipt["total"]["cost"] is not None
    money = f"cost {receipt['currency']}".rstrip()
    columns: list[tuple[str, list[str]]] = [
        ("GPU", [gpu_label(gpu, receipt["nodes"]) for gpu in gpus]),
        ("model", [_model(gpu) for gpu in gpus]),
        ("GPU-hours", [hours_text(gpu["gpu_microseconds"]) for gpu in gpus]),
        ("active", [ratio_text(_active_ratio(gpu)) for gpu in gpus]),
        ("SM mean", [ratio_text(gpu["sm_mean"]) for gpu in gpus]),
        ("SM peak", [ratio_text(gpu["sm_peak"]) for gpu in gpus]),
        ("memory", [_memory(gpu) for gpu in gpus]),
        ("throttled", [_throttled(gpu) for gpu in gpus]),
        ("energy", [energy_text(gpu["millijoules"]) for gpu in gpus]),
    ]
    if has_money:
        columns.append((money, [_row_cost(gpu, receipt) for gpu in gpus]))
    shown = columns[:4] + [one for one in columns[4:] if any(cell != UNKNOWN for cell in one[1])]
    return ShownTable(
        tuple(heading for heading, _ in shown), tuple(zip(*(cells for _, cells in shown), strict=True)), 2
    )


def _row_cost(row: Amounts, receipt: ReceiptJson) -> str:
    return _cost_text(row, receipt, is_measured=row["millijoules"] is not None)


def _cost_text(row: Amounts, receipt: ReceiptJson, currency: str = "", *, is_measured: bool) -> str:
    """The cost of a row, marked if it is without a part that has no price, or was not measured."""
    unmeasured = not is_measured and receipt["total"]["energy_cost"] is not None
    lacks = row["unpriced_microseconds"] or row["unpriced_millijoules"] or unmeasured
    return money_text(row["cost"], currency) + ("+" if lacks and row["cost"] is not None else "")


def _model(gpu: ReceiptGpu) -> str:
    return " ".join(filter(None, (gpu["model"].removeprefix("NVIDIA "), gpu["profile"]))) or gpu["uuid"]


def _active_ratio(gpu: ReceiptGpu) -> float | None:
    """The part of its time on the device in which an engine was busy; None if that is not known."""
    active, had = gpu["active_seconds"], gpu["present_seconds"] * gpu["sm_share"]
    return None if active is None or not had else min(active / had, 1.0)


def _memory(gpu: ReceiptGpu) -> str:
    if gpu["memory_peak_bytes"] is None:
        return UNKNOWN
    size = gpu["memory_bytes"]
    return bytes_text(gpu["memory_peak_bytes"]) + ("" if size is None else f" of {bytes_text(size)}")


def _throttled(gpu: ReceiptGpu) -> str:
    """The part of the time with reduced clocks, for the reason with the most of it."""
    known = gpu["throttle_known_seconds"]
    if not known:
        return UNKNOWN
    reason, seconds = max(gpu["throttled"].items(), key=lambda one: one[1], default=("", 0.0))
    return f"{ratio_text(min(seconds / known, 1.0))} {reason.replace('_', ' ')}".strip()


def _traffic(receipt: ReceiptJson) -> Iterator[ReceiptFact]:
    """The traffic of all GPUs of which it is known."""
    found = []
    for link, word in (("pcie", "PCIe"), ("nvlink", "NVLink")):
        ways = []
        for way, where in (("rx", "in"), ("tx", "out")):
            known = [gpu[f"{link}_{way}_bytes"] for gpu in receipt["gpus"]]  # type: ignore[literal-required]
            amounts = [amount for amount in known if amount is not None]
            ways += [f"{bytes_text(sum(amounts))} {where}"] if amounts else []
        found += [f"{word} {', '.join(ways)}"] if ways else []
    if found:
        yield ReceiptFact("traffic", found[0], "".join(found[1:]))


def _bars(receipt: ReceiptJson) -> tuple[BarRow, ...]:
    if receipt["bars"] is None:
        return ()
    by_use = _has_utilization(receipt)
    return tuple(
        BarRow(gpu_label(gpu, receipt["nodes"]), _ratios(gpu, by_use=by_use)) for gpu in receipt["gpus"]
    )


def _has_utilization(receipt: ReceiptJson) -> bool:
    return any(one is not None for gpu in receipt["gpus"] for one in gpu["bars"]["utilization"])


def _ratios(gpu: ReceiptGpu, *, by_use: bool) -> tuple[float | None, ...]:
    """SM utilization where it is known, else the part of the time in which an engine was busy."""
    bars = gpu["bars"]
    found: list[float | None] = []
    for place, present in enumerate(bars["present"]):
        used = bars["utilization"][place] if by_use else None
        if not present:
            found.append(ABSENT)
        elif used is not None:
            found.append(min(used, 1.0))
        elif by_use if bars["active"][place] else bars["unknown"][place]:
            # Used for an unknown part, or perhaps used.
            found.append(None)
        else:
            found.append(bars["active"][place] / present)
    return tuple(found)


def _bar_text(receipt: ReceiptJson, zone: tzinfo) -> str:
    scale = receipt["bars"]
    assert scale is not None
    what = "mean utilization" if _has_utilization(receipt) else "part of the time with a busy engine"
    return f"{what}, {duration_text(scale['step_seconds'])} a bar, from {clock_text(scale['begins'], zone)}"


def _owner_table(receipt: ReceiptJson) -> ShownTable | None:
    """A row for each of several owners."""
    owners = receipt["owners"]
    if not owners:
        return None
    has_money = receipt["total"]["cost"] is not None
    rows = [
        (
            owner["name"],
            hours_text(owner["gpu_microseconds"]),
            energy_text(owner["millijoules"]),
            *([_row_cost(owner, receipt)] if has_money else []),
            owner["explain"],
        )
        for owner in owners
    ]
    cost = [f"cost {receipt['currency']}".rstrip()] if has_money else []
    return ShownTable(("owner", "GPU-hours", "energy", *cost, "its receipt"), tuple(rows), 1)


def _processes(receipt: ReceiptJson, zone: tzinfo) -> Iterator[str]:
    several = len(receipt["nodes"]) > 1
    for one in receipt["processes"]:
        place = one["gpu"] + (f"/{one['instance']}" if one["instance"] else "")
        where = f"{one['node']}:{place}" if several else place
        when = span_text(one["begins"], one["ends"], zone)
        if one["running"]:
            when = f"running since {clock_text(one['begins'], zone)}"
        yield f"pid {one['pid']} {one['command'] or '?'} on GPU {where}, {when}"
    if receipt["processes_omitted"]:
        more = f"gpuledger explain {receipt['who']['explain']}"
        count = receipt["processes_omitted"]
        yield f"and {count} more process{'' if count == 1 else 'es'}: `{more}`"


def _advice(one: ReceiptAdvice, currency: str) -> ShownAdvice:
    return ShownAdvice(one["rule"], one["text"], tuple(one["evidence"]), _saving(one, currency))


def _saving(one: ReceiptAdvice, currency: str) -> str:
    saving = one["saving"]
    if saving is None:
        return ""
    cost = "" if saving["cost"] is None else f", {money_text(saving['cost'], currency)} of GPU time"
    return f"{_SAVES.get(saving['kind'], 'saves')} {hours_text(saving['gpu_microseconds'])} GPU-hours{cost}"


def _notes(receipt: ReceiptJson) -> Iterator[str]:
    if receipt["simulated"]:
        yield "Data of a simulator or a recording, not of hardware."
    yield from receipt["notes"]
    savings: Sequence[ReceiptAdvice] = [one for one in receipt["advice"] if one["saving"] is not None]
    if len(savings) > 1:
        yield "Each saving is of one change alone: they can overlap."
    if receipt["owners_omitted"]:
        more = receipt["owners_omitted"]
        owners = "1 more owner is" if more == 1 else f"{more} more owners are"
        yield f"{owners} not listed: `gpuledger report` has all."
