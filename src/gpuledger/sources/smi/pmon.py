"""`nvidia-smi pmon -c 1 -s um`: what each process kept busy, by the header's column names.

Columns came (jpg, ofa, ccpm) and went (fb) with drivers 550 and 560, so their places mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from re import compile as pattern

from gpuledger.model.process import Usage
from gpuledger.model.quantities import UTILIZATION
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi.values import measure, whole

# Column to the field of Usage. `mem` is time on the memory bus, not memory held (that is `fb`).
_ENGINES = {
    "sm": "sm",
    "mem": "memory",
    "enc": "encoder",
    "dec": "decoder",
    "jpg": "jpeg",
    "ofa": "ofa",
}
_BARE_NUMBER = pattern(r"[0-9]+")


@dataclass(slots=True)
class Activity:
    """Usage by `(GPU index, pid)`. `told` is false when the answer is no table of pmon."""

    usage: dict[tuple[int, int], Usage] = field(default_factory=dict)
    told: bool = False


def parse_pmon(text: str, findings: Findings) -> Activity:
    """One sample of every process; `-` is not told, which is not zero. Nothing is raised.

    With several samples in the answer the last one stands.
    """
    activity = Activity()
    titles: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    *lines, rest = text.split("\n")
    for line in lines:
        words = line.split()
        if words[:1] == ["#"]:
            head = tuple(word.lower() for word in words[1:])
            if "pid" in head and "gpu" in head:
                titles, units = head, ()
                activity.told = True
            else:
                units = head
        elif words and titles:
            _take(words, titles, units, activity, findings)
    # Only a row that ends in its command is known to be whole without a newline.
    if titles and titles[-1] == "command" and len(rest.split()) >= len(titles):
        _take(rest.split(), titles, units, activity, findings)
    return activity


def _take(
    words: list[str], titles: tuple[str, ...], units: tuple[str, ...], activity: Activity, findings: Findings
) -> None:
    named = titles[-1] == "command"
    if len(words) < len(titles) or (not named and len(words) > len(titles)):
        findings.invalid += 1
        return
    counts = Counter(titles)
    cells = {title: word for title, word in zip(titles, words, strict=False) if counts[title] == 1}
    pid, index = whole(cells.get("pid"), findings), whole(cells.get("gpu"), findings)
    if pid is None or index is None:
        return
    percent = (
        {title for title, unit in zip(titles, units, strict=False) if unit == "%"} if units else set(titles)
    )
    activity.usage[index, pid] = _usage(cells, percent, findings)


def _usage(cells: Mapping[str, str], percent: set[str], findings: Findings) -> Usage:
    told: dict[str, float | None] = {}
    for title, name in _ENGINES.items():
        cell = cells.get(title)
        if cell is not None and title in percent:
            scaled = f"{cell} %" if _BARE_NUMBER.fullmatch(cell) else cell
            told[name] = measure(scaled, UTILIZATION, findings)
    return Usage(**told)
