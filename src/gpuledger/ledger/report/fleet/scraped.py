"""Series as a Prometheus has them: which of their labels we gave them, and which the scrape put on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.model.session import PROCESS

Labels = Mapping[str, str]
Vector = Sequence[tuple[Labels, float]]
Name = tuple[str, ...]
Target = tuple[str, ...]

OWNER = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
ENERGY = ("uuid", "account", "method", *OWNER)
TIMES = ("uuid", "mig_instance", *OWNER)

# What Prometheus calls a label of ours that its target has too, unless honor_labels is on.
_OURS = "exported_"
_TARGET = ("job", "instance", _OURS + "job", _OURS + "instance")
_NODE = ("node", "kubernetes_node", _OURS + "instance", "instance")


class Window(NamedTuple):
    """What Prometheus tells of one series over one range; all but `last` and `least` only where it fell.

    `last` is last_over_time(), `least` min_over_time(), `highest` max_over_time(), `increase` increase() and
    `samples` count_over_time(). `resets`, `wider` (an increase()) and `wider_samples` are of a range that
    begins a little earlier: they see the sample before it.
    """

    last: float
    least: float
    resets: int = 0
    highest: float = 0.0
    increase: float = 0.0
    samples: int = 0
    wider: float = 0.0
    wider_samples: int = 0


AFTER_A_FALL = Window._fields[2:]
Windows = Mapping[Name, Mapping[Target, Window]]


def target_of(labels: Labels) -> Target:
    """By whom a series was scraped, and where."""
    return tuple(labels.get(name, "") for name in _TARGET)


def node_of(labels: Labels) -> str:
    """The node as the scrape names it: its `node` label, else the address without the port."""
    for name in _NODE[:2]:
        if labels.get(name):
            return labels[name]
    address = next((labels[name] for name in _NODE[2:] if labels.get(name)), "")
    host, _, port = address.rpartition(":")
    return host if host and port.isdigit() else address


@dataclass(slots=True)
class Scrapes:
    """Tells our labels from the scrape's.

    Without honor_labels a target's own `namespace` (the exporter's!) stands where ours was, and ours becomes
    `exported_namespace`, but only where it was not empty: what has no namespace seems to be in the
    exporter's. Which labels a target puts on is seen where ours are certainly empty, and where there is an
    `exported_` one.
    """

    _put_on: dict[Target, set[str]] = field(default_factory=lambda: defaultdict(set))

    def learn(self, energy: Iterable[Labels]) -> None:
        """Take in series of gpuledger_energy_joules_total: the Gpus' own accounts have no owner."""
        for labels in energy:
            nobody = labels.get("account", PROCESS) != PROCESS
            for name in OWNER:
                if _OURS + name in labels or (nobody and labels.get(name)):
                    self._put_on[target_of(labels)].add(name)

    def own(self, labels: Labels, names: Sequence[str]) -> Name:
        """The values that we gave these labels; empty where we gave none."""
        foreign = self._put_on.get(target_of(labels), ())
        return tuple(
            labels.get(_OURS + name) or ("" if name in foreign else labels.get(name, "")) for name in names
        )

    def windows(
        self,
        answers: Mapping[str, Vector],
        names: Sequence[str],
        dropped: frozenset[tuple[str, Target]] = frozenset(),
    ) -> Windows:
        """Answers by the fields of Window, put together by series. `dropped` are Gpus (by uuid) of targets
        that are not to be counted.
        """
        fields = {name: {_series(labels): value for labels, value in answers[name]} for name in answers}
        found: dict[Name, dict[Target, Window]] = defaultdict(dict)
        for labels, last in answers["last"]:
            series, target = _series(labels), target_of(labels)
            least = fields["least"].get(series)
            name = self.own(labels, names)
            if least is None or (name[0], target) in dropped:
                continue
            found[name][target] = _window(
                last, least, {word: told.get(series) for word, told in fields.items()}
            )
        return found


def _series(labels: Labels) -> frozenset[tuple[str, str]]:
    # Functions drop the name of the metric, but not all of them.
    return frozenset((name, value) for name, value in labels.items() if name != "__name__")


def _window(last: float, least: float, told: Mapping[str, float | None]) -> Window:
    resets, highest, increase, samples, wider, more = (told.get(word) or 0.0 for word in AFTER_A_FALL)
    # One query after the other is answered, and samples arrive between them.
    least, highest, wider = min(least, last), max(highest, last if resets else 0.0), max(wider, increase)
    return Window(last, least, int(resets), highest, increase, int(samples), wider, int(more))


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
