"""The books outlive `kill -9`, at any moment and again and again, and ten thousand processes."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

from books_helpers import Run, assert_books_balance, rows
from builders import gpu, process
from gpuledger.model.workload import Workload
from running import Server, gpuledger, serving, wait_until

DRIVER = Path(__file__).with_name("books_driver.py")
KILLS = 30


def test_kill_dash_nine_in_a_loop_keeps_the_books_in_balance_and_no_counter_steps_back(
    tmp_path: Path,
) -> None:
    chance = random.Random(4)
    file, books = tmp_path / "told", tmp_path / "gpuledger.db"
    booked = 0
    for _ in range(KILLS):
        before = file.stat().st_size if file.exists() else 0
        more = chance.choice([1, 2_000, 20_000, 100_000])
        with subprocess.Popen(
            [sys.executable, str(DRIVER), str(tmp_path), str(file)], stderr=subprocess.PIPE, text=True
        ) as program:

            def told_enough(before: int = before, more: int = more, program: object = program) -> bool:
                assert program.poll() is None, program.stderr.read()  # type: ignore[attr-defined]
                return file.exists() and file.stat().st_size >= before + more

            wait_until(told_enough, "the program to post")
            program.kill()
        # A line that was cut off must not hide the first one of the next run.
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
    # Nothing but the time in which nobody ran is unobserved, and none of it is lost.
    (gaps,) = rows(books, "SELECT count(*) FROM spans WHERE method = 'unobserved'")[0]
    assert gaps >= KILLS
    assert rows(books, "SELECT count(*) FROM epochs") == [(0,)]


def scraped(file: Path) -> list[dict[str, int]]:
    pages = []
    for line in file.read_text().splitlines():
        try:
            pages.append(json.loads(line))
        except ValueError:
            # Cut off by the kill: seen by nobody.
            continue
    return pages


def counters(server: Server) -> dict[str, float]:
    """Every exported energy counter, as a scraper sees it."""
    text = server.get("/metrics/native").text + server.get("/metrics/energy").text
    found = re.findall(r"^(\S*_joules(?:_total)?\{.*\}) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if "pending" not in name and "imbalance" not in name}


def test_a_server_that_is_killed_goes_on_with_what_it_told(tmp_path: Path) -> None:
    asked = ("--source", "simulator", "--speed", "100", "--interval", "100ms", "--state-dir", str(tmp_path))
    before: dict[str, float] = {}
    for _ in range(3):
        server = Server(*asked)
        try:
            server.wait_ticks(12)
            now = counters(server)
        finally:
            server.process.kill()
            server.stop()
        shared = now.keys() & before.keys()
        assert not before or any(before[name] > 0 for name in shared)
        assert all(now[name] >= before[name] or now[name] == 0 for name in shared)
        before = now
        assert_books_balance(tmp_path / "simulator-k8s-node.db")


def test_a_second_server_on_the_same_books_is_refused(tmp_path: Path) -> None:
    asked = ("--source", "simulator", "--state-dir", str(tmp_path))
    with serving(*asked) as first:
        first.wait_ticks(1)
        done = gpuledger("serve", "--listen-address", "127.0.0.1:0", *asked)
    assert done.returncode == 1
    assert re.fullmatch(
        r"gpuledger: the books in .* are being written by another gpuledger: .*\n", done.stderr
    )


def test_a_server_whose_books_cannot_be_opened_serves_and_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with serving("--source", "simulator", "--state-dir", str(blocked / "books")) as server:
        page = server.wait_ticks(1)
        assert 'gpuledger_collector_success{collector="store"} 0' in page
        health = server.get("/health").text
        assert health.startswith("DEGRADED: store:")
        assert "in memory alone" in health


def test_ten_thousand_processes_leave_memory_flat_and_every_session_in_the_file(tmp_path: Path) -> None:
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
    """How many things the Ledger holds, in all its collections."""
    return sum(
        len(part)
        for holder in (
            run.ledger.sessions,
            run.ledger._accounts,
            run.ledger._accounts._rows,
            run.ledger._accounts._owners,
            run.ledger._keeper,
            run.ledger._keeper.journal,  # type: ignore[union-attr]  # there are books
            run.ledger._membership,
        )
        for name in (getattr(holder, "__dict__", None) or type(holder).__slots__)  # type: ignore[attr-defined]
        if hasattr(part := getattr(holder, name), "__len__")
    )
