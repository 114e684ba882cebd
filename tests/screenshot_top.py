"""Takes a screenshot of `gpuledger top` for the documentation: `python tests/screenshot_top.py FILE.png`.

A second argument is the scenario, a third one `COLUMNSxLINES`.

Textual and Chromium draw the real view of a simulated node in a terminal of a hundred columns.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from browser import chromium
from gpuledger.app.top_feeds import RemoteFeed
from gpuledger.terminal.app import TopApp
from gpuledger.terminal.layout import UNICODE
from gpuledger.terminal.settings import NodeAccessSettings
from gpuledger.terminal.sort_order import SortOrder
from gpuledger.terminal.top_view import SnapshotOrigin, TopView
from running import serving

SIZE = (104, 36)
NODE = {"GPULEDGER_NODE_NAME": "gpu-node-17", "GPULEDGER_CONTROL_SOCKET": "none"}
PACE = ("--speed", "8", "--interval", "500ms")
ADDRESS = "http://gpu-node-17:9400"


class _RenamedFeed(RemoteFeed):
    """A feed that shows ADDRESS instead of the node's local address."""

    @property
    def origin(self) -> SnapshotOrigin:
        return SnapshotOrigin(ADDRESS, remote=True)


async def _draw_top(url: str, size: tuple[int, int]) -> str:
    feed = _RenamedFeed(url, NodeAccessSettings())
    app = TopApp(feed, TopView(SortOrder("watts")), 0.5, UNICODE)
    async with app.run_test(size=size) as pilot:
        while not app.processes.rows:
            await pilot.pause(0.05)
        await pilot.press("down", "down")
        await pilot.pause()
        picture = app.export_screenshot(title=f"gpuledger top --url {ADDRESS}")
    feed.close()
    return picture


def write_screenshot(file: Path, scenario: str = "k8s-node", size: tuple[int, int] = SIZE) -> None:
    """Write the screenshot as PNG."""
    with serving("--source", f"simulator:{scenario}", *PACE, env=NODE) as server:
        server.wait_ticks(40)
        drawing = asyncio.run(_draw_top(server.url, size))
    # Use the fonts of this machine; download none.
    drawing = re.sub(r"@font-face\s*\{[^}]*\}", "", drawing)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.set_content(f"<style>body {{ margin: 0 }}</style>{drawing}")
        page.locator("svg").screenshot(path=file, omit_background=True)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    columns, _, lines = given.get(3, "{}x{}".format(*SIZE)).partition("x")
    write_screenshot(Path(given[1]), given.get(2, "k8s-node"), (int(columns), int(lines)))
