"""What idle GPUs have cost this week: each node's own GPU time, at the prices of the fleet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlencode

from gpuledger.fleet.fleet_node import FleetNode
from gpuledger.fleet.node_client import NOT_WATCHED, NodeRequestFailed
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.moments import parse_whole_period
from gpuledger.ledger.report.money import round_decimal
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.source import Clock
from gpuledger.model.text import to_short_line

_LOG = logging.getLogger("gpuledger.fleet")

# Seconds between two readings, and for one answer: a report of a week over all of a node's ledger.
_INTERVAL: Final = 600.0
# Seconds until nodes that are new in the lists are read.
_NEW_INTERVAL: Final = 30.0
_TIMEOUT: Final = 60.0
# Nodes that are queried at the same time.
_TOGETHER: Final = 4
# Rows of an answer: more than a node has GPUs.
_LIMIT: Final = 1000
_SETTLED: Final = 3.0
_FOR_ALL_READERS: Final = "/api/v1/xids?gpu=0"


@dataclass(frozen=True, slots=True)
class IdleAmount:
    """Idle time and energy, in microseconds of whole GPUs and millijoules, and their cost in the currency.

    `held` is the time in which owners had GPUs without using them, in seconds of whole GPUs: owners of a
    shared GPU count separately. Costs are None without a price; `is_partly_priced` says that they lack the
    cost of GPUs without one, `lacks_energy` the same of the energy of nodes.
    """

    idle: int = 0
    millijoules: int = 0
    cost: Fraction | None = None
    held: float = 0.0
    held_cost: Fraction | None = None
    is_partly_priced: bool = False
    lacks_energy: bool = False

    def plus(self, other: IdleAmount) -> IdleAmount:
        """The sum; costs that are not known are left out."""
        return IdleAmount(
            self.idle + other.idle,
            self.millijoules + other.millijoules,
            _sum_known(self.cost, other.cost),
            self.held + other.held,
            _sum_known(self.held_cost, other.held_cost),
            self.is_partly_priced or other.is_partly_priced,
            self.lacks_energy or other.lacks_energy,
        )


def _sum_known(*costs: Fraction | None) -> Fraction | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Fraction(0)) if known else None


class IdleWeek:
    """Reads the idle time of all nodes since the week began, by the zone of the fleet's reports.

    `changed` is called after each reading.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[FleetNode]],
        prices: Prices,
        zone: tzinfo,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._nodes = nodes
        self._prices = prices
        self._list = PriceList(prices, zone)
        self._zone = zone
        self._clock = clock
        self._changed = changed
        self._amounts: dict[str, IdleAmount] = {}
        self._errors: dict[str, str] = {}
        self._since: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.create_task(self._keep_reading())

    async def stop(self) -> None:
        """End reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def read_once(self) -> None:
        """Query all nodes that are up; what a node that is not up has said this week is kept."""
        await self._read([node for node in self._nodes() if node.is_up])

    async def read_new(self) -> None:
        """Query the nodes that are up and were not queried yet."""
        if new := [node for node in self._nodes() if node.is_up and self._is_new(node.address.url)]:
            await self._read(new)

    def _is_new(self, key: str) -> bool:
        return key not in self._amounts and key not in self._errors

    async def _read(self, nodes: Sequence[FleetNode]) -> None:
        now = self._clock.unix()
        since, _ = parse_whole_period("week", "this week", now, self._zone)
        if since != self._since:
            self._since = since
            self._amounts.clear()
            self._errors.clear()
        limit = asyncio.Semaphore(_TOGETHER)
        await asyncio.gather(*(self._read_node(node, since, now, limit) for node in nodes))
        listed = {node.address.url for node in self._nodes()}
        self._amounts = {key: amount for key, amount in self._amounts.items() if key in listed}
        self._errors = {key: error for key, error in self._errors.items() if key in listed}
        self._changed()

    def fields(self, counted_elsewhere: frozenset[str] = frozenset()) -> dict[str, Any]:
        """The JSON of the sums. `counted_elsewhere` are URLs of nodes that are listed twice."""
        names = {
            node.address.url: node.name for node in self._nodes() if node.address.url not in counted_elsewhere
        }
        amounts = [self._amounts[key] for key in names if key in self._amounts]
        total = IdleAmount()
        for amount in amounts:
            total = total.plus(amount)
        missing = [key for key in names if key not in self._amounts]
        return {
            "since": self._since,
            "currency": self._list.currency,
            "nodes": len(amounts),
            "missing": [
                {"node": names[key], "reason": self._errors.get(key, "not read yet")} for key in missing
            ],
            "idle_gpu_microseconds": total.idle if amounts else None,
            "idle_millijoules": total.millijoules if amounts else None,
            "idle_cost": _money(total.cost),
            "held_gpu_seconds": round(total.held) if amounts else None,
            "held_cost": _money(total.held_cost),
            "notes": list(self._notes(total)),
        }

    def _notes(self, total: IdleAmount) -> Iterator[str]:
        """Sentences on what the costs leave out."""
        cells = (cell for node in self._nodes() if node.report is not None for cell in node.report.cells)
        if self._list.has_profiles and any(cell.instance for cell in cells):
            yield "MIG instances have the price of the whole GPU here, not that of their profile"
        if total.is_partly_priced:
            yield "Some of this GPU time has no price and is not in the cost"
        if total.lacks_energy:
            yield "Some of the idle energy has no price and is not in the cost"

    async def _keep_reading(self) -> None:
        # The first time when most nodes have been read once.
        await asyncio.sleep(_SETTLED)
        due = self._clock.elapsed()
        while True:
            try:
                if self._clock.elapsed() < due:
                    await self.read_new()
                else:
                    due = self._clock.elapsed() + _INTERVAL
                    await self.read_once()
            except Exception:  # noqa: BLE001  (see the log)
                _LOG.exception("the idle time of this week cannot be read")
            await asyncio.sleep(_NEW_INTERVAL)

    async def _read_node(self, node: FleetNode, since: float, now: float, limit: asyncio.Semaphore) -> None:
        key = node.address.url
        async with limit:
            try:
                # Only readers of everything get it. The report of another reader has no idle time at all.
                await node.client.request(_FOR_ALL_READERS)
                self._amounts[key] = await self._read_amount(node, since, now)
            except NodeRequestFailed as error:
                self._errors[key] = str(error)
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self._errors[key] = f"its report cannot be read: {to_short_line(error)}"
            else:
                self._errors.pop(key, None)

    async def _read_amount(self, node: FleetNode, since: float, now: float) -> IdleAmount:
        """The sum of the parts of the week in which the node read its GPUs. Raises NodeRequestFailed.

        A node that is new this week, or was off, has no data in some parts.
        """
        amounts, unwatched = list[IdleAmount](), None
        for begin, end in self._segments(since, now):
            ends = "now" if end >= now else f"{end:.0f}"
            query = urlencode({"by": "gpu", "since": f"{begin:.0f}", "until": ends, "limit": _LIMIT})
            try:
                answer = await node.client.request_json(f"/api/v1/energy?{query}", _TIMEOUT)
            except NodeRequestFailed as error:
                if error.kind != NOT_WATCHED:
                    raise
                unwatched = error
            else:
                amounts.append(self._priced(answer, node, int(begin // QUARTER)))
        if unwatched is not None and not amounts:
            raise unwatched
        return reduce(IdleAmount.plus, amounts, IdleAmount())

    def _segments(self, since: float, now: float) -> Iterator[tuple[float, float]]:
        """The parts of the week in which no price changes."""
        cuts = self._list.boundaries(int(since // QUARTER), int(now // QUARTER))
        yield from pairwise([since, *(float(cut * QUARTER) for cut in cuts), now])

    def _priced(self, answer: Any, node: FleetNode, quarter: int) -> IdleAmount:
        """The idle time and energy of a report by GPU. Raises what a malformed one raises."""
        total = IdleAmount()
        for row in answer["own"]:
            if row["account"] == "idle":
                part = _gpu_part(row)
                microseconds, millijoules = int(row["gpu_microseconds"] or 0), int(row["millijoules"] or 0)
                hours = Fraction(microseconds, MICROSECONDS_PER_HOUR)
                energy_cost = self._energy_cost(node, quarter, millijoules)
                cost = _sum_known(self._time_cost(part, node, quarter, hours), energy_cost)
                lacks = self._lacks_price(part, node, quarter) and microseconds > 0
                unpriced = self._list.has_kwh and energy_cost is None and millijoules > 0
                amount = IdleAmount(
                    microseconds, millijoules, cost, is_partly_priced=lacks, lacks_energy=unpriced
                )
                total = total.plus(amount)
        for row in answer["rows"]:
            held = float(row["held_gpu_seconds"] or 0)
            hours = Fraction(round(held), SECONDS_PER_HOUR)
            part = _gpu_part(row)
            cost = self._time_cost(part, node, quarter, hours)
            lacks = self._lacks_price(part, node, quarter) and held > 0
            total = total.plus(IdleAmount(held=held, held_cost=cost, is_partly_priced=lacks))
        return total

    def _time_cost(self, part: GpuPart, node: FleetNode, quarter: int, hours: Fraction) -> Fraction | None:
        price = self._list.gpu_hour(part, node.name, quarter)
        return None if price is None else price * hours

    def _lacks_price(self, part: GpuPart, node: FleetNode, quarter: int) -> bool:
        """Whether other GPUs have a price, and this one has none."""
        return self._list.has_gpu_hour and self._list.gpu_hour(part, node.name, quarter) is None

    def _energy_cost(self, node: FleetNode, quarter: int, millijoules: int) -> Fraction | None:
        price = self._list.kwh(node.name, quarter)
        if price is None:
            return None
        return price * self._list.pue(node.name, quarter) * millijoules / MILLIJOULES_PER_KWH


def _gpu_part(row: Mapping[str, Any]) -> GpuPart:
    """The GPU of a row by `gpu`: uuid, index, model. Under MIG it has the price of the whole GPU."""
    uuid, _, model = row["key"]
    return GpuPart(str(uuid), str(model))


def _money(cost: Fraction | None) -> str | None:
    return None if cost is None else f"{round_decimal(cost, 2):f}"
