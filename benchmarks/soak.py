"""Checks that a node does not grow while it runs: memory, descriptors and threads under churn and clients.

    make prove                                  an hour, twenty ticks per second; writes docs/reliability.md
    python benchmarks/soak.py --minutes 10      shorter

Runs two programs at once: one on the tests' NVML library, where processes, cards and MIG instances change
with every fourth tick, and one on the simulator at twenty times the speed. Clients request all pages of both.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from ledger_helpers import assert_books_balance, rows  # noqa: E402  (after the path is set)
from nvml.library import build  # noqa: E402  (as above)
from running import Server, serving  # noqa: E402  (as above)
from soaking import Churn, Sample, request_page, sample_program, slope  # noqa: E402  (as above)

MARKS = ("<!-- soak: begin -->", "<!-- soak: end -->")
# A second of an ordinary node takes a twentieth of a second here.
SPEED = 20
# KiB by which memory may rise over the last two thirds, because of the allocators.
MAX_RISE = 2048
SAMPLES = 240
# Changes of the machine per second. The rate is constant because ended processes are kept for two minutes, so
# memory depends on it.
RATE = 5


@contextmanager
def changing(churn: Churn) -> Iterator[None]:
    """Run steps in a thread at RATE; steps that are late are not made up for."""
    done = Event()

    def step() -> None:
        while not done.wait(1 / RATE):
            churn.step()

    thread = Thread(target=step, name="churn")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def soak(seconds: float, folder: Path) -> dict[str, list[Sample]]:
    """Run both programs and return their samples."""
    churn = Churn(folder / "state")
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(churn.state.path)}
    interval = ("--interval", f"{1000 // SPEED}ms", "--metric-retention", f"{300 // SPEED}s")
    simulated = ("--source", "simulator", "--speed", str(SPEED), *interval)
    found: dict[str, list[Sample]] = {"nvml": [], "simulator": []}
    with (
        serving("--source", "nvml", *interval, "--state-dir", str(folder / "nvml"), env=env) as nvml,
        serving(*simulated, "--state-dir", str(folder / "simulator")) as simulator,
        changing(churn),
    ):
        servers = {"nvml": nvml, "simulator": simulator}
        began = due = time.monotonic()
        starts: list[tuple[float, int]] = []
        number = 0
        while (now := time.monotonic()) - began < seconds:
            for server in servers.values():
                check(server, request_page(server, number))
            number += 1
            if now >= due:
                due = now + seconds / SAMPLES
                starts.append((now - began, churn.started))
                for name, server in servers.items():
                    found[name].append(sample_program(server, now - began))
            time.sleep(1 / SPEED)
        for server in servers.values():
            assert server.stop() == 0
    for third in range(3):
        (first, before), *_, (last, after) = starts[third * len(starts) // 3 : (third + 1) * len(starts) // 3]
        print(f"starts a second, third {third + 1}: {(after - before) / (last - first):.1f}")
    for name in servers:
        (books,) = (folder / name).glob("*.db")
        assert_books_balance(books)
        print(f"{name}: {rows(books, 'SELECT count(*) FROM sessions')[0][0]} sessions, accounts balance")
    return found


def check(server: Server, status: int) -> None:
    """Check the status of a response, and that the program logged no internal error."""
    assert status in (200, 404), status
    assert not [line for line in server.lines if "internal error" in line or "Traceback" in line]


def row(name: str, samples: list[Sample]) -> tuple[str, bool]:
    """Return the table row of one program, and whether it did not grow."""
    steady = samples[len(samples) // 3 :]
    rise = slope(steady) * (steady[-1].at - steady[0].at) / 3600
    descriptors, threads = ({one[place] for one in steady} for place in (2, 3))
    flat = rise <= MAX_RISE and max(threads) - min(threads) <= 2 and max(descriptors) - min(descriptors) <= 8
    minutes = samples[-1].at / 60
    line = (
        f"| {name} | {minutes:.0f} | {steady[0].resident / 1024:.1f} | {steady[-1].resident / 1024:.1f} "
        f"| {rise:+.0f} | {min(descriptors)}-{max(descriptors)} | {min(threads)}-{max(threads)} |"
    )
    return line, flat


def main() -> None:
    """Measure, print the table, and exit with an error if a program grew."""
    flags = create_parser(__doc__)
    flags.add_argument("--minutes", type=float, default=60.0)
    given = flags.parse_args()
    os.environ.setdefault("PYTHONPATH", str(ROOT / "src"))
    with tempfile.TemporaryDirectory(prefix="gpuledger-soak-") as folder:
        found = soak(given.minutes * 60, Path(folder))
    head = "| source | minutes | MiB after a third | MiB at the end | rise, KiB | descriptors | threads |"
    results = [row(name, samples) for name, samples in found.items()]
    for name, samples in found.items():
        print(name, "MiB over time:", *(f"{one.resident / 1024:.1f}" for one in samples[:: SAMPLES // 40]))
    lines = [head, "|---|---|---|---|---|---|---|", *(line for line, _ in results)]
    print_table(lines, given.write, MARKS)
    if not all(flat for _, flat in results):
        raise SystemExit("memory, descriptors or threads grew")


if __name__ == "__main__":
    main()
