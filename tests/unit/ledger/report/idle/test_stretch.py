"""Since when a Device is held without use: the walk back, compared with a second by second reading."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.idle.stretch import LONGEST_GAP, HeldSeconds, IdleStretch

CELL = 900
END = 1_700_001_000 // CELL * CELL


def always(since: int, until: int) -> int:
    return until - since


def never(_: int, __: int) -> int:
    return 0


def stretch_of(letters: str, watched: object = always, cell: int = CELL) -> tuple[int, int]:
    """How long ago the stretch began, and its seconds: of `i` idle, `u` used, `-` away, up to now."""
    begin = END - len(letters)
    one = IdleStretch(END, watched)  # type: ignore[arg-type]
    for origin in range((END - 1) // cell * cell, begin // cell * cell - 1, -cell):
        had = idle = 0
        for second in range(cell):
            place = origin + second - begin
            letter = letters[place] if 0 <= place < len(letters) else "-"
            had |= (letter in "iu") << second
            idle |= (letter == "i") << second
        one.add(origin, HeldSeconds(had, idle))
    return END - one.begins, one.seconds


def test_it_begins_after_the_last_use() -> None:
    assert stretch_of("iiiuiii") == (3, 3)


def test_in_use_now_is_no_stretch() -> None:
    assert stretch_of("iiiu") == (0, 0)


def test_it_spans_cells() -> None:
    assert stretch_of("u" + "i" * (3 * CELL)) == (3 * CELL, 3 * CELL)


def test_a_short_absence_does_not_end_it() -> None:
    assert stretch_of("iii" + "-" * LONGEST_GAP + "ii") == (5 + LONGEST_GAP, 5)


def test_a_long_absence_is_another_stay() -> None:
    assert stretch_of("iii" + "-" * (LONGEST_GAP + 1) + "ii") == (2, 2)


def test_time_without_readings_is_no_absence() -> None:
    """A restart of gpuledger: the owner had the GPU before and after, and nobody looked meanwhile."""
    assert stretch_of("iii" + "-" * 2000 + "ii", never) == (2005, 5)


def test_after_a_day_without_readings_it_begins_again() -> None:
    assert stretch_of("iii" + "-" * 90_000 + "ii", never) == (2, 2)


def slowly(letters: str) -> tuple[int, int]:
    """The same, one second after the other."""
    begins, seconds, gap = len(letters), 0, 0
    for place in range(len(letters) - 1, -1, -1):
        letter = letters[place]
        gap = gap + 1 if letter == "-" else 0
        if gap > LONGEST_GAP or letter == "u":
            break
        if letter == "i":
            begins, seconds = place, seconds + 1
    return len(letters) - begins, seconds


RUNS = st.lists(st.tuples(st.sampled_from("iu-"), st.integers(1, 700)), max_size=12)


@given(RUNS, st.sampled_from([900, 3600]))
def test_it_equals_a_reading_second_by_second(runs: list[tuple[str, int]], cell: int) -> None:
    letters = "".join(letter * length for letter, length in runs)
    assert stretch_of(letters, cell=cell) == slowly(letters)
