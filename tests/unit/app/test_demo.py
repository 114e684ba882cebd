"""The books of a demo: made faster than real time by the simulator and the real ledger."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders import FakeClock
from gpuledger.app import demo
from gpuledger.app.demo import (
    HistoryClock,
    demo_directory,
    history_of,
    write_demo_configuration,
    write_history,
)
from gpuledger.app.node_assembly import assemble_node
from gpuledger.app.node_parts import NodeParts
from gpuledger.cli.main import main
from gpuledger.config.commands import ALL_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.model.settings import build_settings
from gpuledger.node.settings import NO_SOCKET, ControlSettings
from ledger_helpers import rows

# Simulated seconds: coarse steps, then fine ones.
PAST, RECENT = 2000, 100
NOW = 1_700_000_000.0
# Seconds since a boot: less than the past that a demo simulates.
JUST_BOOTED = 5.0


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a demo, with books up to now."""
    folder = tmp_path_factory.mktemp("books")
    file = write_demo_configuration(folder)
    clock = HistoryClock(FakeClock(NOW, JUST_BOOTED), PAST, 1.0)
    made = assemble_node(load_values(NODE_GROUPS.values(), {}, {}, file, ALL_GROUPS), clock)
    done: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_RECENT", RECENT)
        write_history(made.parts, clock, lambda: False, done.append)
    assert len(done) < PAST / 50 + RECENT / 9
    made.parts.stop()
    assert done == sorted(done)
    assert done[-1] == 1
    assert clock.lag == 0
    return file


@pytest.mark.parametrize(("length", "is_short"), [(1, True), (150, False)])
def test_the_socket_of_a_demo_is_beside_its_books(tmp_path: Path, length: int, is_short: bool) -> None:
    folder = tmp_path / ("a" * length)
    folder.mkdir()
    values = load_values(ALL_GROUPS, {}, {}, write_demo_configuration(folder))
    expected = str(folder / "control.sock") if is_short else NO_SOCKET
    assert build_settings(ControlSettings, values).socket == expected


@pytest.fixture(autouse=True)
def _no_other_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULEDGER_STATE_DIR", raising=False)


def reported(books: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["report", "--config", str(books), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_books_balance(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["books", "check", "--state-dir", str(books.parent)]) == 0
    capsys.readouterr()


def test_every_second_is_watched_and_has_a_price(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = reported(books, capsys)
    total = found["total"]
    assert total["gpu_microseconds"] == sum(
        row["gpu_microseconds"] for row in (*found["rows"], *found["own"])
    )
    assert total["gpu_microseconds"] == 5 * PAST * 1_000_000
    assert total["unpriced_microseconds"] == 0
    assert total["cost"] > 0
    assert found["settings"]["price.currency"] == "EUR"


def test_books_are_stored_from_their_begin_on_a_machine_that_was_just_booted(books: Path) -> None:
    (file,) = books.parent.glob("*.db")
    assert rows(file, "SELECT value FROM meta WHERE key = 'begun'") == [(NOW - PAST,)]


def test_prices_are_labelled_as_demo_prices(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert any("demo prices" in note for note in reported(books, capsys)["notes"])
    assert main(["report", "--config", str(books)]) == 0
    assert "demo prices" in capsys.readouterr().out
    assert main(["explain", "--config", str(books), "chat-0"]) == 0
    assert "demo prices" in capsys.readouterr().out


def test_teams_have_their_rows(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teams = {row["team"] for row in reported(books, capsys, "--by", "team")["rows"]}
    assert {"research", "products"} <= teams


def test_history_ends_when_it_is_stopped(tmp_path: Path) -> None:
    clock = HistoryClock(FakeClock(NOW), PAST, 1.0)
    made = assemble_node({"source": "simulator:demo", "state_dir": str(tmp_path)}, clock)
    write_history(made.parts, clock, lambda: True, pytest.fail)
    made.parts.stop()
    assert clock.lag == PAST


@pytest.mark.parametrize("speed", [0.5, 1.0, 20.0])
def test_the_clock_comes_from_the_past_to_the_present(speed: float) -> None:
    real = FakeClock(NOW)
    clock = HistoryClock(real, 100.0, speed)
    assert clock.unix() == real.unix() - 100
    assert clock.elapsed() == real.elapsed()
    clock.advance(60)
    assert clock.unix() == real.unix() - 40
    real.advance(1 / speed)
    assert clock.elapsed() == real.elapsed() + 59 / speed
    assert clock.lag == pytest.approx(41)
    clock.advance(60)
    for _ in range(2):
        assert (clock.unix(), clock.elapsed(), clock.lag) == (real.unix(), real.elapsed() + 100 / speed, 0)
        real.advance(10)


SCENARIO = """
gpus:
- model: NVIDIA A100-SXM4-80GB
  memory: 80GB
  processes: [{name: python3, user: ada, uid: 1001, memory: 1GB, load: 0.5, age: 1h}]
faults: [{kind: xid, gpu: 0, xid: 31, at: 100s}]
"""
LEDGER = "simulator-node.yaml.db"


def simulate(folder: Path, now: float, ticks: int) -> None:
    """A demo that ends after so many ticks of its history."""
    (folder / "node.yaml").write_text(SCENARIO)
    clock = HistoryClock(FakeClock(now, JUST_BOOTED), history_of(folder / LEDGER, PAST), 1.0)
    made = assemble_node({"source": "simulator:node.yaml", "state_dir": str(folder)}, clock)
    assert made.parts.store is not None
    done: list[float] = []
    posted = made.parts.store.stored_ledger.unix
    write_history(made.parts, clock, lambda: len(done) == ticks, done.append, posted)
    made.parts.stop()


@pytest.mark.parametrize("later", [1.5, 40.0, 4000.0])
@pytest.mark.parametrize("ticks", [1, 10, 1000])
def test_books_are_continued_as_if_the_earlier_demo_had_not_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ticks: int,
    later: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_RECENT", RECENT)
    monkeypatch.setattr(demo, "sleep", pytest.fail)
    for now, most in ((NOW, ticks), (NOW + later, 1000)):
        monkeypatch.setattr(demo, "time", lambda now=now: now)
        simulate(tmp_path, now, most)
    file = tmp_path / LEDGER
    assert main(["report", "--json", "--state-dir", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    # The second between the last posting and the next reading.
    assert found["total"]["gpu_microseconds"] == (PAST + later - 1) * 1_000_000
    (unobserved,) = [row["kwh"] for row in found["own"] if row["account"] == "unobserved"]
    assert 0 <= unobserved < 0.04 * found["total"]["kwh"]
    assert found["total"]["sessions"] == 1
    assert rows(file, "SELECT count(*), sum(times) FROM xids") == [(1, 1)]


@pytest.mark.parametrize("speed", [1.0, 1000.0, 10_000.0])
def test_history_ends_although_the_present_moves_on_while_it_is_booked(speed: float) -> None:
    real = FakeClock(NOW)
    clock = HistoryClock(real, demo.HISTORY, speed)
    # Each tick takes longer than the time between two of them at a high speed.
    node = SimpleNamespace(tick=lambda: real.advance(0.05))
    done: list[float] = []
    write_history(cast("NodeParts", SimpleNamespace(node=node)), clock, lambda: len(done) > 3000, done.append)
    assert clock.lag == 0


def test_a_temporary_directory_is_private_and_removed() -> None:
    with demo_directory("") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        write_demo_configuration(folder)
    assert not folder.exists()


def test_a_given_directory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with demo_directory("some/books") as folder:
        assert folder.is_absolute()
    assert folder == tmp_path / "some" / "books"
    assert folder.exists()


def test_the_configuration_names_directory_and_source_in_any_form(tmp_path: Path) -> None:
    folder = tmp_path / "a: b #'\"c"
    folder.mkdir()
    source = "simulator:of mine: #2.yaml"
    values = load_values(ALL_GROUPS, {}, {}, write_demo_configuration(folder, source))
    assert (values["state_dir"], values["source"]) == (str(folder), source)


@pytest.mark.parametrize("words", [("demo", "--state-dir"), ("man", "--output")])
def test_a_place_that_cannot_be_written_is_named_with_its_flag(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    for name in ("demo.yaml", "gpuledger.1"):
        (tmp_path / "full" / name).symlink_to("/dev/full")
    for place, why in (("file", "File exists"), ("full", "No space left on device")):
        assert main([*words, str(tmp_path / place)]) == 1
        error = capsys.readouterr().err
        assert f"{tmp_path / place}" in error
        assert f"{why}; name another directory with {words[1]}" in error
