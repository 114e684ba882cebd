"""The loop mode of a slow nvidia-smi: used only where it is faster than single calls, and ended on close."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.loop_mode import LoopProcess, ReportReader

WORDS = ("nvidia-smi", "-q", "-x", "-l", "1")
SINGLE = CommandResult(b"single")


class Loop:
    """A loop with these seconds between its reports, and these reports; None when none arrives."""

    def __init__(self, seconds: float | None, *reports: bytes | None) -> None:
        self.seconds, self.reports = seconds, list(reports)
        self.words: tuple[str, ...] = ()
        self.stopped = False

    def __call__(self, words: tuple[str, ...]) -> Loop:
        self.words = words
        return self

    def seconds_per_report(self) -> float | None:
        return self.seconds

    def next_report(self, timeout: float) -> bytes | None:
        return self.reports.pop(0)

    def stop(self) -> None:
        self.stopped = True


def read_reports(loop: Loop, durations: Sequence[float], result: CommandResult = SINGLE) -> list[bytes]:
    """The reports of so many reads, in which a single call takes these seconds."""
    clock = FakeClock()
    reader = ReportReader(Command("nvidia-smi"), 30.0, loop)
    waiting = list(durations)

    def run() -> CommandResult:
        clock.advance(waiting.pop(0))
        return result

    return [reader.read(run, clock.elapsed).stdout for _ in durations]


def test_a_fast_command_is_never_looped() -> None:
    loop = Loop(1.0)
    assert read_reports(loop, [0.2, 0.9]) == [b"single"] * 2
    assert loop.words == ()


def test_a_slow_command_is_looped_from_its_second_report_on() -> None:
    loop = Loop(1.1, b"first", b"second")
    assert read_reports(loop, [6.0, 6.0, 6.0]) == [b"single", b"first", b"second"]
    assert loop.words == WORDS


@pytest.mark.parametrize("seconds", [7.0, float("inf")])
def test_a_loop_that_is_not_faster_or_has_ended_is_given_up(seconds: float) -> None:
    loop = Loop(seconds)
    assert read_reports(loop, [6.0, 6.0, 6.0]) == [b"single"] * 3
    assert loop.stopped


def test_single_calls_go_on_until_the_loop_has_two_reports() -> None:
    assert read_reports(Loop(None), [6.0, 6.0]) == [b"single"] * 2


def test_a_loop_that_hangs_is_replaced_by_a_single_call() -> None:
    loop = Loop(1.1, None)
    assert read_reports(loop, [6.0, 6.0]) == [b"single"] * 2
    assert loop.stopped


def test_a_report_that_lacks_a_gpu_is_replaced_by_a_single_call() -> None:
    both, one = b'<gpu id="1"><gpu id="2">', b'<gpu id="2">'
    loop = Loop(1.1, both, one, one, both)
    result = CommandResult(both + b" single")
    assert read_reports(loop, [6.0] * 5, result) == [result.stdout, both, result.stdout, result.stdout, both]
    assert not loop.stopped


def test_a_gpu_that_remains_missing_takes_no_further_single_call() -> None:
    both, one = b'<gpu id="1"><gpu id="2">', b'<gpu id="2">'
    calls = iter([CommandResult(both), CommandResult(one, exit_code=15), CommandResult(one + b" again")])
    reader = ReportReader(Command("nvidia-smi"), 30.0, Loop(1.1, both, one, one, one, both, both, one))
    clock = FakeClock()

    def run() -> CommandResult:
        clock.advance(6.0)
        return next(calls)

    found = [reader.read(run, clock.elapsed).stdout for _ in range(8)]
    assert found == [both, both, one, one, one, both, both, one + b" again"]


def test_a_failed_command_is_not_looped() -> None:
    loop = Loop(1.1)
    read_reports(loop, [6.0], CommandResult(b"", exit_code=9))
    assert loop.words == ()


def test_close_ends_the_loop() -> None:
    loop, clock = Loop(1.1), FakeClock()
    reader = ReportReader(Command("nvidia-smi"), 30.0, loop)

    def run() -> CommandResult:
        clock.advance(6.0)
        return SINGLE

    reader.read(run, clock.elapsed)
    reader.close()
    assert loop.stopped


def test_a_real_process_yields_its_reports_until_it_ends() -> None:
    code = "import sys\nfor n in (1, 2): print(f'<a>{n}</a></nvidia_smi_log>', flush=True); sys.stdin.read()"
    loop = LoopProcess((sys.executable, "-c", code))
    found = []
    while (report := loop.next_report(30.0)) is not None:
        found.append(report.strip())
    assert found[-1] == b"<a>2</a></nvidia_smi_log>"
    assert loop.seconds_per_report() == float("inf")


def test_a_stopped_process_ends() -> None:
    code = "import time\nprint('</nvidia_smi_log>', flush=True)\ntime.sleep(3600)"
    loop = LoopProcess((sys.executable, "-c", code))
    assert loop.next_report(30.0) is not None
    loop.stop()
    assert loop.next_report(30.0) is None
