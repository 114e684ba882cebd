"""The agent's page for people: every target with its state, and every receiver with what waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from html import escape
from textwrap import shorten
from typing import Any, Final

from gpuledger import __version__
from gpuledger.agent.agent import AgentView
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.agent.discovery.selection import SCRAPE_STEPS, STEPS, SelectionReport
from gpuledger.agent.families import agent_families
from gpuledger.agent.scrape.loop import TargetLoop
from gpuledger.http.routes import Handler, Hosts, Request, Response, Routes
from gpuledger.outputs.responses import metrics_page, probes
from gpuledger.web.landing_html import STYLE, styled

_REFRESH_SECONDS: Final = 5
_STILL: Final = "still"
# A page of a thousand rows is of use to nobody: those that fail come first.
_MOST_ROWS: Final = 500
# Objects of a selection whose reason is shown.
_MOST_REASONS: Final = 10
_LONGEST: Final = 160
_WORDS: Final = ' class="words"'
_NEVER: Final = '<span title="not yet">\N{EN DASH}</span>'


def overview(view: Callable[[], AgentView]) -> Handler:
    """The handler of `/`."""

    def serve(request: Request) -> Response:
        return styled(render(view(), refreshing=request.query != _STILL))

    return serve


def render(view: AgentView, *, refreshing: bool = True) -> str:
    """The whole document. Every text that comes from outside is escaped."""
    refresh = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">\n' if refreshing else ""
    other = f'<a href="./?{_STILL}">Stop refreshing</a>' if refreshing else '<a href="./">Refresh</a>'
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{refresh}<title>gpuledger agent</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>gpuledger agent <small>{escape(__version__)}</small></h1>
{_trouble(view)}<p>{_summary(view)}</p>
</header>
<main>
<h2>Targets</h2>
{_targets(view)}
{_looked_for(view)}<h2>Receivers</h2>
{_receivers(view)}
<h2>Metrics and health</h2>
<ul>
<li><a href="./metrics">/metrics</a>: the same as Prometheus metrics</li>
<li><a href="./-/healthy">/-/healthy</a>, <a href="./-/ready">/-/ready</a>: for probes</li>
</ul>
</main>
<footer>{other}</footer>
</body>
</html>
"""


def _trouble(view: AgentView) -> str:
    if not view.error:
        return ""
    end = "" if view.error.endswith("?") else "."
    return (
        f'<p class="banner" role="note"><strong>The configuration cannot be used:</strong> '
        f"{escape(view.error)}{end} The last good one, of {_ago(view, view.configured)}, is in force.</p>\n"
    )


def _summary(view: AgentView) -> str:
    up = sum(loop.state.up is True for loop in view.loops)
    down = sum(loop.state.up is False for loop in view.loops)
    waiting = sum(state.queued_samples for state in view.receivers)
    dropped = f", {view.dropped} dropped by relabelConfigs" if view.dropped else ""
    return (
        f"<strong>{up}</strong> of {len(view.loops)} targets up, <strong>{down}</strong> down{dropped}; "
        f"<strong>{waiting:,}</strong> samples wait to be delivered{_losses(view)}."
    )


def _losses(view: AgentView) -> str:
    """Which receivers take nothing, and what was lost; nothing where all is well."""
    deaf = sum(state.failing or state.refusing for state in view.receivers)
    lost = sum(sum(state.dropped.values()) for state in view.receivers)
    told = f"; <strong>{deaf}</strong> of {len(view.receivers)} receivers take nothing" if deaf else ""
    return told + (f"; <strong>{lost:,}</strong> samples were dropped" if lost else "")


def _targets(view: AgentView) -> str:
    if not view.loops:
        return "<p>There are no targets.</p>"
    loops = sorted(view.loops, key=lambda loop: loop.state.up is not False)
    more = f"<p>{len(loops) - _MOST_ROWS:,} more are not shown.</p>" if len(loops) > _MOST_ROWS else ""
    columns = ("Target", "Group", "State", "Last scrape", "Took", "Samples", "Every")
    return _table("Targets", columns, (_target_row(view, loop) for loop in loops[:_MOST_ROWS])) + more


def _looked_for(view: AgentView) -> str:
    """The selections with the numbers that came past each step, and the watches that are not well."""
    if not view.reports and not view.waiting:
        return ""
    ill = "".join(
        f'<p class="banner" role="note"><strong>{escape(watch.name)}:</strong> {escape(watch.error)}</p>\n'
        for watch in view.watches
        if watch.error
    )
    if view.waiting:
        why = escape(view.waiting)
        ill += f'<p class="banner" role="note"><strong>Nothing is scraped:</strong> {why}.</p>\n'
    columns = ("Looked for", "Kind", *(step.capitalize() for step in (*STEPS, *SCRAPE_STEPS)))
    rows = (_selection_row(view, report) for report in view.reports)
    shard = f"<p>This is shard {view.shard}.{_former(view)}</p>\n" if view.shard else ""
    reasons = "".join(map(_reasons, view.reports))
    table = _table("Looked for", columns, rows)
    return f"<h2>Looked for in the cluster</h2>\n{shard}{ill}{table}\n{reasons}"


def _former(view: AgentView) -> str:
    if not view.former:
        return ""
    names = " and ".join(map(str, view.former))
    return f" It goes on with its targets of {names} until those who take them over are ready."


def _selection_row(view: AgentView, report: SelectionReport) -> str:
    passed = [*report.passed.values(), *view.went_on(report.name).values()]
    numbers = "".join(f"<td>{f'{number:,}' if report.known else _NEVER}</td>" for number in passed)
    return (
        f'<tr><th scope="row" class="words">{escape(report.name)}</th>'
        f'<td class="name">{escape(report.kind)}</td>{numbers}</tr>'
    )


def _reasons(report: SelectionReport) -> str:
    """Why a selection has no targets, and why single objects of it are none."""
    why = report.trouble or report.verdict()
    if not why and not report.reasons:
        return ""
    told = [escape(reason) for reason in report.reasons[:_MOST_REASONS]]
    left = len(report.reasons) - len(told) + report.more_reasons
    if left:
        told.append(f"and {left:,} more")
    listed = f"<ul>{''.join(f'<li>{one}</li>' for one in told)}</ul>\n" if told else ""
    name = f"<strong>{escape(report.name)}</strong>"
    return f"<p>{name}: {escape(why) or 'not everything that is selected is a target'}</p>\n{listed}"


def _target_row(view: AgentView, loop: TargetLoop) -> str:
    state, target = loop.state, loop.target
    word = {True: "up", False: "down", None: "not yet scraped"}[state.up]
    if state.up is False:
        word += " at the scrape" if state.answered else " at the endpoint"
    why = f"<br>{_short(state.error)}" if state.error else ""
    labels = " ".join(f"{name}={value}" for name, value in target.labels)
    took = _NEVER if state.duration is None else f"{state.duration * 1000:.0f} ms"
    samples = _NEVER if not state.last_success else f"{state.counts.kept:,}"
    return (
        f'<tr><th scope="row" class="words" title="{escape(labels)}">{escape(target.url)}</th>'
        f'<td class="name">{escape(target.group)}</td><td class="words">{word}{why}</td>'
        f"<td>{_ago(view, state.last_scrape)}</td><td>{took}</td><td>{samples}</td>"
        f"<td>{target.settings.interval:g} s</td></tr>"
    )


def _receivers(view: AgentView) -> str:
    columns = ("Receiver", "URL", "State", "Waiting", "Oldest", "Delivered", "Lag", "Dropped", "On disk")
    return _table("Receivers", columns, (_receiver_row(view, state) for state in view.receivers))


def _receiver_row(view: AgentView, state: ReceiverState) -> str:
    word = _word(state)
    why = ""
    if state.last_error:
        why = f"<br>{_short(state.last_error)}, {_ago(view, state.last_error_at)}"
    lost = sum(state.dropped.values())
    reasons = ", ".join(f"{escape(reason)} {count:,}" for reason, count in state.dropped.items() if count)
    lag = _NEVER
    if state.newest_accepted is not None and state.newest_sent is not None:
        lag = f"{max(0.0, state.newest_accepted - state.newest_sent):.0f} s"
    return (
        f'<tr><th scope="row" class="words">{escape(state.name)}</th>'
        f'<td class="name">{escape(state.url)}</td>'
        f'<td class="words">{word}{why}</td><td>{state.queued_samples:,}</td>'
        f"<td>{_ago(view, state.oldest)}</td><td>{state.sent_samples:,}</td><td>{lag}</td>"
        f'<td title="{reasons}">{lost:,}</td><td>{state.disk_bytes / 2**20:.1f} MiB</td></tr>'
    )


def _word(state: ReceiverState) -> str:
    if state.failing:
        return "failing"
    if state.refusing:
        return "refusing"
    return "taking" if state.last_success else "nothing sent yet"


def _table(label: str, columns: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(
        f'<th scope="col"{_WORDS if column == "State" else ""}>{column}</th>' for column in columns
    )
    body = "\n".join(rows)
    return (
        f'<div class="wide" role="region" aria-label="{label}" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _short(text: str) -> str:
    """Who fails may do so with a whole document; the log has more of it."""
    return escape(shorten(text, _LONGEST, placeholder="..."))


def _ago(view: AgentView, unix: float | None) -> str:
    return _NEVER if unix is None else f"{max(0.0, view.now - unix):.0f} s ago"


PATH: Final = "/api/v1/targets"
_HEALTH: Final = {True: "up", False: "down", None: "unknown"}
# Answers are of any size; those of thousands of targets that are down are few and alike.
_LONGEST_TIMEOUT: Final = 300
_NEVER_SCRAPED: Final = "0001-01-01T00:00:00Z"


def active_targets(view: Callable[[], AgentView]) -> Handler:
    """The handler of `PATH`. What relabelling drops is counted in the metrics, and not listed here."""

    def serve(_: Request) -> Response:
        data = {"activeTargets": [_active(loop) for loop in view().loops], "droppedTargets": []}
        body = json.dumps({"status": "success", "data": data}, separators=(",", ":"))
        return Response(200, body.encode(), "application/json")

    return serve


def _active(loop: TargetLoop) -> dict[str, Any]:
    state, target = loop.state, loop.target
    return {
        "labels": dict(target.labels),
        "scrapePool": target.group,
        "scrapeUrl": target.url,
        "lastError": shorten(state.error, _LONGEST_TIMEOUT, placeholder=" ..."),
        "lastScrape": _time(state.last_scrape),
        "lastScrapeDuration": state.duration or 0.0,
        "health": _HEALTH[state.up],
    }


def _time(unix: float | None) -> str:
    """As Prometheus writes it, which has a year for never."""
    return (
        _NEVER_SCRAPED
        if unix is None
        else datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")
    )


def routes_of(view: Callable[[], AgentView], hosts: Hosts | None = None) -> Routes:
    """The page, the metrics, the list of targets and the probes, under these names. It lives as soon as it
    listens; it is ready once what is to be found in a cluster was looked for, well or in vain: others hand
    targets over then.
    """
    handlers = {
        "/": overview(view),
        "/metrics": metrics_page(lambda: agent_families(view())),
        PATH: active_targets(view),
        **probes(lambda: view().unready),
    }
    return Routes(handlers, hosts=hosts)
