"""DESIGN's budgets in one table, each beside the figure that the last measurement wrote, and its command.

    python benchmarks/budgets.py --write docs/performance.md

Nothing is measured here: figures are read out of the tables that the other benchmarks have written, so that
the one table and the many cannot say different things.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tables import parser, tell

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MARKS = ("<!-- budgets: begin -->", "<!-- budgets: end -->")


def cells(file: str, *begins: str) -> list[str]:
    """The cells behind these, of the first row in a document that begins so; none where there is none."""
    for line in (DOCS / file).read_text("utf-8").splitlines():
        found = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and tuple(found[: len(begins)]) == begins:
            return found[len(begins) :]
    return []


def day(file: str, words: str) -> str:
    """When the line with these words was written last, by the repository."""
    told = subprocess.run(
        ["git", "log", "-1", "--format=%cs", "-S", words, "--", f"docs/{file}"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return told or "today"


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """What, the bound, our figure, the peer's, the command, the date."""
    perf = "performance.md"
    ours, theirs = cells(perf, "gpuledger serve"), cells(perf, "nvitop-exporter")
    few = cells(perf, "gpuledger serve, three dialects")
    if ours and few and theirs:
        at = day(perf, f"| gpuledger serve | {ours[0]} | {ours[1]} |")
        yield (
            "resident memory, process, session and energy alone, no Kubernetes",
            "30 MiB",
            f"{few[1]} MiB",
            f"nvitop-exporter {theirs[1]} MiB",
            "node.py",
            at,
        )
        yield (
            "CPU of one tick",
            "below the peer's",
            f"{ours[0]} ms",
            f"nvitop-exporter {theirs[0]} ms",
            "node.py",
            at,
        )
    text = (DOCS / perf).read_text("utf-8")
    if last := re.search(r"; ([0-9.]+) when it was last read", text):
        yield (
            "resident memory, Kubernetes on, 500 pods",
            "45 MiB",
            f"{last[1]} MiB",
            "",
            "tests/cluster",
            day(perf, last[0]),
        )
    if scraped := cells(perf, "50"):
        at = day(perf, "| 50 | " + " | ".join(scraped) + " |")
        yield "scrape, 50 scrapers: p99", "5 ms", f"{scraped[3]} ms", "", "scrapers.py", at
    if grown := re.search(r"10000 process starts and exits, page made at every tick: (\S+ KiB)", text):
        yield (
            "memory after 10,000 processes",
            "where it was",
            grown[1],
            "",
            "scrapers.py",
            day(perf, grown[0]),
        )
    few, many = cells(perf, "nvml", "8", "64"), cells(perf, "nvml", "8", "512")
    if few and many:
        ratio = float(many[0]) / float(few[0])
        at = day(perf, "| nvml | 8 | 512 | " + " | ".join(many) + " |")
        yield "a tick of 8 times the processes", "at most 8 times", f"{ratio:.1f} times", "", "node.py", at
    yield from _agent()
    yield (
        "wrong books",
        "0 mJ",
        "0 mJ",
        "",
        "tests: `test_energy_*`, `test_store_*`, `test_books_survive`",
        "every change",
    )


def _agent() -> Iterator[tuple[str, str, str, str, str, str]]:
    size = "1,000 x 500, 15 s"
    ours = cells("agent.md", size, "gpuledger")
    peers = {name: cells("agent.md", size, name) for name in ("prometheus", "vmagent")}
    if not ours or not all(peers.values()):
        return
    at = day("agent.md", f"| {size} | gpuledger | {ours[0]} |")
    for place, what, bound, unit in (
        (0, "agent: samples per CPU-second", "above Prometheus's", ""),
        (2, "agent: resident memory", "200 MiB", " MiB"),
        (3, "agent: samples that arrive", "all", ""),
    ):
        beside = ", ".join(f"{name} {told[place]}{unit}" for name, told in peers.items())
        yield what, bound, f"{ours[place]}{unit}", beside, "agent.py", at


def table() -> list[str]:
    """Markdown."""
    lines = ["| what | budget | figure | peers | `benchmarks/` | date |", "|---|---|---|---|---|---|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows())]


def main() -> None:
    """Print, and write where asked."""
    asked = parser(__doc__)
    given = asked.parse_args()
    tell(table(), given.write, MARKS)


if __name__ == "__main__":
    main()
