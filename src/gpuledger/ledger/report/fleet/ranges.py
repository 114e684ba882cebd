"""What is asked of a Prometheus, as it answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.report.fleet.scraped import Labels, Vector

RESIDENT, HELD, ALLOCATED = "resident", "held", "allocated"
SECONDS = (RESIDENT, HELD, ALLOCATED)

Answers = Mapping[str, Vector]


@dataclass(frozen=True, slots=True)
class Range:
    """Everything asked of the time from `begins` to `ends` (unix seconds).

    `devices`, `energy` and each of `seconds` hold answers by the fields of `scraped.Window`, and as `alive`
    the series that were there when it began; `devices` those, too, that were `still` there when it ended.
    `counts` is how often each Gpu was scraped by each target, `watts` the highest power that it can have had,
    `ratios` what part of its Gpu a Device is. `infos`, `pods` and `pod_labels` are info series.
    """

    begins: float
    ends: float
    devices: Answers
    energy: Answers
    counts: Vector = ()
    seconds: Mapping[str, Answers] = field(default_factory=dict)
    ratios: Vector = ()
    watts: Vector = ()
    infos: Vector = ()
    pods: Vector = ()
    pod_labels: Vector = ()


class Ending(NamedTuple):
    """What is known of the period's ends: energy series `alive` at its end; by Gpu, joules booked but not yet
    told when it began and ended, of them those that were `kept` all the time in which others are told, and
    the mean power at its end in watts.
    """

    alive: Iterable[Labels] = ()
    pending_before: Vector = ()
    pending_after: Vector = ()
    rates: Vector = ()
    kept_before: Vector = ()
    kept_after: Vector = ()
