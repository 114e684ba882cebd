"""Counts the machine instructions of posting a tick, rendering a page, and responding to a scrape.

python benchmarks/instructions.py              count with valgrind's callgrind
python benchmarks/instructions.py --repeat 3   also show the spread of three counts
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tables import create_parser, print_table

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from instruction_counts import WORKS, instructions_per_repetition  # noqa: E402  (after the path is set)

MARKS = ("<!-- instructions: begin -->", "<!-- instructions: end -->")


def table(counts: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    yield "| 8 GPUs, 64 processes | million instructions | spread |"
    yield "|---|---|---|"
    for work, found in counts.items():
        spread = f"{(max(found) - min(found)) / min(found):.2%}" if len(found) > 1 else ""
        yield f"| {WORKS[work]} | {min(found) / 1e6:.2f} | {spread} |"


def main() -> None:
    """Count, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--repeat", type=int, default=1)
    given = flags.parse_args()
    counts: dict[str, list[float]] = {work: [] for work in WORKS}
    for _ in range(given.repeat):
        for work, count in instructions_per_repetition().items():
            counts[work].append(count)
    print_table(table(counts), given.write, MARKS)


if __name__ == "__main__":
    main()
