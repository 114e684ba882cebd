"""The agent's HTTP pages: the status page with targets and receivers, and the targets API."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from textwrap import shorten
from typing import Any, Final

from gpuledger.agent.agent import AgentView
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.agent.discovery.selection import SCRAPE_STEPS, STEPS, SelectionReport
from gpuledger.agent.families import agent_families
from gpuledger.agent.scrape.loop import ScrapeLoop
from gpuledger.http.hosts import AllowedHosts
from gpuledger.http.routes import Handler, Response, Routes
from gpuledger.outputs.responses import metrics_page_handler, probe_routes
from gpuledger.web.plain_page import html_document, html_response, html_table

_STILL: Final = "still"
# Rows of the target table; targets that are down come first.
_MOST_ROWS: Final = 500
# Reasons shown for each selection.
_MOST_REASONS: Final = 10
_LONGEST: Final = 160
_NEVER: Final = '<span title="not yet">\N{EN DASH}</span>'


def render_status_page(view: AgentView, *, refreshing: bool = True) -> str:
    """Render the HTML document. All external text is escaped."""
    footer = f'<a href="./?{_STILL}">Stop refreshing</a>' if refreshing else '<a href="./">Refresh</a>'
    header = f"{_trouble(view)}<p>{_summary(view)}</p>"
    main = f"""\
<h2>Targets</h2>
{_targets(view)}
{_discovery(view)}<h2>Receivers</h2>
{_receivers(view)}
<h2>Metrics and health</h2>
<ul>
<li><a href="./metrics">/metrics</a>: the same information as Prometheus metrics</li>
<li><a href="./-/healthy">/-/healthy</a>, <a href="./-/ready">/-/ready</a>: liveness and readiness probes</li>
</ul>"""
    return html_document("gpuledger agent", header, main, footer, refreshing=refreshing)


def _trouble(view: AgentView) -> str:
    if not view.error:
        return ""
    end = "" if view.error.endswith("?") else "."
    active = f"The last valid one, loaded {_ago(view, view.configured)}, is active."
    return _banner("The configuration file is invalid", f"{escape(view.error)}{end} {active}")


def _banner(title: str, text: str) -> str:
    return f'<p class="banner" role="note"><strong>{escape(title)}:</strong> {text}</p>\n'


def _summary(view: AgentView) -> str:
    up = sum(loop.state.up is True for loop in view.loops)
    down = sum(loop.state.up is False for loop in view.loops)
    waiting = sum(state.queued_samples for state in view.receivers)
    dropped = f", {view.dropped} dropped by relabelConfigs" if view.dropped else ""
    return (
        f"<strong>{up}</strong> of {len(view.loops)} targets up, <strong>{down}</strong> down{dropped}; "
        f"<strong>{waiting:,}</strong> samples queued for delivery{_losses(view)}."
    )


def _losses(view: AgentView) -> str:
    """Return the number of failing receivers and dropped samples, or an empty text."""
    failing = sum(state.failing or state.refusing for state in view.receivers)
    lost = sum(sum(state.dropped.values()) for state in view.receivers)
    text = f"; <strong>{failing}</strong> of {len(view.receivers)} receivers are failing" if failing else ""
    return text + (f"; <strong>{lost:,}</strong> samples were dropped" if lost else "")


def _targets(view: AgentView) -> str:
    if not view.loops:
        return "<p>There are no targets.</p>"
    loops = sorted(view.loops, key=lambda loop: loop.state.up is not False)
    more = f"<p>{len(loops) - _MOST_ROWS:,} more are not shown.</p>" if len(loops) > _MOST_ROWS else ""
    columns = ("Target", "Group", "State", "Last scrape", "Duration", "Samples", "Interval")
    return html_table("Targets", columns, (_target_row(view, loop) for loop in loops[:_MOST_ROWS])) + more


def _discovery(view: AgentView) -> str:
    """Render the selections with the counts of each step, and the failing watches."""
    discovery = view.discovery
    if not discovery.reports and not discovery.waiting_reason:
        return ""
    problems = "".join(_banner(watch.name, escape(watch.error)) for watch in discovery.health if watch.error)
    if discovery.waiting_reason:
        problems += _banner("Nothing is scraped", f"{escape(discovery.waiting_reason)}.")
    columns = ("Selection", "Kind", *(step.capitalize() for step in (*STEPS, *SCRAPE_STEPS)))
    rows = (_selection_row(view, report) for report in view.discovery.reports)
    shard = f"<p>This is shard {view.shard}.{_former(view)}</p>\n" if view.shard else ""
    reasons = "".join(map(_reasons, view.discovery.reports))
    table = html_table("Discovery", columns, rows)
    return f"<h2>Discovery</h2>\n{shard}{problems}{table}\n{reasons}"


def _former(view: AgentView) -> str:
    if not view.discovery.assignment.former_shards:
        return ""
    names = " and ".join(map(str, view.discovery.assignment.former_shards))
    return f" It still scrapes its targets of {names} until the other shards are ready."


def _selection_row(view: AgentView, report: SelectionReport) -> str:
    passed = [*report.passed.values(), *view.scrape_step_counts(report.name).values()]
    numbers = "".join(f"<td>{f'{number:,}' if report.known else _NEVER}</td>" for number in passed)
    return (
        f'<tr><th scope="row" class="words">{escape(report.name)}</th>'
        f'<td class="name">{escape(report.kind)}</td>{numbers}</tr>'
    )


def _reasons(report: SelectionReport) -> str:
    """Render why a selection has no targets, and why some of its objects are not targets."""
    why = report.error or report.summary()
    if not why and not report.reasons:
        return ""
    reasons = [escape(reason) for reason in report.reasons[:_MOST_REASONS]]
    left = len(report.reasons) - len(reasons) + report.more_reasons
    if left:
        reasons.append(f"and {left:,} more")
    items = f"<ul>{''.join(f'<li>{reason}</li>' for reason in reasons)}</ul>\n" if reasons else ""
    name = f"<strong>{escape(report.name)}</strong>"
    return f"<p>{name}: {escape(why) or 'some selected objects are not targets'}</p>\n{items}"


def _target_row(view: AgentView, loop: ScrapeLoop) -> str:
    state, target = loop.state, loop.target
    word = {True: "up", False: "down", None: "not yet scraped"}[state.up]
    if state.up is False:
        word += " (page rejected)" if state.answered else " (no valid response)"
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
    columns = ("Receiver", "URL", "State", "Queued", "Oldest", "Delivered", "Lag", "Dropped", "On disk")
    return html_table("Receivers", columns, (_receiver_row(view, state) for state in view.receivers))


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
        return "rejecting"
    return "accepting" if state.last_success else "nothing sent yet"


def _short(text: str) -> str:
    """Shorten an error, which may quote a whole document; the log has more of it."""
    return escape(shorten(text, _LONGEST, placeholder="..."))


def _ago(view: AgentView, unix: float | None) -> str:
    return _NEVER if unix is None else f"{max(0.0, view.now - unix):.0f} s ago"


TARGETS_API_PATH: Final = "/api/v1/targets"
_HEALTH: Final = {True: "up", False: "down", None: "unknown"}
# Errors are shortened: a receiver's response can have any size.
_LONGEST_ERROR: Final = 300
_NEVER_SCRAPED: Final = "0001-01-01T00:00:00Z"


def active_targets_response(view: AgentView) -> Response:
    """Return the response at TARGETS_API_PATH. Dropped targets are counted in the metrics, not listed."""
    data = {"activeTargets": [_active(loop) for loop in view.loops], "droppedTargets": []}
    body = json.dumps({"status": "success", "data": data}, separators=(",", ":"))
    return Response(200, body.encode(), "application/json")


def _active(loop: ScrapeLoop) -> dict[str, Any]:
    state, target = loop.state, loop.target
    return {
        "labels": dict(target.labels),
        "scrapePool": target.group,
        "scrapeUrl": target.url,
        "lastError": shorten(state.error, _LONGEST_ERROR, placeholder=" ..."),
        "lastScrape": _time(state.last_scrape),
        "lastScrapeDuration": state.duration or 0.0,
        "health": _HEALTH[state.up],
    }


def _time(unix: float | None) -> str:
    """Format a time like Prometheus, which uses year 1 for never."""
    if unix is None:
        return _NEVER_SCRAPED
    return datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")


def agent_routes(view: Callable[[], AgentView], hosts: AllowedHosts | None = None) -> Routes:
    """Return the routes of status page, metrics, targets API and probes.

    The agent is ready after the first discovery, successful or not: other shards may then drop their targets.
    """
    handlers: dict[str, Handler] = {
        "/": lambda request: html_response(render_status_page(view(), refreshing=request.query != _STILL)),
        "/metrics": metrics_page_handler(lambda: agent_families(view())),
        TARGETS_API_PATH: lambda _: active_targets_response(view()),
        **probe_routes(lambda: view().discovery.unready_reason),
    }
    return Routes(handlers, hosts=hosts)
