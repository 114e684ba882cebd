"""The driver's per-process utilization samples, computed from the recent history of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpuledger.model.process import Usage, UtilizationSample
from gpuledger.sources.simulator.gpu_timeline import Phase, ProcessRun
from gpuledger.sources.simulator.meter import HISTORY, PowerSegment
from gpuledger.sources.simulator.power import PowerDraw
from gpuledger.sources.simulator.scenario import SECOND, WHOLE

# Integer percentages of sm, memory, encoder and decoder, as the driver reports them.
Percents = tuple[int, int, int, int]

_POINT = WHOLE // 100


@dataclass(frozen=True, slots=True)
class SampledUsage:
    """The driver's sample buffer at one read.

    `samples` are those that ended since the last read. `usage` is the mean of each run over the same periods
    (over the last complete period if none ended since); a run that is not in it was quiet. `busy` is the
    usage of the GPU in the last complete period. Until the first period ends, the current usage is used,
    because the node existed before time 0.
    """

    samples: tuple[UtilizationSample, ...]
    usage: dict[ProcessRun, Usage]
    busy: Usage

    def usage_of(self, run: ProcessRun) -> Usage:
        """Return the mean usage of one run; zero without samples."""
        return self.usage.get(run, _IDLE)


_IDLE = Usage(sm=0.0, memory=0.0, encoder=0.0, decoder=0.0)


def sample_usage(
    history: Sequence[PowerSegment], now: tuple[Phase, PowerDraw], rate: int, after: int, until: int
) -> SampledUsage:
    """Compute the samples of the periods that ended in `(after, until]`, at `rate` periods per second."""
    last = _count_ended_periods(until, rate)
    first = max(_count_ended_periods(after, rate), _count_ended_periods(max(0, until - HISTORY), rate))
    numbers = range(first + 1, last + 1) if last > first else range(last, last + 1)
    periods = _average_periods(history, rate, numbers) if last else [_average_usage([(1, *now)], 1)]
    samples: list[UtilizationSample] = []
    sums: dict[ProcessRun, list[int]] = {}
    period: dict[ProcessRun, Percents] = {}
    for number, period in zip(numbers, periods, strict=True):
        at = number * SECOND // rate
        for run, percents in period.items():
            _add_to(sums, run, percents, 1)
            if last > first:
                samples.append(UtilizationSample(run.pid, at, *[percent / 100 for percent in percents]))
    scale = 100 * len(numbers)
    usage = {run: Usage(*(amount / scale for amount in total)) for run, total in sums.items()}
    busy = [min(100, sum(percents[engine] for percents in period.values())) / 100 for engine in range(4)]
    return SampledUsage(tuple(samples), usage, Usage(*busy))


def _count_ended_periods(at: int, rate: int) -> int:
    # The greatest n with floor(n * SECOND / rate) <= at.
    return (rate * (at + 1) - 1) // SECOND


def _average_periods(
    history: Sequence[PowerSegment], rate: int, numbers: range
) -> list[dict[ProcessRun, Percents]]:
    found = []
    known: dict[int, dict[ProcessRun, Percents]] = {}
    earliest = (numbers[0] - 1) * SECOND // rate
    segments = list(takewhile(lambda segment: segment[1] > earliest, reversed(history)))[::-1]
    index = 0
    for number in numbers:
        begin, end = (number - 1) * SECOND // rate, number * SECOND // rate
        while index < len(segments) and segments[index][1] <= begin:
            index += 1
        within = index
        parts: list[tuple[int, Phase, PowerDraw]] = []
        while within < len(segments) and segments[within][0] < end:
            start, stop, phase, draw = segments[within]
            if parts and parts[-1][2] is draw:
                parts[-1] = (parts[-1][0] + min(stop, end) - start, phase, draw)
            else:
                parts.append((min(stop, end) - max(start, begin), phase, draw))
            within += 1
        if len(parts) == 1:
            draw = parts[0][2]
            if id(draw) not in known:
                known[id(draw)] = _average_usage(parts, parts[0][0])
            found.append(known[id(draw)])
        else:
            found.append(_average_usage(parts, end - begin))
    return found


def _add_to(
    sums: dict[ProcessRun, list[int]], run: ProcessRun, engines: tuple[int, ...], weight: int
) -> None:
    before = sums.get(run) or [0] * len(engines)
    sums[run] = [total + engine * weight for total, engine in zip(before, engines, strict=True)]


def _average_usage(parts: list[tuple[int, Phase, PowerDraw]], duration: int) -> dict[ProcessRun, Percents]:
    sums: dict[ProcessRun, list[int]] = {}
    for length, phase, draw in parts:
        for context, used in zip(phase.contexts, draw.engines, strict=True):
            _add_to(sums, context.run, used, length)
    unit = 2 * duration * _POINT
    found: dict[ProcessRun, Percents] = {}
    for run, total in sums.items():
        sm, memory, encoder, decoder = ((2 * amount + unit // 2) // unit for amount in total)
        if sm or memory or encoder or decoder:
            found[run] = (sm, memory, encoder, decoder)
    return found
