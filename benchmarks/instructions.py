"""Machine instructions of the three things done again and again: post a tick, make a page, answer a scrape.

python benchmarks/instructions.py              counts, by valgrind's callgrind
python benchmarks/instructions.py --repeat 3   how steady they are
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tables import parser, tell

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from instruction_counts import WORKS, fewest, per_piece  # noqa: E402  (after the path is set)

MARKS = ("<!-- instructions: begin -->", "<!-- instructions: end -->")


def table(counts: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Markdown."""
    yield "| 8 GPUs, 64 processes | million instructions | spread |"
    yield "|---|---|---|"
    for work, found in counts.items():
        spread = f"{(max(found) - min(found)) / min(found):.2%}" if len(found) > 1 else ""
        yield f"| {WORKS[work]} | {min(found) / 1e6:.2f} | {spread} |"


def main() -> None:
    """Count and print."""
    asked = parser(__doc__)
    asked.add_argument("--repeat", type=int, default=1)
    given = asked.parse_args()
    counts: dict[str, list[float]] = {work: [] for work in WORKS}
    for _ in range(given.repeat):
        fewest.cache_clear()
        for work, found in counts.items():
            found.append(per_piece(work))
    tell(table(counts), given.write, MARKS)


if __name__ == "__main__":
    main()
