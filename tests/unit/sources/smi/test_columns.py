"""The columns of nvidia-smi for the smi dialect: queried only if wanted, and only those that it offers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import COLUMNS, POWER
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FirstSeenHost, Recorded, fixture, source

FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"
WANTED = ALL | {COLUMNS}
GPUS = fixture("cards/query-gpu.csv")
OFFERED = [title.split(" [")[0] for title in GPUS.splitlines()[0].split(", ")]
HELP = "Properties:\n\n" + "".join(f'"{name}"\nIts description.\n\n' for name in OFFERED)


def recorded(**instead: str | bytes | CommandResult | None) -> Recorded:
    return Recorded("cards", **{"help_query_gpu": HELP, **instead})


def smi(run: Recorded, clock: FakeClock | None = None, **settings: object) -> SmiSource:
    return SmiSource(SmiSettings(**settings), (), FirstSeenHost(), clock or FakeClock(), run)  # type: ignore[arg-type]


def columns(snapshot: Snapshot) -> dict[str, Mapping[str, str]]:
    return {reading.device.uuid: reading.raw for reading in snapshot.readings}


def failures(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(failure.reason, failure.detail) for failure in snapshot.failures if failure.part == "columns"]


def queried_fields(run: Recorded) -> list[list[str]]:
    """Return the fields of each `--query-gpu` call."""
    start = "--query-gpu="
    return [call[0].removeprefix(start).split(",") for call in run.calls if call[0].startswith(start)]


def test_columns_are_queried_only_if_wanted() -> None:
    run = recorded()
    snapshot = source(run).read(ALL)
    assert {"help-query-gpu", "query-gpu"}.isdisjoint(run.queries)
    assert columns(snapshot) == {FIRST: {}, SECOND: {}}
    assert "columns" not in [part.name for part in snapshot.collected]


def test_all_offered_fields_are_queried_and_returned_as_printed() -> None:
    run = recorded()
    snapshot = smi(run).read(WANTED)
    assert queried_fields(run) == [OFFERED]
    raw = columns(snapshot)
    assert [len(row) for row in raw.values()] == [len(OFFERED)] * 2
    assert raw[FIRST]["fan.speed [%]"] == "41 %"
    assert raw[SECOND]["fan.speed [%]"] == "[N/A]"
    assert failures(snapshot) == []
    assert snapshot.source.exit_code == 0


def test_offered_fields_are_queried_once_and_again_after_a_driver_change() -> None:
    run = recorded()
    tick = smi(run)
    for _ in range(3):
        tick.read(WANTED)
    assert run.queries.count("help-query-gpu") == 1
    run.instead["xml"] = fixture("cards/xml").replace("550.54.15", "590.10")
    tick.read(WANTED)
    assert run.queries.count("help-query-gpu") == 2


def test_without_help_the_fallback_fields_are_queried_and_help_is_retried_after_a_minute() -> None:
    clock, run = FakeClock(), recorded(help_query_gpu=None)
    tick = smi(run, clock)
    assert columns(tick.read(WANTED))[FIRST]["power.draw [W]"] == "211.37 W"
    clock.advance(59)
    tick.read(WANTED)
    assert run.queries.count("help-query-gpu") == 1
    run.instead["help-query-gpu"] = HELP
    clock.advance(1)
    assert len(columns(tick.read(WANTED))[FIRST]) == len(OFFERED)


def test_named_fields_are_queried_together_with_the_identity_fields() -> None:
    run = recorded()
    raw = columns(smi(run, query_field_names=("power.draw", "clocks.sm")).read(WANTED))[FIRST]
    assert run.queries.count("help-query-gpu") == 0
    assert raw["power.draw [W]"] == "211.37 W"
    # The header has the driver's current name of the column.
    assert raw["clocks.current.sm [MHz]"] == "2520 MHz"
    assert raw["uuid"] == FIRST
    assert "temperature.gpu" not in raw


def test_excluded_fields_are_not_queried() -> None:
    run = recorded()
    smi(run, query_field_names_exclude=("power.*", "uuid")).read(WANTED)
    assert queried_fields(run) == [[name for name in OFFERED if not name.startswith("power.")]]


def test_a_named_field_that_the_driver_rejects_is_reported_and_the_others_are_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tick = smi(recorded(), query_field_names=("power.drow", "temperature.gpu"))
    for _ in range(2):
        snapshot = tick.read(WANTED)
        error = "unknown field of nvidia-smi 'power.drow'; did you mean 'power.draw'?"
        assert failures(snapshot) == [("FIELD_UNKNOWN", error)]
        assert columns(snapshot)[FIRST]["temperature.gpu"] == "57"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_field_that_is_offered_but_rejected_is_omitted_silently() -> None:
    run = recorded(help_query_gpu=HELP + '"brand.new"\nOnly in the help.\n\n')
    snapshot = smi(run).read(WANTED)
    assert len(columns(snapshot)[FIRST]) == len(OFFERED)
    assert failures(snapshot) == []


@pytest.mark.parametrize(
    ("outcome", "reason", "code"),
    [
        (CommandResult(b"", b"oops\n", 6), "exit_6", 6),
        (CommandResult(b"", exit_code=-9, timed_out=True), "timeout", -9),
        (CommandResult(exit_code=-1, not_started="PermissionError", detail="denied"), "not_started", -1),
        (CommandResult(b"hello\n"), "UNREADABLE", -1),
    ],
)
def test_a_failed_table_query_loses_only_the_columns_and_states_the_cause(
    outcome: CommandResult, reason: str, code: int
) -> None:
    snapshot = smi(recorded(query_gpu=outcome)).read(WANTED)
    assert columns(snapshot) == {FIRST: {}, SECOND: {}}
    assert [found for found, _ in failures(snapshot)] == [reason]
    assert snapshot.source.exit_code == code
    assert snapshot.readings[0].get(POWER) == 211.37
    assert [part.success for part in snapshot.collected if part.name == "columns"] == [False]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (CommandResult(b"NVIDIA-SMI has failed\n", exit_code=9), 9),
        (CommandResult(b"", exit_code=-9, timed_out=True), -1),
        (CommandResult(exit_code=-1, not_started="FileNotFoundError"), -1),
        (CommandResult(b"No devices were found\n"), -1),
    ],
)
def test_the_exit_code_of_an_unreadable_machine_is_kept(outcome: CommandResult, code: int) -> None:
    tick = smi(recorded(xml=outcome))
    with pytest.raises(SourceUnavailable):
        tick.read(WANTED)
    assert tick.info.exit_code == code


def test_a_malformed_row_loses_only_the_columns_of_that_gpu() -> None:
    title, first, second = GPUS.splitlines()
    snapshot = smi(recorded(query_gpu="\n".join([title, first.replace(", P2,", ","), second, ""]))).read(
        WANTED
    )
    assert columns(snapshot)[FIRST] == {}
    assert len(columns(snapshot)[SECOND]) == len(OFFERED)
    assert [reason for reason, _ in failures(snapshot)] == ["ROW_UNREADABLE"]


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode("utf-16-le"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
    ],
    ids=["crlf", "utf-16 with BOM", "utf-16 without BOM", "utf-16 big-endian", "utf-8 with BOM"],
)
def test_output_of_windows_is_read_like_any_other(encode: object) -> None:
    plain = columns(smi(recorded()).read(WANTED))
    assert callable(encode)
    outputs = {"query_gpu": GPUS, "help_query_gpu": HELP, "xml": fixture("cards/xml")}
    snapshot = smi(recorded(**{name: encode(text) for name, text in outputs.items()})).read(WANTED)
    assert columns(snapshot) == plain
    assert snapshot.invalid == 0


class Slow(Recorded):
    """A GPU with fields that each take `field_seconds`, in addition to `baseline` for every call."""

    def __init__(self, clock: FakeClock, field_seconds: Mapping[str, float], baseline: float = 0.5) -> None:
        super().__init__("cards", help_query_gpu=HELP)
        self._clock, self._field_seconds, self._baseline = clock, field_seconds, baseline

    def __call__(self, words: tuple[str, ...], timeout: float) -> CommandResult:
        outcome = super().__call__(words, timeout)
        fields = words[1].partition("=")[2].split(",")
        taken = self._baseline + sum(self._field_seconds.get(name, 0.0) for name in fields)
        self._clock.advance(min(taken, timeout))
        return outcome if taken < timeout else CommandResult(b"", exit_code=-9, timed_out=True)


@pytest.mark.parametrize("seconds", [3.0, 1000.0])
def test_a_slow_field_is_found_and_omitted_with_one_warning(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    run = Slow(clock, {"fan.speed": seconds, "power.limit": seconds})
    tick = smi(run, clock)
    for _ in range(25):
        snapshot = tick.read(WANTED)
    assert set(OFFERED) - set(queried_fields(run)[-1]) == {"fan.speed", "power.limit"}
    assert columns(snapshot)[FIRST]["power.draw [W]"] == "211.37 W"
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [" for fan.speed alone" in text or " for power.limit alone" in text for text in messages] == [
        True
    ] * 2
    before = len(queried_fields(run))
    tick.read(WANTED)
    assert len(queried_fields(run)) == before + 1, "the search is over"


@pytest.mark.parametrize(
    ("field_seconds", "baseline"),
    [({}, 4.0), (dict.fromkeys(OFFERED, 0.3), 0.5)],
    ids=["the command is slow", "every field is slightly slow"],
)
def test_a_command_that_is_slow_for_all_fields_is_searched_only_once(
    field_seconds: dict[str, float], baseline: float
) -> None:
    clock = FakeClock()
    run = Slow(clock, field_seconds, baseline)
    tick = smi(run, clock)
    for _ in range(40):
        tick.read(WANTED)
    before = len(queried_fields(run))
    for _ in range(5):
        tick.read(WANTED)
    assert queried_fields(run)[before:] == [OFFERED] * 5


def test_a_field_that_becomes_slow_later_is_found() -> None:
    clock = FakeClock()
    field_seconds: dict[str, float] = {}
    run = Slow(clock, field_seconds, baseline=2.0)
    tick = smi(run, clock)
    for _ in range(5):
        tick.read(WANTED)
    field_seconds["pstate"] = 2.0
    for _ in range(15):
        tick.read(WANTED)
    assert set(OFFERED) - set(queried_fields(run)[-1]) == {"pstate"}


@pytest.mark.parametrize(
    "settings", [{"slow_field": 0.0}, {"query_field_names": ("fan.speed",)}], ids=["search disabled", "named"]
)
def test_a_slow_field_is_still_queried_if_the_user_configures_so(settings: dict[str, object]) -> None:
    clock = FakeClock()
    run = Slow(clock, {"fan.speed": 3.0})
    tick = smi(run, clock, **settings)
    for _ in range(12):
        snapshot = tick.read(WANTED)
    assert columns(snapshot)[FIRST]["fan.speed [%]"] == "41 %"
    assert all("fan.speed" in fields for fields in queried_fields(run))
