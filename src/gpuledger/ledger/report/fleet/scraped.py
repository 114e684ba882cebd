"""Series as Prometheus has them, with gpuledger's own labels separated from those of the scrape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuledger.model.session import PROCESS

Labels = Mapping[str, str]
Vector = Sequence[tuple[Labels, float]]
Name = tuple[str, ...]
Target = tuple[str, ...]
Series = frozenset[tuple[str, str]]
# Pairs of Gpu uuid and target that are duplicates and are not counted.
Dropped = frozenset[tuple[str, Target]]

OWNER = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
ENERGY = ("uuid", "account", "method", *OWNER)
GPU_TIME = ("uuid", "mig_instance", "account", *OWNER)
TIMES = ("uuid", "mig_instance", *OWNER)
# Accounts of owners: of energy and of time.
_OWNED = (PROCESS, "owner")

# Prefix that Prometheus gives our label if its target has one of the same name, unless honor_labels is set.
_EXPORTED = "exported_"
_TARGET = ("job", "instance", _EXPORTED + "job", _EXPORTED + "instance")
_NODE = ("node", "kubernetes_node", _EXPORTED + "instance", "instance")


class SeriesWindow(NamedTuple):
    """Prometheus's values of one series over one range.

    `last` is last_over_time(), `least` min_over_time(); the others are queried only after a reset: `highest`
    is max_over_time(), `increase` increase() and `samples` count_over_time(). `resets`, `wider` (an
    increase()) and `wider_samples` are of a range that begins slightly earlier, so that they include the
    sample before it.
    """

    last: float
    least: float
    resets: int = 0
    highest: float = 0.0
    increase: float = 0.0
    samples: int = 0
    wider: float = 0.0
    wider_samples: int = 0


RESET_FIELDS = SeriesWindow._fields[2:]
SeriesWindows = Mapping[Name, Mapping[Target, SeriesWindow]]


def target_of(labels: Labels) -> Target:
    """The target labels of a series."""
    return tuple(labels.get(name, "") for name in _TARGET)


def node_of(labels: Labels) -> str:
    """The node's name from the scrape: its `node` label, else the address without the port."""
    for name in _NODE[:2]:
        if labels.get(name):
            return labels[name]
    address = next((labels[name] for name in _NODE[2:] if labels.get(name)), "")
    host, _, port = address.rpartition(":")
    return host if host and port.isdigit() else address


@dataclass(slots=True)
class LabelResolver:
    """Separates gpuledger's labels from those of the scrape.

    Without honor_labels, the target's `namespace` (that of the exporter!) replaces ours, which becomes
    `exported_namespace`, but only if ours was not empty: objects without namespace seem to be in the
    exporter's. The labels that a target adds, with their values, show where ours are certainly empty, and
    where an `exported_` label exists. Another value is ours: honor_labels was set at another time.
    """

    _target_labels: dict[Target, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(dict))

    def learn(self, accounts: Iterable[Labels]) -> None:
        """Learn from series of accounts of energy or time: the Gpus' own accounts have no owner."""
        for labels in accounts:
            is_gpu_account = labels.get("account", PROCESS) not in _OWNED
            for name in OWNER:
                if _EXPORTED + name in labels or (is_gpu_account and labels.get(name)):
                    added = self._target_labels[target_of(labels)]
                    added.setdefault(name, set()).add(labels.get(name, ""))

    def own_values(self, labels: Labels, names: Sequence[str]) -> Name:
        """The values of gpuledger's own labels; empty where it set none."""
        added = self._target_labels.get(target_of(labels), {})

        def own_value(name: str) -> str:
            plain = labels.get(name, "")
            return labels.get(_EXPORTED + name) or ("" if plain in added.get(name, ()) else plain)

        return tuple(map(own_value, names))

    def windows(
        self, answers: Mapping[str, Vector], names: Sequence[str], dropped: Dropped = frozenset()
    ) -> SeriesWindows:
        """Combine answers, by field of SeriesWindow, to windows per series."""
        return combine_windows(answers, lambda labels: self.own_values(labels, names), dropped)


def combine_windows(
    answers: Mapping[str, Vector], name_of: Callable[[Labels], Name], dropped: Dropped = frozenset()
) -> SeriesWindows:
    """Combine answers, by field of SeriesWindow, to windows by `name_of` the series and target."""
    fields = {
        name: {_series(labels): value for labels, value in answers.get(name, ())}
        for name in SeriesWindow._fields[1:]
    }
    found: dict[Name, dict[Target, SeriesWindow]] = defaultdict(dict)
    # One tuple for all series of a target: the last values of counters keep it.
    targets: dict[Target, Target] = {}
    for labels, last in answers["last"]:
        series, target = _series(labels), target_of(labels)
        target = targets.setdefault(target, target)
        least = fields["least"].get(series)
        name = name_of(labels)
        if least is None or (name[0], target) in dropped:
            continue
        window = _window(last, least, {name: values.get(series) for name, values in fields.items()})
        known = found[name].get(target)
        found[name][target] = window if known is None else _of_replicas(known, window)
    return found


def _of_replicas(one: SeriesWindow, other: SeriesWindow) -> SeriesWindow:
    """The window of one series that two Prometheus replicas scraped, of which one can have stopped earlier.

    A store that does not merge replicas has it twice, with another external label. Without a reset, a
    counter's highest value is its last one; a reset is missed by a replica that had stopped, or began later.
    """
    more = max(one, other, key=lambda window: (window.resets, window.last))
    return more if more.resets else more._replace(least=min(one.least, other.least))


def _series(labels: Labels) -> Series:
    # Most functions drop the metric's name, but not all.
    return frozenset((name, value) for name, value in labels.items() if name != "__name__")


def _window(last: float, least: float, values: Mapping[str, float | None]) -> SeriesWindow:
    resets, highest, increase, samples, wider, more = (values.get(name) or 0.0 for name in RESET_FIELDS)
    # Queries run one after another, and samples arrive between them.
    least, highest, wider = min(least, last), max(highest, last if resets else 0.0), max(wider, increase)
    return SeriesWindow(last, least, int(resets), highest, increase, int(samples), wider, int(more))


RESIDENT, HELD, ALLOCATED = "resident", "held", "allocated"
SECONDS = (RESIDENT, HELD, ALLOCATED)

Answers = Mapping[str, Vector]


class AccountAnswers(NamedTuple):
    """Answers for one quantity (energy or time) over one range of `length` seconds.

    `totals` are counters of Gpus, `accounts` those that sum to them. `scrapes` is the number of scrapes of
    each Gpu by each target, `dropped` the targets that are duplicates.
    """

    totals: Answers
    accounts: Answers
    scrapes: Mapping[str, Mapping[Target, float]]
    length: float
    dropped: Dropped


@dataclass(frozen=True, slots=True)
class ScrapedRange:
    """All answers for the time from `begins` to `ends` (unix seconds).

    `devices`, `energy`, `watched`, `gpu_time` and each of `seconds` hold answers by the fields of
    `SeriesWindow`, and as `alive` the series that existed when the range began; `devices` and `watched` also
    those that `still` existed when it ended. `counts` is the number of scrapes in each series of a Gpu,
    `watts` its highest possible power, `ratios` each Device's part of its Gpu. `infos`, `pods`, `pod_labels`
    and `jobs` are info series. `bases` are the bases by which GPU time was split.
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
    watched: Answers = field(default_factory=lambda: NOTHING)
    gpu_time: Answers = field(default_factory=lambda: NOTHING)
    jobs: Vector = ()
    bases: Vector = ()

    def of_energy(self, dropped: Dropped) -> AccountAnswers:
        """The answers for energy."""
        length = self.ends - self.begins
        return AccountAnswers(self.devices, self.energy, self.scrapes(), length, dropped)

    def of_time(self, dropped: Dropped) -> AccountAnswers:
        """The answers for GPU time."""
        length = self.ends - self.begins
        return AccountAnswers(self.watched, self.gpu_time, self.scrapes(), length, dropped)

    def scrapes(self) -> dict[str, dict[Target, float]]:
        """The number of scrapes of each Gpu by each target.

        A target can have several series of a Gpu: one after the other, such as those of the pods of an
        exporter, or at the same time, those of replicas of a Prometheus. The counter shows which.
        """
        found: dict[str, dict[Target, dict[Series, float]]] = defaultdict(lambda: defaultdict(dict))
        for labels, count in self.counts:
            found[labels.get("uuid", "")][target_of(labels)][_series(labels)] = count
        levels: dict[Series, tuple[float, float]] = {}
        if any(len(series) > 1 for targets in found.values() for series in targets.values()):
            for totals in (self.devices, self.watched):
                least = {_series(labels): value for labels, value in totals.get("least", ())}
                for labels, last in totals["last"]:
                    levels[_series(labels)] = (least.get(_series(labels), last), last)
        return {
            uuid: {target: _count_once(series, levels) for target, series in targets.items()}
            for uuid, targets in found.items()
        }


def _count_once(counts: Mapping[Series, float], levels: Mapping[Series, tuple[float, float]]) -> float:
    """The scrapes of these series, in proportion to the part of their counters' rises that only one has."""
    if len(counts) == 1:
        return sum(counts.values())
    rises = sorted(levels[series] for series in counts if series in levels)
    risen, covered, reached = 0.0, 0.0, -inf
    for least, last in rises:
        risen += last - least
        covered += max(last - max(least, reached), 0.0)
        reached = max(reached, last)
    return sum(counts.values()) * covered / risen if risen else max(counts.values())


NOTHING: Answers = {"last": (), "least": ()}


class PeriodEnd(NamedTuple):
    """Facts about the ends of the period, for one quantity.

    `alive` are series of accounts that existed at its end. By Gpu: what was pending (booked but not exported)
    at its start and end; of that, the minimum (`kept_*`) over the time in which other amounts are exported;
    and the mean rate at its end.
    """

    alive: Iterable[Labels] = ()
    pending_before: Vector = ()
    pending_after: Vector = ()
    rates: Vector = ()
    kept_before: Vector = ()
    kept_after: Vector = ()
