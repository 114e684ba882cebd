"""The file of `gpuledger collect` is complete at any time: for a reader, and after a kill."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collecting import NAME, OLD, QUICK, collecting, names
from node_exporter import node_exporter
from running import gpuledger, wait_until

# A writer at full speed. Version n has 20 to 400 rows of value n, and a last row with their number: a partial
# or mixed file is inconsistent.
WRITER = f"""\
import sys
from pathlib import Path
from gpuledger.outputs.textfile import Textfile

directory, n = Path(sys.argv[1]), 0
filler = "x" * int(sys.argv[2])
with Textfile(directory, "{NAME}") as file:
    while not (directory / "stop").exists():
        n += 1
        rows = 20 * (1 + n % 20)
        lines = [f'gpu_row{{{{row="{{row}}",filler="{{filler}}"}}}} {{n}}' for row in range(rows)]
        file.write("\\n".join([*lines, f"gpu_rows_last {{rows}}", ""]).encode())
"""


def check_whole(rows: set[float], count: int, last: float) -> int:
    """The version of the file; fails for an incomplete one."""
    (number,) = rows
    assert count == last == 20 * (1 + number % 20)
    return int(number)


def check_whole_file(text: str) -> int:
    *rows, last = text.splitlines()
    assert last.startswith("gpu_rows_last ")
    assert text.endswith("\n")
    return check_whole({float(row.rpartition(" ")[2]) for row in rows}, len(rows), float(last.split()[1]))


@contextmanager
def writing(directory: Path, filler: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(directory), str(filler)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "textfile"
    made.mkdir()
    return made


def test_node_exporter_never_reads_a_partial_file_during_a_thousand_rewrites(directory: Path) -> None:
    with node_exporter(directory) as real, writing(directory, filler=10):
        wait_until((directory / NAME).exists, "the first page")
        seen = set()
        scrapes = 0
        while scrapes < 150 or max(seen) < 1000:
            found = real.scrape()
            assert found["node_textfile_scrape_error"] == {(): 0.0}
            rows, (last,) = found["gpu_row"].values(), found["gpu_rows_last"].values()
            seen.add(check_whole(set(rows), len(rows), last))
            scrapes += 1
        # Otherwise the writer was not active between the scrapes, and the test would prove little.
        assert len(seen) > 50


def wait_rewrites(file: Path, number: int) -> None:
    seen: set[int] = set()

    def enough() -> bool:
        seen.add(file.stat().st_mtime_ns)
        return len(seen) > number

    wait_until(enough, f"{number} rewrites")


def test_a_writer_killed_at_any_time_leaves_a_complete_file(directory: Path) -> None:
    choose = random.Random(3)
    file = directory / NAME
    interrupted_writes = 0
    for _ in range(30):
        file.write_text(OLD)
        with writing(directory, filler=400) as process:
            wait_rewrites(file, choose.randrange(4))
            # Continue into the next rewrite.
            for _ in range(choose.randrange(2000)):
                pass
            process.kill()
            process.wait()
        text = file.read_text()
        assert text == OLD or check_whole_file(text)
        interrupted_writes += any(name.endswith(".tmp") for name in names(directory))
    # Otherwise no kill interrupted a write, and the test would prove nothing.
    assert interrupted_writes
    done = gpuledger("collect", "--source", "simulator", "--textfile-dir", str(directory))
    assert done.returncode == 0
    assert names(directory) == {NAME}


def test_collect_killed_at_any_time_leaves_a_complete_file_and_no_lock(directory: Path) -> None:
    file = directory / NAME
    where = ("--source", "simulator", "--dialect", "process,session", "--textfile-dir", str(directory))
    for rewrites in (0, 1, 1, 2, 3):
        file.write_text(OLD)
        with collecting(*where, *QUICK) as run:
            wait_rewrites(file, rewrites)
            run.process.kill()
            run.process.wait()
        text = file.read_text()
        assert text == OLD or text.splitlines()[-1].startswith("gpu_total_sessions ")
    assert gpuledger("collect", *where).returncode == 0
    assert names(directory) == {NAME}
