"""The plain page as HTML: the state of this node's GPUs, the age of the data, and links to the metrics.

It names no process, user or pod.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from html import escape

from gpuledger import __version__
from gpuledger.http.routes import Response
from gpuledger.model.devices import Gpu, Instance, partition_word
from gpuledger.model.down_reasons import describe_down
from gpuledger.model.gpu_problems import find_problems
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import (
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    POWER_LIMIT,
    TEMPERATURE,
    UTILIZATION,
)
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.outputs.responses import health_verdict
from gpuledger.web.settings import NO_REFRESH_QUERY, Links

_ABSENT = '<span title="not reported by the driver">\N{EN DASH}</span>'
_COLUMNS = ("GPU", "Name", "Processes", "Utilization", "Memory", "Power", "Temperature")
_GIB = 2**30


def gpu_table(snapshot: Snapshot) -> str:
    """An HTML table of a Snapshot's Readings, in their order."""
    holders = {reading.device for reading in snapshot.process_readings}
    rows = (_row(snapshot, reading, holds=reading.device in holders) for reading in snapshot.readings)
    about = "GPUs of this machine. \N{EN DASH}: the driver does not report the value; it is not zero."
    return html_table("GPUs", _COLUMNS, rows, f"<caption>{about}</caption>\n")


def html_table(label: str, columns: Iterable[str], rows: Iterable[str], caption: str = "") -> str:
    """A table that scrolls if it is too wide. `rows` and `caption` are HTML; the column State has words."""
    words = {"State": ' class="words"'}
    head = "".join(f'<th scope="col"{words.get(column, "")}>{column}</th>' for column in columns)
    body = "\n".join(rows)
    return (
        f'<div class="wide" role="region" aria-label="{label}" tabindex="0">\n<table>\n{caption}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _row(snapshot: Snapshot, reading: Reading, *, holds: bool) -> str:
    device = reading.device
    part = ' class="part"' if isinstance(device, Instance) else ""
    start = (
        f'<tr{part}><th scope="row">{escape(_place(device))}</th>'
        f'<td class="name">{escape(_name(device))}</td>'
    )
    if not reading.up:
        why = describe_down(reading.down_reason) if reading.down_reason else "not answering"
        return f'{start}<td class="down" colspan="{len(_COLUMNS) - 2}">{escape(why)}</td></tr>'
    cells = (
        _processes(reading) if holds else "below",
        _share(reading),
        f"shared with {owner.instance}"
        if (owner := snapshot.memory_shared_with.get(device))
        else _pair(reading.get(MEMORY_USED), reading.get(MEMORY_TOTAL), "{:.1f}", "GiB", _GIB),
        _pair(reading.get(POWER), reading.get(POWER_LIMIT), "{:.0f}", "W"),
        _format(reading.get(TEMPERATURE), "{:.0f} °C"),
    )
    return start + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _place(device: Gpu | Instance) -> str:
    if isinstance(device, Instance):
        return f"{device.parent.index} / {device.instance}"
    return str(device.index)


def _name(device: Gpu | Instance) -> str:
    if isinstance(device, Instance):
        return f"{partition_word(device.parent.vendor)} {device.profile}".rstrip()
    return device.name or device.uuid


def _processes(reading: Reading) -> str:
    # An unreadable list is not an empty one.
    return "unknown" if reading.processes is None else str(len(reading.processes))


def _share(reading: Reading) -> str:
    ratio = reading.get(UTILIZATION)
    return _format(None if ratio is None else ratio * 100, "{:.0f} %")


def _pair(value: float | None, most: float | None, form: str, unit: str, scale: int = 1) -> str:
    """The value and its limit in units of `scale`; only the value without a limit."""
    shown = _format(None if value is None else value / scale, form)
    if most is not None:
        return f"{shown} / {form.format(most / scale)} {unit}"
    return shown if value is None else f"{shown} {unit}"


def _format(value: float | None, form: str) -> str:
    return _ABSENT if value is None else form.format(value)


STYLE = """\
:root { color-scheme: light dark; --line: #c9ced6; --soft: #5b6472; --note: #fff3cd; --note-text: #5c4400; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444c58; --soft: #a3adba; --note: #4a3b0b; --note-text: #ffe9a8; }
}
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h1 small { font-size: 1rem; font-weight: normal; color: var(--soft); }
h2 { font-size: 1.15rem; margin: 1.5rem 0 .25rem; }
p { margin: .5rem 0; }
.banner { background: var(--note); color: var(--note-text); padding: .5rem .75rem; border-radius: .25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; position: sticky; left: 0; }
tr.part th { padding-left: 1.6rem; font-weight: normal; }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); }
th:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tbody th { font-weight: 600; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
th.words, td.words { white-space: normal; overflow-wrap: anywhere; text-align: left; min-width: 8.5rem; }
td.down { text-align: left; color: var(--soft); }
code, pre { font-family: ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
footer { color: var(--soft); margin-top: 1.5rem; }
@media (max-width: 40rem) {
  body { padding: .6rem; }
  th, td { padding: .35rem .3rem; font-size: .85rem; }
  th:nth-child(2), td.name { display: none; }
  caption { white-space: normal; max-width: calc(100vw - 1.2rem); display: block; }
  table { display: block; }
}
"""


def html_response(document: str) -> Response:
    """A response with an HTML document that contains STYLE; not cached, and nothing else may be loaded."""
    return Response(
        body=document.encode("utf-8", "replace"),
        content_type="text/html; charset=utf-8",
        headers=(
            ("Content-Security-Policy", content_security_policy()),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ),
    )


@cache
def content_security_policy() -> str:
    """A policy that allows only STYLE, by its hash, and forbids framing."""
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


# For people: slower than the tick, fast enough to see a job start.
REFRESH_SECONDS = 5


def html_document(title: str, header: str, main: str, footer: str, *, refreshing: bool) -> str:
    """An HTML document with the version of the program after its title. The other texts are HTML."""
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">\n' if refreshing else ""
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{refresh}<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{title} <small>{escape(__version__)}</small></h1>
{header}
</header>
<main>
{main}
</main>
<footer>{footer}</footer>
</body>
</html>
"""


def render_plain_page(
    state: NodeState, links: Links, now: float, *, host: str = "", refreshing: bool = True, path: str = "/"
) -> str:
    """The HTML document, at the unix time `now`. Every external text is escaped.

    `host` is the address of this node as requested, `path` that of the page.
    """
    main = f"""\
{_devices(state)}
<h2>Metrics and health</h2>
{_link_list(links)}
<h2>Prometheus</h2>
<p>Add this target to <code>scrape_configs</code>:</p>
<pre>{_scrape_config(links, host)}</pre>"""
    header = f"{_banner(state)}{_state(state, now)}"
    footer = _refresh_link(path, refreshing=refreshing)
    return html_document("gpuledger", header, main, footer, refreshing=refreshing)


def _banner(state: NodeState) -> str:
    source = state.source
    if not source.simulated:
        return ""
    detail = f": {source.detail}" if source.detail else f": source {source.name}"
    text = f"<strong>Simulated data{escape(detail)}.</strong> No hardware is read."
    return f'<p class="banner" role="note">{text}</p>\n'


def _state(state: NodeState, now: float) -> str:
    source = state.source
    read_by = f"source {source.name}"
    if source.driver_version:
        read_by += f", driver {source.driver_version}"
    verdict = escape(health_verdict(state))
    return f"<p>Health: <strong>{verdict}</strong>. {_age(state, now)} {escape(read_by)}.</p>"


def _age(state: NodeState, now: float) -> str:
    if state.snapshot is None:
        return "There are no readings;"
    # The age is negative when the clock was set back.
    return f"Read {max(0.0, now - state.snapshot.unix):.0f} s ago;"


def _devices(state: NodeState) -> str:
    if state.snapshot is None:
        return f"<p>No GPU is shown because nothing could be read: {escape(state.health.status)}</p>"
    if not state.snapshot.readings:
        failed = state.snapshot.devices_failed
        return "<p>The GPUs could not be listed.</p>" if failed else "<p>This machine has no GPU.</p>"
    partly = "<p>Not all GPUs could be listed.</p>\n" if state.snapshot.devices_failed else ""
    return partly + gpu_table(state.snapshot) + _problems(state, state.snapshot)


def _problems(state: NodeState, snapshot: Snapshot) -> str:
    """What is wrong with the GPUs and what to do; nothing if all is well."""
    ledger = state.ledger
    items = [
        f"<li>GPU {reading.device.gpu.index} {escape(f'{problem.summary}. {_sentence(problem.remedy)}')}</li>"
        for reading in snapshot.readings
        for problem in find_problems(
            reading, ledger.throttling.get(reading.device.uuid, ()), ledger.xid_log, state.unix
        )
        if problem.level != "info"
    ]
    return "\n<h2>Problems</h2>\n<ul>\n{}\n</ul>".format("\n".join(items)) if items else ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _href(path: str) -> str:
    """A relative link: a proxy may serve the node below a prefix. Pages with these links are at the root."""
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


def _refresh_link(path: str, *, refreshing: bool) -> str:
    if refreshing:
        stop = f"{_href(path)}?{NO_REFRESH_QUERY}"
        return f'Refreshed every {REFRESH_SECONDS} s. <a href="{stop}">Stop refreshing</a>'
    return f'<a href="{_href(path)}">Refresh automatically</a>'
