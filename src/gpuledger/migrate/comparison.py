"""What changed from one page to another: metrics, types, units, labels, and the form of label values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from gpuledger.migrate.page import Page, Series, names_of

# Labels that identify a device, a node or a scrape. Values of others may differ only because time passed.
_IDENTITY: Final = frozenset(
    {
        "job",
        "instance",
        "service",
        "gpu",
        "uuid",
        "UUID",
        "device",
        "pci_bus_id",
        "modelName",
        "Hostname",
        "hostname",
        "node",
        "minor",
    }
)
# Labels by which series of two pages are paired, whatever their names.
_PAIRING: Final = (("UUID", "uuid"), ("gpu", "index", "minor_number"), ("pci_bus_id",))
_UNIT_IN_HELP: Final = re.compile(
    r"[(\[,]\s*(?:in\s+)?(bytes|MiB|MHz|mJ|mW|kWh|kB|GB|MB|GiB|KiB|Hz|W|J|C|%|us|ns|ms)\s*[)\].]"
)
_UNIT_IN_NAME: Final = re.compile(
    r"_(bytes|ratio|percent|watts|milliwatts|joules|millijoules|kwh|hertz|hz|mhz|mib|celsius|seconds)(?:_total)?$",
    re.IGNORECASE,
)
# Factors between units of the same quantity, and the change that each of them suggests.
_FACTORS: Final[Mapping[float, str]] = {
    0.01: "percent to ratio",
    100.0: "ratio to percent",
    1048576.0: "MiB to bytes",
    1 / 1048576: "bytes to MiB",
    1024.0: "KiB to bytes",
    1 / 1024: "bytes to KiB",
    1e6: "MHz to Hz, or a million times",
    1e-6: "Hz to MHz, or a millionth",
    1000.0: "a thousand times, such as W to mW or J to mJ",
    0.001: "a thousandth, such as mW to W or mJ to J",
    3.6e6: "kWh to J",
    1 / 3.6e6: "J to kWh",
}
_TOLERANCE: Final = 0.2


@dataclass(slots=True)
class MetricChange:
    """How one metric of the old page differs on the new page; `factor` converts old values to new ones."""

    name: str
    gone: bool = False
    types: tuple[str, str] | None = None
    unit: str = ""
    factor: float = 1.0
    # Labels that are gone, with the new name if one has the same values.
    lost: dict[str, str] = field(default_factory=dict)
    # Labels of which the values have another form.
    values: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether there is any difference."""
        return bool(self.gone or self.types or self.unit or self.lost or self.values)


def compare_pages(old: Page, new: Page) -> dict[str, MetricChange]:
    """Returns the changed metrics of the old page by name."""
    found = {}
    # Alerts select `up` by labels of the scrape.
    for name in (*names_of(old), *(["up"] if "up" in old.series and "up" in new.series else [])):
        change = MetricChange(name, gone=name not in new.series)
        if not change.gone:
            _compare_metric(change, old, new)
        if change.changed:
            found[name] = change
    return found


def _compare_metric(change: MetricChange, old: Page, new: Page) -> None:
    name = change.name
    types = (old.type_of(name), new.type_of(name))
    if all(types) and types[0] != types[1] and set(types) & {"counter", "histogram", "summary"}:
        change.types = types
    change.factor, change.unit = _unit_change(name, old, new)
    before, after = old.series[name], new.series[name]
    for label in sorted(old.label_names(name) - new.label_names(name)):
        change.lost[label] = renamed = _new_name(label, before, after, old.label_names(name))
        if renamed and (form := _form_change(label, _values(before, label), _values(after, renamed))):
            change.values[label] = form
    for label in sorted(old.label_names(name) & new.label_names(name)):
        if form := _form_change(label, _values(before, label), _values(after, label)):
            change.values[label] = form


def _values(rows: Iterable[Series], label: str) -> set[str]:
    return {row.labels[label] for row in rows if row.labels.get(label)}


def _new_name(
    label: str, before: Sequence[Series], after: Sequence[Series], old_names: frozenset[str]
) -> str:
    """The new label with the values of a lost one, in whatever form; empty if there is none."""
    wanted = _values(before, label)
    bare = label.removeprefix("exported_")
    if bare != label and wanted & _values(after, bare):
        return bare
    candidates = sorted({name for row in after for name in row.labels} - old_names)
    # A label of the same name with another case or prefix comes first.
    candidates.sort(key=lambda name: _bare(name) != _bare(label))
    for name in candidates:
        found = _values(after, name)
        if _bare(name) == _bare(label):
            return name
        # Many labels have values such as 0 and 1.
        distinctive = {text for text in wanted if len(text) > 2}
        if distinctive & found or _same_in_another_form(distinctive, found):
            return name
    return ""


def _bare(label: str) -> str:
    lowered = label.lower().removeprefix("exported_").removeprefix("kubernetes_").removeprefix("pod_")
    return lowered.removesuffix("_name")


_FORMS: Final[Sequence[Callable[[str], str]]] = (
    str.lower,
    lambda text: re.sub(r"^(gpu|mig)-", "", text.lower()),
    lambda text: re.sub(r"^(nvidia|gpu|card)(?=\d)", "", text.lower()),
    lambda text: text.lower().partition(".")[0],
    lambda text: text.lower()[-12:] if text.count(":") == 2 else text,
    lambda text: re.sub(r"[\s_-]+", "", text.lower().removeprefix("nvidia")),
)


def _same_in_another_form(before: set[str], after: set[str]) -> tuple[str, str] | None:
    """A value and the new form of the same value."""
    for form in _FORMS:
        known = {form(text): text for text in after}
        for text in sorted(before):
            if form(text) in known and text != known[form(text)]:
                return text, known[form(text)]
    return None


def _form_change(label: str, before: set[str], after: set[str]) -> str:
    if not before or not after or before & after:
        return ""
    pair = _same_in_another_form(before, after)
    if pair is None and label in _IDENTITY:
        pair = (min(before), min(after))
        return f'"{pair[0]}" against "{pair[1]}": another machine, or another form'
    return f'"{pair[0]}" becomes "{pair[1]}"' if pair else ""


def unit_of(name: str, text: str) -> str:
    """Returns the unit that a metric's name or help text states; empty if neither does."""
    in_name = _UNIT_IN_NAME.search(name)
    if in_name:
        return in_name[1].lower()
    in_help = _UNIT_IN_HELP.search(text)
    return in_help[1] if in_help else ""


def _unit_change(name: str, old: Page, new: Page) -> tuple[float, str]:
    """The factor and the words of a changed unit, by the help texts, else by the values."""
    units = (unit_of(name, old.helps.get(name, "")), unit_of(name, new.helps.get(name, "")))
    factor = _value_factor(old.series[name], new.series[name])
    if all(units) and units[0] != units[1]:
        return factor, f"{units[0]} to {units[1]} (help text)"
    if factor != 1.0 and not (all(units) and old.helps.get(name) == new.helps.get(name)):
        return factor, f"{_FACTORS[factor]} (by the values: {factor:.6g} times)"
    return 1.0, ""


def _value_factor(before: Sequence[Series], after: Sequence[Series]) -> float:
    """The known factor by which all values of paired series differ, else 1.

    A single pair may differ by a factor of ten or a hundred because the value changed, so a small factor
    needs two pairs.
    """
    ratios = [new / old for old, new in _pairs(before, after) if old and new]
    if not ratios or min(ratios) <= 0:
        return 1.0
    middle = median(ratios)
    if max(ratios) > middle * (1 + _TOLERANCE) or min(ratios) < middle * (1 - _TOLERANCE):
        return 1.0
    factor = min(_FACTORS, key=lambda known: abs(middle / known - 1))
    enough = len(ratios) > 1 or factor > 1e5 or factor < 1e-5
    return factor if enough and abs(middle / factor - 1) <= _TOLERANCE else 1.0


def _pairs(before: Sequence[Series], after: Sequence[Series]) -> list[tuple[float, float]]:
    if len(before) == len(after) == 1:
        return [(before[0].value, after[0].value)]
    for labels in _PAIRING:
        ours, theirs = ({_identity(row, labels): row.value for row in rows} for rows in (before, after))
        shared = [key for key in ours if key and key in theirs]
        if shared and len(ours) == len(before):
            return [(ours[key], theirs[key]) for key in shared]
    return []


def _identity(row: Series, labels: Sequence[str]) -> str:
    """The value of the first of these labels that the series has, in one form."""
    text = next((row.labels[label] for label in labels if row.labels.get(label)), "")
    return re.sub(r"^(gpu|mig|nvidia|card)-?(?=.)", "", text.lower())
