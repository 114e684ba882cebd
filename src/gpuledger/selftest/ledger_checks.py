"""Judge the accounts that the ledger made of the observation, and what a reading costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Final

from gpuledger.model.checks import Finding, Subject, fails, skipped, unknown, warning, works
from gpuledger.selftest.meters import format_time
from gpuledger.selftest.observation import BookedTotals, Observation, TickCost

ENERGY_ACCOUNTS: Final = Subject("selftest.energy_accounts", "accounts of energy")
TIME_ACCOUNTS: Final = Subject("selftest.time_accounts", "accounts of time")
COST: Final = Subject("selftest.cost", "cost of a reading")
_REPORT: Final = (
    "this is a defect of gpuledger: attach the report (--report FILE) and a recording to an issue"
)
# A reading may take this part of the interval, and this part of a CPU core.
_MOST_OF_INTERVAL: Final = 0.25
_MOST_OF_CORE: Final = 0.05
# Microseconds by which each exported series of time may be rounded.
_ROUNDING: Final = 1
# Seconds of clock readings at both ends of the observation.
_TIME_MARGIN: Final = 0.001


def check_energy_accounts(observation: Observation) -> Iterator[Finding]:
    """Check that all energy of the counters is in exactly one account."""
    booked = observation.booked
    if booked.error:
        yield fails(*ENERGY_ACCOUNTS, f"a reading cannot be posted: {booked.error}", _REPORT)
        return
    wrong = list(_find_imbalances(observation, booked))
    if wrong:
        yield fails(*ENERGY_ACCOUNTS, "; ".join(wrong), _REPORT)
    elif not booked.state.energy.totals:
        yield skipped(*ENERGY_ACCOUNTS, "no GPU has a meter")
    elif booked.rejected:
        why = f"{booked.rejected} readings of counters were implausible and are not booked"
        yield warning(
            *ENERGY_ACCOUNTS, why, "update the driver; attach the report (--report FILE) to an issue"
        )
    elif not any(booked.state.energy.totals.values()):
        why = "no energy could be booked: no meter moved while the process lists could be read"
        yield unknown(*ENERGY_ACCOUNTS, why, "see the other lines; then watch longer: --for 1m")
    else:
        joules = sum(booked.state.energy.totals.values()) / 1000
        yield works(
            *ENERGY_ACCOUNTS, f"{joules:.0f} J booked, all in exactly one account, as the counters rose"
        )


def _find_imbalances(observation: Observation, booked: BookedTotals) -> Iterator[str]:
    energy = booked.state.energy
    indexes = {reading.device.gpu.uuid: reading.device.gpu.index for reading in observation.last.values()}
    for uuid, missing in energy.imbalance.items():
        if missing:
            yield f"GPU {indexes.get(uuid, '?')}: {missing} mJ of the total are in no account"
    for uuid, counter in booked.counters.items():
        if counter.opening is None or counter.epoch_number:
            continue  # It did not move, or started again: its total is not one difference.
        rose, total = counter.booked - counter.opening, energy.totals.get(uuid, 0)
        if rose != total:
            yield f"GPU {indexes.get(uuid, '?')}: the counter rose by {rose} mJ, but {total} mJ are booked"


def check_time_accounts(observation: Observation) -> Iterator[Finding]:
    """Check that each second of each Gpu is in exactly one account."""
    time = observation.booked.state.time
    if observation.booked.error:
        yield skipped(*TIME_ACCOUNTS, f"because of: {ENERGY_ACCOUNTS.what}")
        return
    posted: Counter[str] = Counter(time.pending) + Counter(time.closed)
    rows: Counter[str] = Counter()
    for row in time.rows:
        posted[row.labels[0]] += row.microseconds
        rows[row.labels[0]] += 1
    wrong = {
        uuid: watched - posted[uuid]
        for uuid, watched in time.watched.items()
        if abs(watched - posted[uuid]) > _ROUNDING * max(rows[uuid], 1)
    }
    first, last = observation.snapshots[0], observation.snapshots[-1]
    seconds = last.elapsed - first.elapsed
    short = {
        uuid: watched / 1e6
        for uuid, watched in time.watched.items()
        if watched / 1e6 > seconds + _TIME_MARGIN
    }
    if wrong:
        yield fails(*TIME_ACCOUNTS, f"{sum(wrong.values())} µs of watched time are in no account", _REPORT)
    elif short:
        yield fails(*TIME_ACCOUNTS, f"more than the {seconds:.3f} s of the test were watched", _REPORT)
    elif not time.watched:
        yield unknown(*TIME_ACCOUNTS, "no time was watched", "watch longer: --for 1m")
    else:
        total = sum(time.watched.values()) / 1e6
        yield works(*TIME_ACCOUNTS, f"{total:.1f} GPU-seconds watched, all in exactly one account")


def median_cost(costs: tuple[TickCost, ...]) -> TickCost:
    """The medians of wall time, CPU time and calls."""
    return TickCost(
        median(cost.wall for cost in costs),
        median(cost.cpu for cost in costs),
        round(median(cost.calls for cost in costs)),
    )


def check_cost(observation: Observation) -> Iterator[Finding]:
    """Judge the cost of a reading as `serve` makes it."""
    cost = median_cost(observation.costs)
    interval = observation.interval
    share = cost.cpu / interval
    why = f"{format_time(cost.wall)}, {cost.calls} calls to the driver, {share:.2%} of a core"
    if cost.wall > _MOST_OF_INTERVAL * interval or share > _MOST_OF_CORE:
        remedy = (
            "enable persistence mode (`nvidia-smi -pm 1` as root) if it is off, or read less often: "
            f"--interval {max(2.0, 8 * cost.wall):.0f}s"
        )
        yield warning(*COST, why, remedy)
    else:
        yield works(*COST, why)
