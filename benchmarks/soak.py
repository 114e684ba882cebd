"""Checks that a node and a fleet do not grow while they run: memory, descriptors and threads under load.

    make prove                                  an hour; writes docs/reliability.md
    python benchmarks/soak.py --minutes 10      shorter

Runs three programs at once: a node on the tests' NVML library, where processes, cards and MIG instances
change five times a second, one on the simulator at twenty times the speed, and a fleet. Both nodes have
prices and an interval of 50 ms, which a node lengthens up to eight times where ticks take long. Clients
request all pages. Users of the simulated node read its costs and their receipts, over the control socket
too, and reserve GPUs; the fleet reads this node. Its ledger begins with two days, because a node keeps the
memory of its largest report: that of a week grows with its sessions until there are as many as a report
remembers. They do not read the ledger of the other node: a report takes CPU time for each session of its
range. Prints the table of the time so far ten times.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from gpuledger.app.demo import HistoryClock, write_history  # noqa: E402  (after the path is set)
from gpuledger.app.node_assembly import assemble_node  # noqa: E402  (as above)
from gpuledger.host.clock import SystemClock  # noqa: E402  (as above)
from lab import PRICES, FleetServer  # noqa: E402  (as above)
from ledger_helpers import assert_books_balance, rows  # noqa: E402  (as above)
from nvml.library import build  # noqa: E402  (as above)
from running import Server, gpuledger, serving, wait_until  # noqa: E402  (as above)
from soaking import FLEET_PATHS, USER, USER_ID, Churn, Sample, Users, request_page, sample_program, slope  # noqa: E402  (as above)

SCENARIOS = ROOT / "src/gpuledger/sources/simulator/scenarios"
MARKS = ("<!-- soak: begin -->", "<!-- soak: end -->")
# Of the simulated node's ledger, before it starts: some 3,000 sessions.
HISTORY_DAYS = 2
# A second of an ordinary node takes a twentieth of a second here.
SPEED = 20
# KiB by which memory may rise over the last two thirds, because of the allocators.
MAX_RISE = 2048
# Memory varies by some MiB with the pages that are rendered at the moment: many samples average that out.
SAMPLES = 2400
# Changes of the machine per second, and for how many of them a process runs. Ended processes are kept for two
# minutes, so that memory depends on how many a node sees: here all, as they run for five times the longest
# interval that it chooses itself.
RATE, LIFE = 5, 10
# Seconds between two actions of the users of a node, and between two commands that one of them starts.
USER_PAUSE = 1
COMMAND_PAUSE = 15
TABLE = (
    "| program | minutes | MiB after a third | MiB at the end | rise, KiB | descriptors | threads |",
    "|---|---|---|---|---|---|---|",
)


@contextmanager
def repeating(name: str, pause: float, step: Callable[[], None]) -> Iterator[None]:
    """Run a step after each pause, in seconds, in a thread; steps that are late are not made up for."""
    done = Event()

    def run() -> None:
        while not done.wait(pause):
            step()

    thread = Thread(target=run, name=name)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def node_flags(folder: Path, name: str) -> list[str]:
    """Return the flags of a node with prices, a ledger and a control socket for all users."""
    socket = folder / f"{name}.sock"
    folders = ("--state-dir", str(folder / name), "--control.socket", str(socket), "--access", "socket")
    pace = ("--interval", f"{1000 // SPEED}ms", "--metric-retention", f"{300 // SPEED}s")
    return [*pace, *folders, *PRICES]


def simulated_source(folder: Path) -> str:
    """Return the node of the simulator, on which the unprivileged user of this machine has a process."""
    scenario = folder / "node.yaml"
    text = (SCENARIOS / "k8s-node.yaml").read_text("utf-8")
    scenario.write_text(
        text.replace("user: mira", f"user: {USER}").replace("uid: 1004", f"uid: {USER_ID}"), "utf-8"
    )
    return f"simulator:{scenario}"


def fill_ledger(folder: Path, source: str) -> None:
    """Write the days of ledger with which the node of this source starts."""
    clock = HistoryClock(SystemClock(), HISTORY_DAYS * 86_400.0, 1.0)
    made = assemble_node({"source": source, "state_dir": str(folder), "control.socket": "none"}, clock)
    try:
        write_history(made.parts, clock, lambda: False, lambda _: None)
    finally:
        made.parts.stop()


def acting(users: Users) -> AbstractContextManager[None]:
    """Let users act in a thread; `users.failure` is what one of their actions raised, which ends them."""
    numbers = count()

    def act() -> None:
        if not users.failure:
            users.act(runs_command=next(numbers) % (COMMAND_PAUSE // USER_PAUSE) == 0)

    return repeating("users", USER_PAUSE, act)


def soak(seconds: float, folder: Path) -> tuple[dict[str, list[Sample]], list[str]]:
    """Run all programs; return their samples, and what the nodes saw."""
    # The user of a node connects to a socket in it.
    folder.chmod(0o755)
    churn = Churn(folder / "state", LIFE)
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(churn.state.path)}
    source = simulated_source(folder)
    fill_ledger(folder / "simulator", source)
    simulated = ("--source", source, "--speed", str(SPEED))
    with ExitStack() as stack:
        nodes = {
            "nvml": stack.enter_context(
                serving("--source", "nvml", *node_flags(folder, "nvml"), "--node-name", "nvml", env=env)
            ),
            "simulator": stack.enter_context(serving(*simulated, *node_flags(folder, "simulator"))),
        }
        listed = folder / "nodes"
        listed.write_text(nodes["simulator"].url + "\n")
        fleet = FleetServer(listed)
        stack.callback(fleet.stop)
        wait_until(lambda: fleet.get("/api/v1/fleet").text.count('"revision"') >= 1, "the fleet")
        users = Users(nodes["simulator"], folder / "simulator.sock")
        with repeating("churn", 1 / RATE, churn.step), acting(users):
            found = observe(nodes, fleet, users, churn, seconds)
        ticks = {name: count_ticks(node) for name, node in nodes.items()}
        for server in (fleet, *nodes.values()):
            assert server.stop() == 0
    print(users)
    assert all(users.done[what] for what in ("costs", "receipts", "own receipts", "reservations"))
    seen = [f"{churn.started:,} processes were started on the node `nvml`."]
    for name in nodes:
        (books,) = (folder / name).glob("*.db")
        assert_books_balance(books)
        checked = gpuledger("books", "check", "--state-dir", str(folder / name))
        assert checked.returncode == 0, checked.stdout + checked.stderr
        sessions = rows(books, "SELECT count(*) FROM sessions")[0][0]
        seen.append(f"`{name}`: {ticks[name]:,} ticks, {sessions:,} sessions; the accounts balance.")
    return found, seen


def count_ticks(node: Server) -> int:
    """Return how many ticks a node has made."""
    (ticks,) = re.findall(r"^gpuledger_ticks_total (\d+)$", node.wait_ticks(), re.MULTILINE)
    return int(ticks)


def observe(
    nodes: Mapping[str, Server], fleet: Server, users: Users, churn: Churn, seconds: float
) -> dict[str, list[Sample]]:
    """Request pages of nodes and fleet, and sample all programs until the seconds are over."""
    programs = {**nodes, "fleet": fleet}
    found: dict[str, list[Sample]] = {name: [] for name in programs}
    began = due = time.monotonic()
    starts: list[tuple[float, int]] = []
    number = 0
    while (now := time.monotonic()) - began < seconds:
        for node in nodes.values():
            check(node, request_page(node, number))
        check(fleet, request_page(fleet, number, FLEET_PATHS))
        assert not users.failure, users.failure
        number += 1
        if now >= due:
            due = now + seconds / SAMPLES
            starts.append((now - began, churn.started))
            for name, program in programs.items():
                found[name].append(sample_program(program, now - began))
            if len(starts) % (SAMPLES // 10) == 0:
                print(
                    *TABLE, *(row(name, samples)[0] for name, samples in found.items()), sep="\n", flush=True
                )
        time.sleep(1 / SPEED)
    for third in range(3):
        (first, before), *_, (last, after) = starts[third * len(starts) // 3 : (third + 1) * len(starts) // 3]
        print(f"starts a second, third {third + 1}: {(after - before) / (last - first):.1f}")
    return found


def check(server: Server, status: int) -> None:
    """Check the status of a response, and that the program logged no internal error."""
    assert status in (200, 404), status
    errors = [line for line in server.lines if "internal error" in line or "Traceback" in line]
    assert not errors, server.lines[-50:]


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
        found, seen = soak(given.minutes * 60, Path(folder))
    results = [row(name, samples) for name, samples in found.items()]
    for name, samples in found.items():
        print(name, "MiB over time:", *(f"{one.resident / 1024:.1f}" for one in samples[:: SAMPLES // 40]))
    lines = [*TABLE, *(line for line, _ in results), "", *seen]
    print_table(lines, given.write, MARKS)
    if not all(flat for _, flat in results):
        raise SystemExit("memory, descriptors or threads grew")


if __name__ == "__main__":
    main()
