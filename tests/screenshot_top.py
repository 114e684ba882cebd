"""Takes the picture of `gpuledger top` for the documentation: `python tests/screenshot_top.py FILE.png`.

The real view of a simulated node, in a terminal of a hundred columns, as Textual and Chromium draw it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from browser import chromium
from gpuledger.app.node_api import Access
from gpuledger.app.top_feeds import RemoteFeed
from gpuledger.terminal.app import TopApp
from gpuledger.terminal.line import UNICODE
from gpuledger.terminal.order import Order
from gpuledger.terminal.view import Origin, View
from running import serving

SIZE = (104, 36)
NODE = {"GPULEDGER_NODE_NAME": "gpu-node-17", "GPULEDGER_CONTROL_SOCKET": "none"}
PACE = ("--speed", "8", "--interval", "500ms")
ADDRESS = "http://gpu-node-17:9400"


class _Elsewhere(RemoteFeed):
    """The node under the address that it would have, were it not on this machine."""

    @property
    def origin(self) -> Origin:
        return Origin(ADDRESS, remote=True)


async def _drawn(url: str) -> str:
    feed = _Elsewhere(url, Access())
    app = TopApp(feed, View(Order("watts")), 0.5, UNICODE)
    async with app.run_test(size=SIZE) as pilot:
        while not app.processes.rows:
            await pilot.pause(0.05)
        await pilot.press("down", "down")
        await pilot.pause()
        picture = app.export_screenshot(title=f"gpuledger top --url {ADDRESS}")
    feed.close()
    return picture


def take(file: Path) -> None:
    """Write the picture."""
    with serving("--source", "simulator", *PACE, env=NODE) as server:
        server.wait_ticks(40)
        drawing = asyncio.run(_drawn(server.url))
    # In the machine's own fonts: none is fetched.
    drawing = re.sub(r"@font-face\s*\{[^}]*\}", "", drawing)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.set_content(f"<style>body {{ margin: 0 }}</style>{drawing}")
        page.locator("svg").screenshot(path=file, omit_background=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
