"""Takes the pictures of the documentation: `make screenshots`, or `python tests/screenshots.py FOLDER`.

A simulated node is run through some hours first, so that there is something to see.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, expect

from browser import DESKTOP, PHONE, Look, chromium, looking
from running import Server, serving, wait_until

HOURS = 3
MARGIN = 12
# Half a minute of the node's time a tick: what takes more than a minute would not be observed.
PACE = ("--speed", "60", "--interval", "500ms")
PRICES = ("--price.kwh", "0.32", "--price.currency", "EUR")
NODE = {"GPULEDGER_NODE_NAME": "gpu-node-17", "GPULEDGER_CONTROL_SOCKET": "none"}


def _above(look: Look, file: Path) -> None:
    look.page.screenshot(path=file)


def _framed(look: Look, parts: list[Locator], file: Path) -> None:
    """What is between the first and the last of these, with some ground around it."""
    first, last = parts[0].bounding_box(), parts[-1].bounding_box()
    assert first is not None
    assert last is not None
    scrolled = look.page.evaluate("scrollY")
    clip = {
        "x": first["x"] - MARGIN,
        "y": first["y"] + scrolled - MARGIN,
        "width": last["x"] + last["width"] - first["x"] + 2 * MARGIN,
        "height": last["y"] + last["height"] - first["y"] + 2 * MARGIN,
    }
    look.page.screenshot(path=file, clip=clip, full_page=True)


def _held(look: Look, file: Path) -> None:
    # It and the free one beside it.
    _framed(look, [look.card("4"), look.card("5")], file)


def _timeline(look: Look, file: Path) -> None:
    look.section("sessions").get_by_role("button", name="Zoom in").click()
    look(".stage").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        look.page.keyboard.press(key)
    look("#sessions details").evaluate("(fold) => { fold.hidden = true; }")
    look.section("sessions").evaluate(f"(section) => {{ section.style.padding = '{MARGIN}px'; }}")
    look.section("sessions").screenshot(path=file)


PICTURES: dict[str, tuple[dict[str, Any], Callable[[Look, Path], None]]] = {
    "page-light": ({**DESKTOP, "color_scheme": "light"}, _above),
    "page-dark": ({**DESKTOP, "color_scheme": "dark"}, _above),
    "page-phone": ({**PHONE, "device_scale_factor": 1.5}, _above),
    "page-held": (DESKTOP, _held),
    "page-sessions": (DESKTOP, _timeline),
}


def take(server: Server, folder: Path) -> None:
    """All pictures of this node."""
    with chromium() as browser:
        for name, (options, picture) in PICTURES.items():
            with looking(browser, server.url, reduced_motion="reduce", **options) as look:
                look.open()
                expect(look.section("energy").locator("tbody tr").first).to_be_attached()
                expect(look.section("sessions").locator(".known")).to_contain_text("sessions")
                expect(look.card("0").locator(".curve .line")).to_have_attribute("d", re.compile("^M"))
                file = folder / f"{name}.png"
                picture(look, file)
                print(f"{file}: {file.stat().st_size / 1000:.0f} kB")  # noqa: T201  (a tool's own answer)


def main() -> None:
    """To the folder named, which is made."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="gpuledger-pictures-") as books,
        serving("--source", "simulator", *PACE, *PRICES, "--state-dir", books, env=NODE) as server,
    ):
        began = server.get("/api/v1/snapshot").json()["unix"]

        def grown() -> bool:
            return bool(server.get("/api/v1/snapshot").json()["unix"] - began > HOURS * 3600)

        wait_until(grown, f"{HOURS} hours of a simulated node", HOURS * 200)
        take(server, folder)


if __name__ == "__main__":
    main()
