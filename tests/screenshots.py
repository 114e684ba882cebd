"""Takes the screenshots of the documentation: `make screenshots`, or `python tests/screenshots.py FOLDER`.

A simulated node runs for some simulated hours first, so that there is data to show.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, expect

from browser import DESKTOP, PHONE, BrowserTab, chromium, open_tab
from running import Server, serving, wait_until

HOURS = 3
MARGIN = 12
# Half a minute of simulated time per tick: intervals above a minute would be unobserved.
PACE = ("--speed", "60", "--interval", "500ms")
PRICES = ("--price.kwh", "0.32", "--price.currency", "EUR")
NODE = {"GPULEDGER_NODE_NAME": "gpu-node-17", "GPULEDGER_CONTROL_SOCKET": "none"}


def _above(tab: BrowserTab, file: Path) -> None:
    tab.page.screenshot(path=file)


def _framed(tab: BrowserTab, parts: list[Locator], file: Path) -> None:
    """A screenshot from the first to the last of these parts, with a margin."""
    first, last = parts[0].bounding_box(), parts[-1].bounding_box()
    assert first is not None
    assert last is not None
    scrolled = tab.page.evaluate("scrollY")
    clip = {
        "x": first["x"] - MARGIN,
        "y": first["y"] + scrolled - MARGIN,
        "width": last["x"] + last["width"] - first["x"] + 2 * MARGIN,
        "height": last["y"] + last["height"] - first["y"] + 2 * MARGIN,
    }
    tab.page.screenshot(path=file, clip=clip, full_page=True)


def _held(tab: BrowserTab, file: Path) -> None:
    # The held GPU and the free one next to it.
    _framed(tab, [tab.card("4"), tab.card("5")], file)


def _timeline(tab: BrowserTab, file: Path) -> None:
    tab.section("sessions").get_by_role("button", name="Zoom in").click()
    tab(".stage").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        tab.page.keyboard.press(key)
    tab("#sessions details").evaluate("(fold) => { fold.hidden = true; }")
    tab.section("sessions").evaluate(f"(section) => {{ section.style.padding = '{MARGIN}px'; }}")
    tab.section("sessions").screenshot(path=file)


PICTURES: dict[str, tuple[dict[str, Any], Callable[[BrowserTab, Path], None]]] = {
    "page-light": ({**DESKTOP, "color_scheme": "light"}, _above),
    "page-dark": ({**DESKTOP, "color_scheme": "dark"}, _above),
    "page-phone": ({**PHONE, "device_scale_factor": 1.5}, _above),
    "page-held": (DESKTOP, _held),
    "page-sessions": (DESKTOP, _timeline),
}


def write_screenshots(server: Server, folder: Path) -> None:
    """Write all screenshots of this node to the folder."""
    with chromium() as browser:
        for name, (options, picture) in PICTURES.items():
            with open_tab(browser, server.url, reduced_motion="reduce", **options) as tab:
                tab.open()
                expect(tab.section("energy").locator("tbody tr").first).to_be_attached()
                expect(tab.section("sessions").locator(".known")).to_contain_text("sessions")
                expect(tab.card("0").locator(".curve .line")).to_have_attribute("d", re.compile("^M"))
                file = folder / f"{name}.png"
                picture(tab, file)
                print(f"{file}: {file.stat().st_size / 1000:.0f} kB")  # noqa: T201  (the tool's output)


def main() -> None:
    """Write the screenshots to the given folder, which is created."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="gpuledger-screenshots-") as state_dir,
        serving("--source", "simulator", *PACE, *PRICES, "--state-dir", state_dir, env=NODE) as server,
    ):
        began = server.get("/api/v1/snapshot").json()["unix"]

        def grown() -> bool:
            return bool(server.get("/api/v1/snapshot").json()["unix"] - began > HOURS * 3600)

        wait_until(grown, f"{HOURS} hours of a simulated node", HOURS * 200)
        write_screenshots(server, folder)


if __name__ == "__main__":
    main()
