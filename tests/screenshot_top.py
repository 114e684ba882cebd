"""Takes a screenshot of `gpuledger top` for the documentation: `python tests/screenshot_top.py FILE.png`.

A second argument is the scenario, a third one `COLUMNSxLINES`. The scenario `tree` is the process tree.

Textual and Chromium draw the real view of a simulated node in a terminal of a hundred columns.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from browser import chromium
from gpuledger.app.top_feeds import RemoteFeed
from gpuledger.host.process_tree import ProcessTree
from gpuledger.terminal.app import TopApp
from gpuledger.terminal.layout import UNICODE
from gpuledger.terminal.local_processes import LocalProcesses
from gpuledger.terminal.process_screens import TreeScreen
from gpuledger.terminal.settings import NodeAccessSettings
from gpuledger.terminal.sort_order import SortOrder
from gpuledger.terminal.top_view import SnapshotOrigin, TopView
from procfs_tree import ProcfsTree
from running import serving
from unit.terminal.support import GIB, NOW, device, process, snapshot

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


class _TreeFeed:
    """This machine, with the processes of a training and of a server."""

    origin = SnapshotOrigin("this machine", began="09:00:00")

    def snapshot(self) -> Mapping[str, Any]:
        watts = {4711: ("0", 612.0), 4712: ("1", 598.0), 4713: ("2", 604.0), 5020: ("3", 188.0)}
        rows = (
            process(pid, gpu, user="ann", power_watts=power, memory_bytes=61 * GIB, start_unix=NOW - 11_000)
            for pid, (gpu, power) in watts.items()
        )
        return snapshot([device(str(gpu), state="active") for gpu in range(4)], rows)

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def _write_processes(procfs: ProcfsTree) -> None:
    train = ("train.py", "--api-key", "0123456789abcdef", "--config", "llama-8b.yaml")
    procfs.process(3011, ticks=1, name="tmux: server", arguments=("tmux", "new", "-s", "train"))
    procfs.process(3012, 3011, ticks=2, name="bash", arguments=("-bash",))
    procfs.process(
        4700, 3012, ticks=3, name="torchrun", arguments=("torchrun", "--nproc-per-node", "3", *train)
    )
    for rank in range(3):
        procfs.process(4711 + rank, 4700, arguments=("/opt/conda/bin/python", *train))
    procfs.process(5020, 3012, arguments=("vllm", "serve", "Qwen/Qwen3-8B", "--port", "8000"))


async def _draw_tree(size: tuple[int, int]) -> str:
    with TemporaryDirectory() as folder:
        _write_processes(ProcfsTree(Path(folder)))
        local = LocalProcesses(ProcessTree(folder), lambda _pid, _unix: 5000, lambda _uid: "ann", "own", 1000)
        app = TopApp(_TreeFeed(), TopView(), 0.5, UNICODE, local=local)
        async with app.run_test(size=size) as pilot:
            while not app.processes.rows:
                await pilot.pause(0.05)
            await pilot.press("t", "end")
            while not isinstance(app.screen, TreeScreen) or "torchrun --" not in _text_of(app.screen):
                await pilot.pause(0.05)
            return app.export_screenshot(title="gpuledger top")


def _text_of(screen: TreeScreen) -> str:
    table = screen.tree_table
    return "\n".join(table.render_line(y).text for y in range(table.size.height))


def write_screenshot(file: Path, scenario: str = "k8s-node", size: tuple[int, int] = SIZE) -> None:
    """Write the screenshot as PNG."""
    if scenario == "tree":
        _write_picture(asyncio.run(_draw_tree(size)), file)
        return
    with serving("--source", f"simulator:{scenario}", *PACE, env=NODE) as server:
        server.wait_ticks(40)
        drawing = asyncio.run(_draw_top(server.url, size))
    _write_picture(drawing, file)


def _write_picture(drawing: str, file: Path) -> None:
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
