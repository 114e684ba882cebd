"""The driver's per-process samples, from the recent history of one Gpu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpuledger.model.process import Usage, UtilizationSample
from gpuledger.sources.simulator.meter import HISTORY, Stretch
from gpuledger.sources.simulator.power import Draw
from gpuledger.sources.simulator.scenario import SECOND, WHOLE
from gpuledger.sources.simulator.timeline import Phase, Run

# Whole percents of sm, memory, encoder and decoder, as the driver tells them.
Percents = tuple[int, int, int, int]

_POINT = WHOLE // 100


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the driver's buffer says at one read.

    `samples` ended since the last read; `usage` is the mean per Run over the same periods (of the last whole
    one when none ended since), a Run that is not in it was quiet; `busy` is the Gpu in the last whole period.
    Before the first period has ended the present moment stands for it: the node did not begin with us.
    """

    samples: tuple[UtilizationSample, ...]
    usage: dict[Run, Usage]
    busy: Usage

    def usage_of(self, run: Run) -> Usage:
        """The mean usage of one Run: zero when it had no sample."""
        return self.usage.get(run, _IDLE)


_IDLE = Usage(sm=0.0, memory=0.0, encoder=0.0, decoder=0.0)


def sample(
    history: Sequence[Stretch], now: tuple[Phase, Draw], rate: int, after: int, until: int
) -> Sampling:
    """Samples of the periods that ended in `(after, until]`, `rate` periods to the second."""
    last = _ended(until, rate)
    first = max(_ended(after, rate), _ended(max(0, until - HISTORY), rate))
    numbers = range(first + 1, last + 1) if last > first else range(last, last + 1)
    periods = _periods(history, rate, numbers) if last else [_mean([(1, *now)], 1)]
    samples: list[UtilizationSample] = []
    sums: dict[Run, list[int]] = {}
    period: dict[Run, Percents] = {}
    for number, period in zip(numbers, periods, strict=True):
        at = number * SECOND // rate
        for run, percents in period.items():
            sm, memory, encoder, decoder = percents
            total = sums.setdefault(run, [0, 0, 0, 0])
            total[0] += sm
            total[1] += memory
            total[2] += encoder
            total[3] += decoder
            if last > first:
                samples.append(
                    UtilizationSample(run.pid, at, sm / 100, memory / 100, encoder / 100, decoder / 100)
                )
    scale = 100 * len(numbers)
    usage = {run: Usage(*(amount / scale for amount in total)) for run, total in sums.items()}
    busy = [min(100, sum(percents[engine] for percents in period.values())) / 100 for engine in range(4)]
    return Sampling(tuple(samples), usage, Usage(*busy))


def _ended(at: int, rate: int) -> int:
    # The number of periods that have ended: the greatest n with floor(n * SECOND / rate) <= at.
    return (rate * (at + 1) - 1) // SECOND


def _periods(history: Sequence[Stretch], rate: int, numbers: range) -> list[dict[Run, Percents]]:
    found = []
    known: dict[int, dict[Run, Percents]] = {}
    earliest = (numbers[0] - 1) * SECOND // rate
    stretches = list(takewhile(lambda stretch: stretch[1] > earliest, reversed(history)))[::-1]
    index = 0
    for number in numbers:
        begin, end = (number - 1) * SECOND // rate, number * SECOND // rate
        while index < len(stretches) and stretches[index][1] <= begin:
            index += 1
        within = index
        parts: list[tuple[int, Phase, Draw]] = []
        while within < len(stretches) and stretches[within][0] < end:
            start, stop, phase, drawn = stretches[within]
            if parts and parts[-1][2] is drawn:
                parts[-1] = (parts[-1][0] + min(stop, end) - start, phase, drawn)
            else:
                parts.append((min(stop, end) - max(start, begin), phase, drawn))
            within += 1
        if len(parts) == 1:
            drawn = parts[0][2]
            if id(drawn) not in known:
                known[id(drawn)] = _mean(parts, parts[0][0])
            found.append(known[id(drawn)])
        else:
            found.append(_mean(parts, end - begin))
    return found


def _mean(parts: list[tuple[int, Phase, Draw]], lasting: int) -> dict[Run, Percents]:
    sums: dict[Run, list[int]] = {}
    for length, phase, drawn in parts:
        for seat, used in zip(phase.seats, drawn.engines, strict=True):
            total = sums.setdefault(seat.run, [0, 0, 0, 0])
            total[0] += used.sm * length
            total[1] += used.memory * length
            total[2] += used.encoder * length
            total[3] += used.decoder * length
    unit = 2 * lasting * _POINT
    found: dict[Run, Percents] = {}
    for run, total in sums.items():
        sm, memory, encoder, decoder = ((2 * amount + unit // 2) // unit for amount in total)
        if sm or memory or encoder or decoder:
            found[run] = (sm, memory, encoder, decoder)
    return found
