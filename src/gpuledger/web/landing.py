"""The page at `/`: what this node's GPUs do now, whether the data are fresh, and where the metrics are.

It names no process, user or pod. Made from the current Page when asked, which is rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from gpuledger import __version__
from gpuledger.model.page import Page
from gpuledger.model.source import Clock
from gpuledger.outputs.health import HEALTH, HEALTHY, READY, verdict
from gpuledger.outputs.routes import Handler, Request, Response
from gpuledger.web.style import STYLE, content_security_policy
from gpuledger.web.table import table

# Looked at by a person: slower than the tick, quick enough to see a job start.
_REFRESH_SECONDS = 5
_STILL = "refresh=off"


@dataclass(frozen=True, slots=True)
class Links:
    """Where the metrics are: the path of the metrics page, and the names of all dialects."""

    metrics_path: str = "/metrics"
    dialects: tuple[str, ...] = ()

    @property
    def described(self) -> Mapping[str, str]:
        """Every path with a few words about it, in the order shown."""
        return {
            self.metrics_path: "metrics, as this address serves them",
            **{f"/metrics/{name}": f"metrics of the dialect {name} alone" for name in self.dialects},
            HEALTHY: "liveness: 200 while the process answers",
            READY: "readiness: 200 once the first reading was tried",
            HEALTH: "health in words, always 200",
        }


@dataclass(frozen=True, slots=True)
class View:
    """What the page depends on beside the Page: the time in unix seconds, and how it was asked."""

    now: float
    host: str = ""
    refreshing: bool = True


def landing(current: Callable[[], Page], links: Links, clock: Clock) -> Handler:
    """The handler of `/` for the Page that `current` gives."""

    def serve(request: Request) -> Response:
        view = View(clock.unix(), request.headers.get("host", ""), request.query != _STILL)
        return Response(
            body=render(current(), links, view).encode("utf-8", "replace"),
            content_type="text/html; charset=utf-8",
            headers=(
                ("Content-Security-Policy", content_security_policy()),
                ("Referrer-Policy", "no-referrer"),
                ("Cache-Control", "no-store"),
            ),
        )

    return serve


def render(page: Page, links: Links, view: View) -> str:
    """The whole document. Every text that comes from outside is escaped."""
    refresh = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">\n' if view.refreshing else ""
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{refresh}<title>gpuledger</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>gpuledger <small>{escape(__version__)}</small></h1>
{_banner(page)}{_state(page, view)}
</header>
<main>
{_devices(page)}
<h2>Metrics and health</h2>
{_link_list(links)}
<h2>Prometheus</h2>
<p>Add this target to <code>scrape_configs</code>:</p>
<pre>{_scrape_config(links, view.host)}</pre>
</main>
<footer>{_refreshing(view)}</footer>
</body>
</html>
"""


def _banner(page: Page) -> str:
    source = page.source
    if not source.simulated:
        return ""
    what = f": {source.detail}" if source.detail else f": source {source.name}"
    told = f"<strong>Simulated data{escape(what)}.</strong> No hardware is read."
    return f'<p class="banner" role="note">{told}</p>\n'


def _state(page: Page, view: View) -> str:
    source = page.source
    read_by = f"source {source.name}"
    if source.driver_version:
        read_by += f", driver {source.driver_version}"
    return (
        f"<p>Health: <strong>{escape(verdict(page.health))}</strong>. {_age(page, view.now)} "
        f"{escape(read_by)}.</p>"
    )


def _age(page: Page, now: float) -> str:
    if page.snapshot is None:
        return "There are no readings."
    # A clock that was set back must not make data from the future.
    return f"Read {max(0.0, now - page.snapshot.unix):.0f} s ago;"


def _devices(page: Page) -> str:
    if page.snapshot is None:
        return f"<p>No GPU is shown because nothing could be read: {escape(page.health.status)}</p>"
    if not page.snapshot.readings:
        failed = page.snapshot.devices_failed
        return "<p>The GPUs could not be listed.</p>" if failed else "<p>This machine has no GPU.</p>"
    partly = "<p>Not all GPUs could be listed.</p>\n" if page.snapshot.devices_failed else ""
    return partly + table(page.snapshot)


def _link_list(links: Links) -> str:
    items = (
        f'<li><a href="{escape(path)}">{escape(path)}</a>: {escape(about)}</li>'
        for path, about in links.described.items()
    )
    return "<ul>\n{}\n</ul>".format("\n".join(items))


def _scrape_config(links: Links, host: str) -> str:
    path = "" if links.metrics_path == "/metrics" else f", metrics_path: {links.metrics_path}"
    target = host or "HOST:9400"
    return escape(f"- {{job_name: gpuledger{path}, static_configs: [{{targets: ['{target}']}}]}}")


def _refreshing(view: View) -> str:
    if view.refreshing:
        return f'Refreshed every {_REFRESH_SECONDS} s. <a href="/?{_STILL}">Stop refreshing</a>'
    return '<a href="/">Refresh automatically</a>'
