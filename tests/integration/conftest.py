from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import chromium
from prepared import prepare

# Programs written in Go, such as Prometheus, collect garbage less often, which saves CPU time.
os.environ["GOGC"] = "400"


# Not for the session: while Playwright runs, no other test of this process could have an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The one Chromium of a module."""
    with chromium() as started:
        yield started


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the processes that the programs of all workers are forks of, beside the start of the workers."""
    if session.config.option.workers > 1 and not session.config.option.collectonly:
        prepare()
