"""Collects the budgets of docs/performance.md in one table: bound, last measured figure, and its command.

    python benchmarks/budgets.py --write docs/performance.md

This program measures nothing. It reads the figures from the tables that the other benchmarks wrote, so the
tables cannot contradict each other.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MARKS = ("<!-- budgets: begin -->", "<!-- budgets: end -->")


def cells(file: str, *begins: str) -> list[str]:
    """Return the remaining cells of a document's first table row that begins with these cells, or []."""
    for line in (DOCS / file).read_text("utf-8").splitlines():
        found = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and tuple(found[: len(begins)]) == begins:
            return found[len(begins) :]
    return []


def day(file: str, words: str) -> str:
    """Return the date of the last commit that changed the line with these words, or "today"."""
    output = subprocess.run(
        ["git", "log", "-1", "--format=%cs", "-S", words, "--", f"docs/{file}"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return output or "today"


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield what is measured, the bound, our figure, the peers' figures, the command, and the date."""
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
    if last := re.search(r"The last measurement was ([0-9.]+) MiB", text):
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
    if grown := re.search(r"10000 process starts and exits, page rendered at every tick: (\S+ KiB)", text):
        yield (
            "memory after 10,000 processes",
            "no growth",
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
    yield from _fleet()
    yield (
        "wrong accounts",
        "0 mJ",
        "0 mJ",
        "",
        "tests: `tests/unit/ledger`, `test_ledger_survives`",
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
        others = ", ".join(f"{name} {row[place]}{unit}" for name, row in peers.items())
        yield what, bound, f"{ours[place]}{unit}", others, "agent.py", at


def _fleet() -> Iterator[tuple[str, str, str, str, str, str]]:
    text = (DOCS / "fleet.md").read_text("utf-8")
    if found := re.search(r"(\d+ MiB) and (\d+ %) of one core", text):
        at = day("fleet.md", found[0])
        yield "fleet, 200 nodes of 8 GPUs: resident memory", "100 MiB", found[1], "", "fleet.py", at
        yield "fleet, 200 nodes of 8 GPUs: CPU", "one core", f"{found[2]} of one core", "", "fleet.py", at


def table() -> list[str]:
    """Return the lines of the Markdown table."""
    lines = ["| what | budget | figure | peers | `benchmarks/` | date |", "|---|---|---|---|---|---|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows())]


def main() -> None:
    """Print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    given = flags.parse_args()
    print_table(table(), given.write, MARKS)


if __name__ == "__main__":
    main()
