"""The picture of utilization: minutes of a quarter, and five minutes of a folded hour."""

from __future__ import annotations

from gpuledger.ledger.sessions import RATIO
from gpuledger.ledger.usage.usage_bars import (
    HOUR_BAR_MINUTES,
    HOUR_BARS,
    QUARTER_BARS,
    UsageBars,
    added_bars,
    decoded_bars,
    no_hour_bars,
)

SECOND = 1_000_000


def bars(*minutes: tuple[int, float, int]) -> UsageBars:
    """Bars of minutes: place, ratio, seconds seen."""
    found = UsageBars()
    for place, ratio, seconds in minutes:
        found.add(place, round(ratio * RATIO) * seconds * SECOND, seconds * SECOND)
    return found


def test_each_minute_has_its_time_and_an_unseen_one_has_none() -> None:
    encoded = bars((0, 0.5, 60), (2, 1.0, 30), (14, 0.0, 60)).encoded()
    found = list(decoded_bars(encoded))
    assert len(found) == QUARTER_BARS
    assert {place: bar for place, bar in enumerate(found) if bar[1]} == {
        0: (3000, 6000),
        2: (3000, 3000),
        14: (0, 6000),
    }


def test_a_minute_continues_after_another_one_and_after_a_restart() -> None:
    once = bars((3, 0.5, 20), (4, 1.0, 20), (3, 0.5, 20))
    again = UsageBars(bytearray(bars((3, 0.5, 20)).encoded()))
    again.add(4, RATIO * 20 * SECOND, 20 * SECOND)
    again.add(3, RATIO // 2 * 20 * SECOND, 20 * SECOND)
    assert once.encoded() == again.encoded() == bars((3, 0.5, 40), (4, 1.0, 20)).encoded()


def test_bars_of_the_same_quarter_are_added() -> None:
    one = bars((1, 0.5, 30))
    one.add_encoded(bars((1, 1.0, 30), (5, 1.0, 10)).encoded())
    one.add(5, RATIO * 10 * SECOND, 10 * SECOND)
    assert one.encoded() == bars((1, 0.75, 60), (5, 1.0, 20)).encoded()


def test_quarters_are_the_bars_of_their_hour() -> None:
    hour = no_hour_bars()
    for quarter, ratio in enumerate((0.25, 0.5, 0.75, 1.0)):
        full = bars(*((place, ratio, 60) for place in range(QUARTER_BARS))).encoded()
        hour = added_bars(hour, full, quarter * QUARTER_BARS, HOUR_BAR_MINUTES)
    found = list(decoded_bars(hour))
    assert len(found) == HOUR_BARS
    assert [busy / seen for busy, seen in found] == [
        ratio for ratio in (0.25, 0.5, 0.75, 1.0) for _ in range(3)
    ]
    assert {seen for _, seen in found} == {30_000}


def test_more_than_fits_is_cut_at_the_most() -> None:
    # Ticks of a minute can begin in the same minute after steps of the clock.
    found = list(decoded_bars(bars((0, 1.0, 1000)).encoded()))
    assert found[0] == (0xFFFF, 0xFFFF)
