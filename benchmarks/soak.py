"""Whether a node holds more the longer it runs: memory, descriptors and threads under churn and clients.

    make prove                                  an hour, twenty ticks a second; writes docs/reliability.md
    python benchmarks/soak.py --minutes 10      shorter

Two programs at once: one on the test's NVML library, whose processes, cards and MIG instances change with
every fourth tick, and one on the simulator at twenty times the speed. Each is asked for all pages.
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

from tables import parser, tell

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from books_helpers import assert_books_balance, rows  # noqa: E402  (after the path is set)
from nvml.library import build  # noqa: E402  (as above)
from running import Server, serving  # noqa: E402  (as above)
from soaking import Churn, Sample, ask, look, slope  # noqa: E402  (as above)

MARKS = ("<!-- soak: begin -->", "<!-- soak: end -->")
# A second of an ordinary node is a twentieth here.
SPEED = 20
# KiB by which memory may rise over the last two thirds and be called flat: what allocators leave and take.
FLAT = 2048
LOOKS = 240
# Changes of the machine a second, whatever else it does: who has gone is remembered for two minutes, and so
# memory follows the rate.
RATE = 5


@contextmanager
def changing(churn: Churn) -> Iterator[None]:
    """Steps at that rate meanwhile, however long the clients take; a late one is not made up for."""
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
    """Samples of both programs."""
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
                check(server, ask(server, number))
            number += 1
            if now >= due:
                due = now + seconds / LOOKS
                starts.append((now - began, churn.started))
                for name, server in servers.items():
                    found[name].append(look(server, now - began))
            time.sleep(1 / SPEED)
        for server in servers.values():
            assert server.stop() == 0
    for third in range(3):
        (first, before), *_, (last, after) = starts[third * len(starts) // 3 : (third + 1) * len(starts) // 3]
        print(f"starts a second, third {third + 1}: {(after - before) / (last - first):.1f}")
    for name in servers:
        (books,) = (folder / name).glob("*.db")
        assert_books_balance(books)
        print(f"{name}: {rows(books, 'SELECT count(*) FROM sessions')[0][0]} sessions, in balance")
    return found


def check(server: Server, status: int) -> None:
    """A client was answered, and nothing went wrong."""
    assert status in (200, 404), status
    assert not [line for line in server.lines if "internal error" in line or "Traceback" in line]


def row(name: str, samples: list[Sample]) -> tuple[str, bool]:
    """What was found of one program, and whether that is flat."""
    steady = samples[len(samples) // 3 :]
    rise = slope(steady) * (steady[-1].at - steady[0].at) / 3600
    descriptors, threads = ({one[place] for one in steady} for place in (2, 3))
    flat = rise <= FLAT and max(threads) - min(threads) <= 2 and max(descriptors) - min(descriptors) <= 8
    minutes = samples[-1].at / 60
    told = (
        f"| {name} | {minutes:.0f} | {steady[0].resident / 1024:.1f} | {steady[-1].resident / 1024:.1f} "
        f"| {rise:+.0f} | {min(descriptors)}-{max(descriptors)} | {min(threads)}-{max(threads)} |"
    )
    return told, flat


def main() -> None:
    """Soak, judge, and write the table where asked."""
    asked = parser(__doc__)
    asked.add_argument("--minutes", type=float, default=60.0)
    given = asked.parse_args()
    os.environ.setdefault("PYTHONPATH", str(ROOT / "src"))
    with tempfile.TemporaryDirectory(prefix="gpuledger-soak-") as folder:
        found = soak(given.minutes * 60, Path(folder))
    head = "| source | minutes | MiB after a third | MiB at the end | rise, KiB | descriptors | threads |"
    rows_told = [row(name, samples) for name, samples in found.items()]
    for name, samples in found.items():
        print(name, "MiB over time:", *(f"{one.resident / 1024:.1f}" for one in samples[:: LOOKS // 40]))
    lines = [head, "|---|---|---|---|---|---|---|", *(line for line, _ in rows_told)]
    tell(lines, given.write, MARKS)
    if not all(flat for _, flat in rows_told):
        raise SystemExit("not flat")


if __name__ == "__main__":
    main()
