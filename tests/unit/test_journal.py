"""What waits to be stored: what changed, and nothing of what is stored already."""

from __future__ import annotations

from builders import gpu, process
from gpuledger.ledger.journal import Journal
from gpuledger.ledger.sessions import OpenSession


def test_a_session_is_stored_again_when_something_happened_to_it() -> None:
    """While its Device tells no list, nothing does."""
    one = OpenSession(process(gpu(0)), 0.0, 1.0, number=7)
    taken = []
    for happens in (lambda: None, lambda: None, one.end, lambda: None):
        journal = Journal()
        happens()
        journal.take_sessions([one])
        taken.append(list(journal.sessions))
    assert taken == [[7], [], [7], []]
