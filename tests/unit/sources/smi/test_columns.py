"""Every column of nvidia-smi for the dialect of its names: asked only when wanted, and by what it offers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from builders import FakeClock
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import COLUMNS, POWER
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.smi.command import NotStarted, Outcome, Ran
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FirstSight, Recorded, fixture, source

FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"
WANTED = ALL | {COLUMNS}
GPUS = fixture("cards/query-gpu.csv")
OFFERED = [title.split(" [")[0] for title in GPUS.splitlines()[0].split(", ")]
HELP = "Properties:\n\n" + "".join(f'"{name}"\nWhat it is.\n\n' for name in OFFERED)


def recorded(**instead: str | bytes | Outcome | None) -> Recorded:
    return Recorded("cards", **{"help_query_gpu": HELP, **instead})


def smi(run: Recorded, clock: FakeClock | None = None, **settings: object) -> SmiSource:
    return SmiSource(SmiSettings(**settings), (), FirstSight(), clock or FakeClock(), run)  # type: ignore[arg-type]


def columns(seen: Snapshot) -> dict[str, Mapping[str, str]]:
    return {reading.device.uuid: reading.raw for reading in seen.readings}


def failures(seen: Snapshot) -> list[tuple[str, str]]:
    return [(one.reason, one.detail) for one in seen.failures if one.part == "columns"]


def asked(run: Recorded) -> list[list[str]]:
    """The fields of each table that was asked for."""
    start = "--query-gpu="
    return [call[0].removeprefix(start).split(",") for call in run.calls if call[0].startswith(start)]


def test_without_anybody_who_wants_them_columns_are_not_asked_for() -> None:
    run = recorded()
    seen = source(run).read(ALL)
    assert {"help-query-gpu", "query-gpu"}.isdisjoint(run.questions)
    assert columns(seen) == {FIRST: {}, SECOND: {}}
    assert "columns" not in [part.name for part in seen.collected]


def test_all_that_is_offered_is_asked_for_and_told_as_printed() -> None:
    run = recorded()
    seen = smi(run).read(WANTED)
    assert asked(run) == [OFFERED]
    told = columns(seen)
    assert [len(row) for row in told.values()] == [len(OFFERED)] * 2
    assert told[FIRST]["fan.speed [%]"] == "41 %"
    assert told[SECOND]["fan.speed [%]"] == "[N/A]"
    assert failures(seen) == []
    assert seen.source.exit_code == 0


def test_what_is_offered_is_asked_once_and_again_after_another_driver_was_loaded() -> None:
    run = recorded()
    tick = smi(run)
    for _ in range(3):
        tick.read(WANTED)
    assert run.questions.count("help-query-gpu") == 1
    run.instead["xml"] = fixture("cards/xml").replace("550.54.15", "590.10")
    tick.read(WANTED)
    assert run.questions.count("help-query-gpu") == 2


def test_an_nvidia_smi_without_help_is_asked_for_the_usual_fields_and_for_help_after_a_minute() -> None:
    clock, run = FakeClock(), recorded(help_query_gpu=None)
    tick = smi(run, clock)
    assert columns(tick.read(WANTED))[FIRST]["power.draw [W]"] == "211.37 W"
    clock.advance(59)
    tick.read(WANTED)
    assert run.questions.count("help-query-gpu") == 1
    run.instead["help-query-gpu"] = HELP
    clock.advance(1)
    assert len(columns(tick.read(WANTED))[FIRST]) == len(OFFERED)


def test_named_fields_are_asked_for_with_those_that_say_whose_they_are() -> None:
    run = recorded()
    told = columns(smi(run, query_field_names=("power.draw", "clocks.sm")).read(WANTED))[FIRST]
    assert run.questions.count("help-query-gpu") == 0
    assert told["power.draw [W]"] == "211.37 W"
    # The driver heads a column with the name that it prefers.
    assert told["clocks.current.sm [MHz]"] == "2520 MHz"
    assert told["uuid"] == FIRST
    assert "temperature.gpu" not in told


def test_excluded_fields_are_not_asked_for() -> None:
    run = recorded()
    smi(run, query_field_names_exclude=("power.*", "uuid")).read(WANTED)
    assert asked(run) == [[name for name in OFFERED if not name.startswith("power.")]]


def test_a_named_field_that_the_driver_does_not_know_is_complained_of_and_loses_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tick = smi(recorded(), query_field_names=("power.drow", "temperature.gpu"))
    for _ in range(2):
        seen = tick.read(WANTED)
        complaint = "unknown field of nvidia-smi 'power.drow'; did you mean 'power.draw'?"
        assert failures(seen) == [("FIELD_UNKNOWN", complaint)]
        assert columns(seen)[FIRST]["temperature.gpu"] == "57"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_field_that_is_offered_and_refused_is_left_out_without_a_word() -> None:
    run = recorded(help_query_gpu=HELP + '"brand.new"\nIn the help alone.\n\n')
    seen = smi(run).read(WANTED)
    assert len(columns(seen)[FIRST]) == len(OFFERED)
    assert failures(seen) == []


@pytest.mark.parametrize(
    ("outcome", "reason", "code"),
    [
        (Ran(b"", b"oops\n", 6), "exit_6", 6),
        (Ran(b"", code=-9, timed_out=True), "timeout", -9),
        (NotStarted("PermissionError", "denied"), "not_started", -1),
        (Ran(b"hello\n"), "UNREADABLE", -1),
    ],
)
def test_a_table_that_fails_costs_the_columns_alone_and_says_why(
    outcome: Outcome, reason: str, code: int
) -> None:
    seen = smi(recorded(query_gpu=outcome)).read(WANTED)
    assert columns(seen) == {FIRST: {}, SECOND: {}}
    assert [found for found, _ in failures(seen)] == [reason]
    assert seen.source.exit_code == code
    assert seen.readings[0].get(POWER) == 211.37
    assert [part.success for part in seen.collected if part.name == "columns"] == [False]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Ran(b"NVIDIA-SMI has failed\n", code=9), 9),
        (Ran(b"", code=-9, timed_out=True), -1),
        (NotStarted("FileNotFoundError"), -1),
        (Ran(b"No devices were found\n"), -1),
    ],
)
def test_the_exit_code_of_a_machine_that_cannot_be_read_is_kept(outcome: Outcome, code: int) -> None:
    tick = smi(recorded(xml=outcome))
    with pytest.raises(SourceUnavailable):
        tick.read(WANTED)
    assert tick.info.exit_code == code


def test_a_row_that_is_mangled_costs_that_gpus_columns_alone() -> None:
    title, first, second = GPUS.splitlines()
    seen = smi(recorded(query_gpu="\n".join([title, first.replace(", P2,", ","), second, ""]))).read(WANTED)
    assert columns(seen)[FIRST] == {}
    assert len(columns(seen)[SECOND]) == len(OFFERED)
    assert [reason for reason, _ in failures(seen)] == ["ROW_UNREADABLE"]


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode("utf-16-le"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
    ],
    ids=["crlf", "utf-16 with a mark", "utf-16 without", "utf-16 big-endian", "utf-8 with a mark"],
)
def test_answers_of_windows_are_read_like_any(encode: object) -> None:
    plain = columns(smi(recorded()).read(WANTED))
    assert callable(encode)
    answers = {"query_gpu": GPUS, "help_query_gpu": HELP, "xml": fixture("cards/xml")}
    seen = smi(recorded(**{name: encode(text) for name, text in answers.items()})).read(WANTED)
    assert columns(seen) == plain
    assert seen.invalid == 0


class Slow(Recorded):
    """A card of which some fields take seconds, besides what every call takes."""

    def __init__(self, clock: FakeClock, takes: Mapping[str, float], bare: float = 0.5) -> None:
        super().__init__("cards", help_query_gpu=HELP)
        self._clock, self._takes, self._bare = clock, takes, bare

    def __call__(self, words: tuple[str, ...], timeout: float) -> Outcome:
        outcome = super().__call__(words, timeout)
        fields = words[1].partition("=")[2].split(",")
        taken = self._bare + sum(self._takes.get(name, 0.0) for name in fields)
        self._clock.advance(min(taken, timeout))
        return outcome if taken < timeout else Ran(b"", code=-9, timed_out=True)


@pytest.mark.parametrize("seconds", [3.0, 1000.0])
def test_a_field_that_takes_seconds_is_found_and_left_out_with_one_warning(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    run = Slow(clock, {"fan.speed": seconds, "power.limit": seconds})
    tick = smi(run, clock)
    for _ in range(25):
        seen = tick.read(WANTED)
    assert set(OFFERED) - set(asked(run)[-1]) == {"fan.speed", "power.limit"}
    assert columns(seen)[FIRST]["power.draw [W]"] == "211.37 W"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [" for fan.speed alone" in text or " for power.limit alone" in text for text in said] == [True] * 2
    before = len(asked(run))
    tick.read(WANTED)
    assert len(asked(run)) == before + 1, "the search is over"


@pytest.mark.parametrize(
    ("takes", "bare"),
    [({}, 4.0), (dict.fromkeys(OFFERED, 0.3), 0.5)],
    ids=["the command by itself", "every field a little"],
)
def test_what_is_slow_as_a_whole_has_no_slow_field_and_is_looked_at_once(
    takes: dict[str, float], bare: float
) -> None:
    clock = FakeClock()
    run = Slow(clock, takes, bare)
    tick = smi(run, clock)
    for _ in range(40):
        tick.read(WANTED)
    before = len(asked(run))
    for _ in range(5):
        tick.read(WANTED)
    assert asked(run)[before:] == [OFFERED] * 5


def test_a_field_that_becomes_slow_later_is_found_then() -> None:
    clock = FakeClock()
    takes: dict[str, float] = {}
    run = Slow(clock, takes, bare=2.0)
    tick = smi(run, clock)
    for _ in range(5):
        tick.read(WANTED)
    takes["pstate"] = 2.0
    for _ in range(15):
        tick.read(WANTED)
    assert set(OFFERED) - set(asked(run)[-1]) == {"pstate"}


@pytest.mark.parametrize(
    "settings", [{"slow_field": 0.0}, {"query_field_names": ("fan.speed",)}], ids=["switched off", "named"]
)
def test_a_slow_field_is_asked_for_all_the_same_where_the_user_says_so(settings: dict[str, object]) -> None:
    clock = FakeClock()
    run = Slow(clock, {"fan.speed": 3.0})
    tick = smi(run, clock, **settings)
    for _ in range(12):
        seen = tick.read(WANTED)
    assert columns(seen)[FIRST]["fan.speed [%]"] == "41 %"
    assert all("fan.speed" in fields for fields in asked(run))
