"""The memory limit of unread bodies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.http.registry import ResponseBacklog


class SlowReader:
    def __init__(self):
        self.cut = False

    def abort(self):
        self.cut = True


def test_a_shared_body_counts_once_until_its_last_reader_has_it():
    backlog, page = ResponseBacklog(1000), b"x" * 900
    readers = [SlowReader() for _ in range(50)]
    for reader in readers:
        backlog.hold(reader, page)
    assert backlog.bytes == 900
    for reader in readers[1:]:
        backlog.release(reader)
        backlog.release(reader)
    assert (backlog.bytes, len(backlog)) == (900, 1)
    backlog.release(readers[0])
    assert (backlog.bytes, len(backlog)) == (0, 0)
    assert not any(reader.cut for reader in readers)


def test_beyond_the_memory_limit_the_slowest_connection_is_cut_off():
    backlog = ResponseBacklog(1000)
    readers = [SlowReader() for _ in range(4)]
    for number, reader in enumerate(readers):
        backlog.hold(reader, b"%d" % number * 300)
    assert [reader.cut for reader in readers] == [True, False, False, False]
    assert backlog.bytes == 900


def test_a_single_body_above_the_memory_limit_is_kept():
    backlog, alone = ResponseBacklog(1000), SlowReader()
    backlog.hold(alone, b"x" * 5000)
    assert not alone.cut
    backlog.hold(SlowReader(), b"y" * 10)
    assert alone.cut


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans()), max_size=60))
def test_held_bytes_are_the_sum_of_the_distinct_unread_bodies(steps):
    bodies = [bytes([number]) * 100 * number for number in range(1, 7)]
    readers = [SlowReader() for _ in range(10)]
    backlog, holds = ResponseBacklog(900), {}
    for reader, body, begins in steps:
        if begins:
            holds[reader] = body
            readers[reader].cut = False
            backlog.hold(readers[reader], bodies[body])
        else:
            holds.pop(reader, None)
            backlog.release(readers[reader])
        holds = {number: held for number, held in holds.items() if not readers[number].cut}
        assert backlog.bytes == sum(len(bodies[held]) for held in set(holds.values()))
        assert backlog.bytes <= 900 or len(holds) == 1
