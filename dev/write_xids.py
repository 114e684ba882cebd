"""Writes the table of Xids in docs/gpu-health.md from `model/xids.py`.

    python dev/write_xids.py

The table stands between two comments. The rest of the page is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from gpuledger.model.xids import XID_ACTIONS, XIDS, Xid

PAGE = Path(__file__).parents[1] / "docs" / "gpu-health.md"
BEGIN, END = "<!-- xids: begin -->\n", "<!-- xids: end -->\n"
LEVELS = {"failure": "**fault**", "warning": "warning", "info": "note"}


def table() -> Iterator[str]:
    """A row for Xids with the same meaning and action, in order of the lowest."""
    codes: dict[Xid, list[int]] = {}
    for code, xid in sorted(XIDS.items()):
        codes.setdefault(xid, []).append(code)
    yield "| Xid | what happened | judged as | what to do |"
    yield "|---|---|---|---|"
    for xid, same in codes.items():
        action = XID_ACTIONS[xid.action]
        named = f" ({xid.text})" if xid.text else ""
        advice = action.advice.format(gpu="BUS_ID")
        yield f"| {_ranges(same)} | {xid.meaning}{named} | {LEVELS[action.level]} | {advice} |"
    unknown = XID_ACTIONS[""]
    yield f"| others | an Xid that gpuledger does not know | {LEVELS[unknown.level]} | {unknown.advice} |"


def _ranges(codes: list[int]) -> str:
    """`8, 11 to 13`."""
    runs = [[code for _, code in run] for _, run in groupby(enumerate(codes), lambda item: item[1] - item[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def page(before: str) -> str:
    """The whole page with a new table."""
    head, _, rest = before.partition(BEGIN)
    return head + BEGIN + "".join(f"{line}\n" for line in table()) + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
