from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import chromium


# Not for the session: while Playwright runs, no other test of this process could have an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The one Chromium of a module."""
    with chromium() as started:
        yield started
