"""The landing page as HTML: what this node's GPUs do now, whether the data are fresh, where the metrics are.

It names no process, user or pod.
"""

from __future__ import annotations

from html import escape

from gpuledger import __version__
from gpuledger.model.page import Page
from gpuledger.outputs.health import verdict
from gpuledger.web.style import STYLE
from gpuledger.web.table import table
from gpuledger.web.view import STILL, Links, View

# Looked at by a person: slower than the tick, quick enough to see a job start.
_REFRESH_SECONDS = 5


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
        f"<p>Health: <strong>{escape(verdict(page))}</strong>. {_age(page, view.now)} {escape(read_by)}.</p>"
    )


def _age(page: Page, now: float) -> str:
    if page.snapshot is None:
        return "There are no readings;"
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


def _href(path: str) -> str:
    """Relative: a proxy may serve the node below a prefix. Every page with such links lies at the root."""
    return escape(f".{path}")


def _link_list(links: Links) -> str:
    items = (
        f'<li><a href="{_href(path)}">{escape(path)}</a>: {escape(about)}</li>'
        for path, about in links.described.items()
    )
    return "<ul>\n{}\n</ul>".format("\n".join(items))


def _scrape_config(links: Links, host: str) -> str:
    path = "" if links.metrics_path == "/metrics" else f", metrics_path: {links.metrics_path}"
    target = host or "HOST:9400"
    return escape(
        f"- {{job_name: gpuledger{path}, honor_labels: true, static_configs: [{{targets: ['{target}']}}]}}"
    )


def _refreshing(view: View) -> str:
    if view.refreshing:
        return (
            f'Refreshed every {_REFRESH_SECONDS} s. <a href="{_href(view.path)}?{STILL}">Stop refreshing</a>'
        )
    return f'<a href="{_href(view.path)}">Refresh automatically</a>'
