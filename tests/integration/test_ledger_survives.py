"""The ledger survives repeated `kill -9` at any moment, and ten thousand processes."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

from builders import gpu, process
from gpuledger.model.workload import Workload
from ledger_helpers import Run, assert_books_balance, rows
from running import Program, Server, gpuledger, serving_prepared, wait_until

DRIVER = Path(__file__).with_name("ledger_driver.py")
KILLS = 30


def test_after_repeated_kill_dash_nine_the_accounts_balance_and_no_counter_decreases(
    tmp_path: Path,
) -> None:
    chance = random.Random(4)
    file, books = tmp_path / "exported", tmp_path / "gpuledger.db"
    booked = 0
    for _ in range(KILLS):
        before = file.stat().st_size if file.exists() else 0
        more = chance.choice([1, 2_000, 20_000, 100_000])
        program = Program([sys.executable, str(DRIVER), str(tmp_path), str(file)], prepared=True)

        def posted_enough(before: int = before, more: int = more, program: Program = program) -> bool:
            assert program.process.poll() is None, program.lines
            return file.exists() and file.stat().st_size >= before + more

        try:
            wait_until(posted_enough, "the program to post")
        finally:
            program.process.kill()
            program.stop()
        # End a truncated line, so that it does not hide the first line of the next run.
        with file.open("a") as end:
            end.write("\n" if not file.read_text().endswith("\n") else "")
        now = assert_books_balance(books)
        assert now >= booked
        booked = now
    highest: dict[str, int] = {}
    steps = 0
    for page in scraped(file):
        for name, joules in page.items():
            assert joules >= highest.get(name, 0) or joules == 0, (name, highest[name], joules)
            steps += joules > highest.get(name, 0)
            highest[name] = joules
    assert steps > KILLS
    # There is an unobserved span for each time without a program, and the epoch continues.
    (gaps,) = rows(books, "SELECT count(*) FROM spans WHERE method = 'unobserved'")[0]
    assert gaps >= KILLS
    assert rows(books, "SELECT count(*) FROM epochs") == [(0,)]


def scraped(file: Path) -> list[dict[str, int]]:
    pages = []
    for line in file.read_text().splitlines():
        try:
            pages.append(json.loads(line))
        except ValueError:
            # Truncated by the kill: no scraper saw this line.
            continue
    return pages


def counters(server: Server) -> dict[str, float]:
    """Return all exported energy counters by series.

    Without those of processes that ended before their names were read: the scenario uses their pids again
    within minutes, which pass between two pages on a slow machine.
    """
    text = server.get("/metrics/native").text + server.get("/metrics/energy").text
    found = re.findall(r"^(\S*_joules(?:_total)?\{.*\}) (\S+)$", text, re.MULTILINE)
    nameless = re.compile(r'pid="\d+",gpu="\d",process_name="",pod="",')
    left_out = ("pending", "imbalance")
    return {
        name: float(value)
        for name, value in found
        if not nameless.search(name) and not any(word in name for word in left_out)
    }


def test_a_killed_server_continues_its_exported_counters(tmp_path: Path) -> None:
    flags = ("--source", "simulator", "--speed", "100", "--interval", "100ms", "--state-dir", str(tmp_path))
    # On a slow machine minutes are simulated between two pages, after which a row would begin again at 0.
    flags = (*flags, "--metric-retention", "10h")
    before: dict[str, float] = {}
    for _ in range(3):
        server = Server(*flags, prepared=True)
        try:
            server.wait_ticks(12)
            now = counters(server)
        finally:
            server.process.kill()
            server.stop()
        shared = now.keys() & before.keys()
        assert not before or any(before[name] > 0 for name in shared)
        lower = {name: (before[name], now[name]) for name in shared if 0 != now[name] < before[name]}
        assert not lower
        before = now
        assert_books_balance(tmp_path / "simulator-k8s-node.db")


def test_a_second_server_on_the_same_ledger_is_refused(tmp_path: Path) -> None:
    flags = ("--source", "simulator", "--state-dir", str(tmp_path))
    with serving_prepared(*flags) as first:
        first.wait_ticks(1)
        done = gpuledger("serve", "--listen-address", "127.0.0.1:0", *flags)
    assert done.returncode == 1
    assert re.fullmatch(r"gpuledger: the ledger in .* is in use by another gpuledger: .*\n", done.stderr)


def test_a_server_that_cannot_open_its_ledger_serves_and_reports_it(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with serving_prepared("--source", "simulator", "--state-dir", str(blocked / "books")) as server:
        page = server.wait_ticks(1)
        assert 'gpuledger_collector_success{collector="store"} 0' in page
        health = server.get("/health").text
        assert health.startswith("DEGRADED: store:")
        assert "is kept in memory" in health


def test_ten_thousand_processes_do_not_grow_memory_and_all_sessions_are_stored(tmp_path: Path) -> None:
    card = gpu(0, sm_count=132)
    run = Run(tmp_path)
    sizes = []
    for generation in range(400):
        pods = [Workload("pod", "ml", f"pod-{number}") for number in range(25)]
        crowd = [
            process(card, 100 + number, ticks=generation * 25 + number + 1, workload=pod)
            for number, pod in enumerate(pods)
        ]
        run.tick({card: generation * 100_000}, crowd, seconds=5.0)
        sizes.append(entries(run))
    assert max(sizes[200:]) <= max(sizes[100:200])
    run.tick({card: 400 * 100_000}, seconds=5.0)
    run.store.close()
    assert rows(
        run.store.file,
        "SELECT count(*), count(ended), count(DISTINCT ticks) FROM sessions JOIN usage USING (number)",
    ) == [(10_000, 10_000, 10_000)]
    assert_books_balance(run.store.file)


def entries(run: Run) -> int:
    """Return the number of entries in all collections of the Ledger."""
    return sum(
        len(part)
        for holder in (
            run.ledger.sessions,
            run.ledger._accounts,
            run.ledger._accounts._rows,
            run.ledger._accounts._owners,
            run.ledger._persistence,
            run.ledger._persistence.journal,  # type: ignore[union-attr]  # it has a store
            run.ledger._process_cap,
        )
        for name in (getattr(holder, "__dict__", None) or type(holder).__slots__)  # type: ignore[attr-defined]
        if hasattr(part := getattr(holder, name), "__len__")
    )
