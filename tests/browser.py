"""A real Chromium at a real node. Console errors, policy violations and foreign requests fail a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Response,
    Route,
    expect,
    sync_playwright,
)

CHROMIUM = "/usr/bin/chromium-headless-shell"
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 180_000
# Without a graphics processor, an animation takes a fifth of a core.
STILL = {"reduced_motion": "reduce"}
DESKTOP = {"viewport": {"width": 1440, "height": 900}, **STILL}
PHONE = {
    **STILL,
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()


@dataclass
class BrowserTab:
    """One tab at one node. `problems` collects what the browser complains about; see `open_tab`."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)
    weight: dict[str, int] = field(default_factory=dict)
    node_may_stop: bool = False

    def open(self, view: str = "") -> BrowserTab:
        self.page.goto(f"{self.origin}/{view}")
        expect(self.page.locator("body[data-ready]")).to_have_count(1)
        return self

    def __call__(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def section(self, name: str) -> Locator:
        return self.page.locator(f"section#{name}")

    def card(self, gpu: str) -> Locator:
        """The card of one GPU."""
        return self.page.locator("li.card").filter(has=self.page.locator(f"h3 >> text=/^GPU {gpu}$/"))

    def instance(self, place: str) -> Locator:
        return self.page.locator("li.instance").filter(has=self.page.locator(f"h4 >> text=/^{place}$/"))

    def rows(self) -> Locator:
        return self.page.locator("#processes .grid-body [role=row]")

    def column(self, name: str) -> list[str]:
        """The texts of the visible rows in one column, from top to bottom."""
        script = """(name) => [...document.querySelectorAll('#processes .grid-body [role=row]')]
            .sort((a, b) => a.getAttribute('aria-rowindex') - b.getAttribute('aria-rowindex'))
            .map((row) => row.querySelector('.c-' + name).textContent)"""
        found: list[str] = self.page.evaluate(script, name)
        return found

    def heading(self, name: str) -> Locator:
        return self.page.locator("#processes").get_by_role("columnheader", name=name)

    def hash(self) -> str:
        return urlsplit(self.page.url).fragment

    def change_response(self, address: str, change: Callable[[Any], None]) -> None:
        """Change the node's responses from an address below /api/v1/ from now on."""

        def changed(route: Route) -> None:
            answer = route.fetch()
            if answer.status != 200:
                route.fulfill(response=answer)
                return
            body = answer.json()
            change(body)
            route.fulfill(response=answer, json=body)

        self.page.route(f"**/api/v1/{address}", changed)

    def axe(self, **options: Any) -> list[str]:
        """The violations that axe finds, one line each. `options` are those of `axe.run`."""
        found = (
            Axe().run(self.page, options={"resultTypes": ["violations"], **options}).response["violations"]
        )
        return [
            f"{one['id']}: {node['html']} {node['failureSummary']}" for one in found for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """The pixels by which the page is wider than the window."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return wide

    def _listen(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("response", self._response)
        self.page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        gone = self.node_may_stop and "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not gone:
            self.problems.append(f"{message.type}: {message.text}")

    def _request(self, url: str) -> None:
        if not url.startswith(f"{self.origin}/"):
            self.problems.append(f"request to another place: {url}")

    def _response(self, response: Response) -> None:
        path = urlsplit(response.url).path
        if not path.startswith("/api/") and response.ok:
            self.weight[path] = len(response.body())


@contextmanager
def open_tab(browser: Browser, origin: str, **options: Any) -> Iterator[BrowserTab]:
    """A new tab. Console errors, policy violations and requests to other origins fail the test."""
    context = browser.new_context(**{**DESKTOP, **options})
    context.set_default_timeout(PATIENCE)
    # Tests count requests. By default, the browser remembers 250.
    context.add_init_script("performance.setResourceTimingBufferSize(100_000)")
    tab = BrowserTab(context.new_page(), origin)
    tab._listen()
    try:
        yield tab
    finally:
        # A response that is being changed when the tab closes is no failure.
        tab.page.unroute_all(behavior="ignoreErrors")
        context.close()
    assert tab.problems == []
