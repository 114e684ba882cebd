"""The interval of ticks follows how long they take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import FakeClock, gpu, process, reading, snapshot
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.adaptive_interval import AdaptiveInterval
from unit.node.support import ScriptedSource, node_of


def test_the_interval_doubles_while_ticks_are_slow_up_to_eight_times() -> None:
    adaptive = AdaptiveInterval(1.0)
    changes = [adaptive.add_tick(5.0) for _ in range(60)]
    assert [index for index, changed in enumerate(changes, 1) if changed] == [10, 20, 30]
    assert adaptive.interval == 8.0


def test_a_few_slow_ticks_change_nothing() -> None:
    adaptive = AdaptiveInterval(1.0)
    for seconds in (5.0, 5.0, 5.0, 5.0, *[0.01] * 20):
        adaptive.add_tick(seconds)
    assert adaptive.interval == 1.0


def test_the_interval_halves_back_after_a_hundred_calm_ticks() -> None:
    adaptive = AdaptiveInterval(1.0)
    for _ in range(10):
        adaptive.add_tick(0.5)
    assert adaptive.interval == 2.0
    changes = [adaptive.add_tick(0.15) for _ in range(100)]
    assert changes.index(True) == 99
    assert adaptive.interval == 1.0
    assert not any(adaptive.add_tick(0.0) for _ in range(300))


@pytest.mark.parametrize(
    ("requested", "ticks", "interval"),
    [
        # Seconds of two calls that take 6 s each, then 12 s each; the first alone; longer than any pace.
        (1.0, [12.0], 15.0),
        (1.0, [24.0], 30.0),
        (1.0, [12.0, 0.2], 1.0),
        (1.0, [12.0, 6.0, 6.0, 6.0], 8.0),
        (1.0, [7200.0], 48.0),
        (15.0, [12.0], 15.0),
        (10.0, [6.0] * 60, 40.0),
        (1.0, [0.3] * 10, 2.0),
    ],
)
def test_the_interval_follows_a_slow_command_at_once(
    requested: float, ticks: list[float], interval: float
) -> None:
    adaptive = AdaptiveInterval(requested)
    for seconds in ticks:
        adaptive.add_tick(seconds, of_command=True)
    assert adaptive.interval == interval


def test_a_slow_command_is_read_at_its_pace_and_the_message_names_the_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, card = FakeClock(), gpu(0)
    good = snapshot(reading(card, process(card)))

    def slow() -> Snapshot:
        clock.advance(12.0)
        return good

    scripted = ScriptedSource(*[slow] * 3)
    scripted.info = replace(scripted.info, exit_code=0)
    ticking = node_of(scripted, clock=clock)
    shown = [ticking.tick().health.interval for _ in range(3)]
    assert shown == [15.0] * 3
    assert caplog.text.count("the interval is now 15 s") == 1


def test_ticks_between_a_tenth_and_a_fifth_keep_the_interval() -> None:
    adaptive = AdaptiveInterval(1.0)
    for _ in range(10):
        adaptive.add_tick(0.5)
    assert not any(adaptive.add_tick(0.3) for _ in range(300))
