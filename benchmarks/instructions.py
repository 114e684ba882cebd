"""Machine instructions of the three things done again and again: post a tick, make a page, answer a scrape.

python benchmarks/instructions.py              counts, by valgrind's callgrind
python benchmarks/instructions.py --repeat 3   how steady they are
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tables import write_between

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from instruction_counts import WORKS, fewest, per_piece  # noqa: E402  (after the path is set)

MARKS = ("<!-- instructions: begin -->", "<!-- instructions: end -->")


def main() -> None:
    """Count and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeat", type=int, default=1)
    asked.add_argument("--write", type=Path, help="put the table between the marks of this file")
    given = asked.parse_args()
    lines = ["| 8 GPUs, 64 processes | million instructions | spread |", "|---|---|---|"]
    counts: dict[str, list[float]] = {work: [] for work in WORKS}
    for _ in range(given.repeat):
        fewest.cache_clear()
        for work, found in counts.items():
            found.append(per_piece(work))
    for work, title in WORKS.items():
        found = counts[work]
        spread = f"{(max(found) - min(found)) / min(found):.2%}" if given.repeat > 1 else ""
        lines.append(f"| {title} | {min(found) / 1e6:.2f} | {spread} |")
        print(lines[-1], flush=True)
    if given.write:
        write_between(given.write, MARKS, lines)


if __name__ == "__main__":
    main()
