"""Takes the screenshots of the documentation: `make screenshots`, or `python tests/screenshots.py FOLDER`.

Simulated nodes run for some simulated time first, so that there is data to show.
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
from gpuledger.ledger.report.receipt.page import receipt_page
from lab import running_lab
from receipt_books import receipt_of, write_books
from running import MODULE, Program, serving, wait_until

HOURS = 3
# Seconds of the faulty node: short enough for its Xids to be recent.
FAULTY_FOR = 1500
MARGIN = 12
# Half a minute of simulated time per tick: intervals above a minute would be unobserved.
PACE = ("--speed", "60", "--interval", "500ms")
FAULTY_PACE = ("--speed", "20", "--interval", "500ms")
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


Pictures = dict[str, tuple[dict[str, Any], Callable[[BrowserTab, Path], None]]]
# What `make run` shows first.
DEMO_PICTURES: Pictures = {
    "page-light": ({**DESKTOP, "color_scheme": "light"}, _above),
    "page-dark": ({**DESKTOP, "color_scheme": "dark"}, _above),
    "page-phone": ({**PHONE, "device_scale_factor": 1.5}, _above),
}
PICTURES: Pictures = {
    "page-held": (DESKTOP, _held),
    "page-sessions": (DESKTOP, _timeline),
}
FLEET_PICTURES: dict[str, dict[str, Any]] = {
    "fleet-light": {**DESKTOP, "color_scheme": "light"},
    "fleet-phone": {**PHONE, "device_scale_factor": 1.5},
}
FAULTY_PICTURES: Pictures = {"page-faults": ({**DESKTOP, "color_scheme": "light"}, _above)}


def write_screenshots(url: str, folder: Path, pictures: Pictures) -> None:
    """Write screenshots of this node to the folder."""
    with chromium() as browser:
        for name, (options, picture) in pictures.items():
            with open_tab(browser, url, **options) as tab:
                tab.open()
                expect(tab.section("energy").locator("tbody tr").first).to_be_attached()
                expect(tab.section("sessions").locator(".known")).to_contain_text("sessions")
                expect(tab.card("0").locator(".curve .line")).to_have_attribute("d", re.compile("^M"))
                file = folder / f"{name}.png"
                picture(tab, file)
                print(f"{file}: {file.stat().st_size / 1000:.0f} kB")  # noqa: T201  (the tool's output)


def _write(
    folder: Path,
    flags: tuple[str, ...],
    until: Callable[[Any, float], bool],
    pictures: Pictures,
) -> None:
    """Write screenshots of a simulated node; `until` takes its snapshot and the simulated seconds so far."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuledger-screenshots-") as state_dir,
        serving("--source", *flags, *PRICES, "--state-dir", state_dir, env=NODE) as server,
    ):
        began = server.get("/api/v1/snapshot").json()["unix"]

        def grown() -> bool:
            snapshot = server.get("/api/v1/snapshot").json()
            return until(snapshot, snapshot["unix"] - began)

        wait_until(grown, f"a simulated node {flags[0]}", HOURS * 200)
        write_screenshots(server.url, folder, pictures)


def write_demo_screenshots(folder: Path) -> None:
    """Write the screenshots of `gpuledger demo` to the folder."""
    listen = ("--listen-address", "127.0.0.1:0")
    program = Program((*MODULE, "demo", *listen), NODE | {"GPULEDGER_STATE_DIR": ""})
    try:
        url = program.wait_line(r"page: (http://[\d.:]+)/")[1]
        write_screenshots(url, folder, DEMO_PICTURES)
    finally:
        program.stop()


def write_fleet_screenshots(folder: Path) -> None:
    """Write the screenshots of a fleet of fourteen nodes, one of which has been killed, to the folder."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-lab-") as place, running_lab(Path(place), 14) as lab:
        lab.nodes[-1].process.kill()
        with chromium() as browser:
            for name, options in FLEET_PICTURES.items():
                with open_tab(browser, lab.fleet.url, **options) as tab:
                    tab.open()
                    expect(tab("#tile-problems")).to_have_text("2")
                    expect(tab("#tile-week")).to_contain_text("€")
                    _above(tab, folder / f"{name}.png")


def write_receipt_screenshot(folder: Path) -> None:
    """Write the screenshot of the receipt of a simulated job to the folder."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-screenshots-") as place, chromium() as browser:
        receipt = receipt_of(write_books(Path(place)), "pod:jobs/one-of-four")
        page = browser.new_page(viewport={"width": 1040, "height": 600}, color_scheme="light")
        page.set_content(receipt_page(receipt))
        page.screenshot(path=folder / "receipt.png", full_page=True)


def _is_throttled(snapshot: Any) -> bool:
    """Whether GPU 3 has begun to throttle within the last two minutes: it will for some more."""
    began = [
        problem["since"] for problem in snapshot["devices"][3]["problems"] if problem["ratio"] is not None
    ]
    return bool(began) and snapshot["unix"] - began[0] < 120


def main() -> None:
    """Write the screenshots to the given folder, which is created."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder,
        ("simulator:faulty-node", *FAULTY_PACE),
        lambda snapshot, seconds: seconds > FAULTY_FOR and _is_throttled(snapshot),
        FAULTY_PICTURES,
    )
    write_demo_screenshots(folder)
    write_fleet_screenshots(folder)
    write_receipt_screenshot(folder)
    _write(folder, ("simulator", *PACE), lambda _, seconds: seconds > HOURS * 3600, PICTURES)


if __name__ == "__main__":
    main()
