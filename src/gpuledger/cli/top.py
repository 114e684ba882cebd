"""`gpuledger top`: show GPU usage by process in the terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from os import environ
from typing import Any

from gpuledger.app.flag_checks import refuse_other_flags, require_words
from gpuledger.app.flags import parse_command
from gpuledger.app.logs import configure_logging, silence_node_log
from gpuledger.app.node_requests import UNIX
from gpuledger.app.stop_signals import StopRequest
from gpuledger.app.top_feeds import LocalFeed, RemoteFeed, SeveralNodesFeed, SocketFeed
from gpuledger.config.commands import TOP_GROUPS
from gpuledger.config.load import settings_of
from gpuledger.config.settings import LogSettings
from gpuledger.host.output_width import output_width
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.node.settings import ControlSettings, NodeSettings
from gpuledger.terminal.feed import Feed
from gpuledger.terminal.filters import ProcessFilter, find_unknown_gpus, select_devices
from gpuledger.terminal.layout import glyphs_for, plain_text
from gpuledger.terminal.settings import FleetUrlSettings, NodeAccessSettings, TopSettings
from gpuledger.terminal.snapshot import NodeSnapshot, parse_snapshot
from gpuledger.terminal.top_view import TopView, format_clock

_ABOUT = """\
Show GPU usage in the terminal: which GPUs are free, active or held without use, and the owner, memory, power
and energy of each process. For this machine, with --url for nodes that run gpuledger serve, or with --fleet
for a lab.
"""
_EXAMPLES = """\
examples:
  gpuledger top                                    this machine; ? shows the keys, q quits
  gpuledger top --url http://node-7:9400           another node, from its gpuledger serve
  gpuledger top --url gpu-1 --url gpu-2            several nodes in one table: GPU gpu-1:3
  gpuledger top --fleet http://lab:9410            all nodes of a gpuledger fleet: free GPUs first
  gpuledger top --sort watts --filter 'train !test'
  gpuledger top --gpu 0,1/2_0                      GPU 0, and one MIG instance of GPU 1
  gpuledger top --source simulator                 without a GPU: a simulated node with eight

for scripts, mails and pipes:
  gpuledger top --once                             one table (the default if stdout is not a terminal)
  gpuledger top | grep HELD                        GPUs that are held without use
  gpuledger top --interval 10s >> log              one every ten seconds, until stopped
  gpuledger top --json | jq '.processes[] | select(.user == "ann")'

with a password, and your own certificate authority:
  gpuledger top --url https://node-7:9400 --user ann --password-file ~/.gpu --ca-file /etc/ssl/site.pem

keys: arrows move, enter shows details, a column's letter sorts (again: reverses), < and > sort by the next
column, / filters, 0-9 or tab and enter choose a GPU, space pauses and resumes the display, q quits.
Without --url: t shows the process tree; k, K and I send SIGTERM, SIGKILL and SIGINT after a confirmation.

For this machine, energy is counted from the start of top; `serve` keeps a ledger, and --url shows it.
'-' means not available, which is not zero. More: docs/top.md
"""


# Log lines of the live display that are shown when it ends.
_KEPT_LOG_LINES = 10


def run(arguments: Sequence[str]) -> int:
    """Show GPU usage, live or once; returns the exit code."""
    given, read = parse_command("top", _ABOUT, _EXAMPLES, TOP_GROUPS, arguments)
    require_words(given.flags, {"top.fleet": "a URL"})
    values = read()
    configure_logging(values)
    settings = build_settings(TopSettings, values)
    access = build_settings(NodeAccessSettings, values)
    fleet = build_settings(FleetUrlSettings, values).fleet
    _refuse_other_machines(given.flags, access, fleet)
    if fleet and "top.url" not in given.flags:
        _refuse_flags_of_a_node(given.flags)
        from gpuledger.app.fleet_top import show_fleet

        interval = build_settings(NodeSettings, values).interval if "interval" in given.flags else None
        return show_fleet(fleet, access, settings, interval, is_live=_can_draw())
    view = TopView(settings.sort, ProcessFilter.of(settings.filter), settings.gpu)
    interval = build_settings(NodeSettings, values).interval
    if not settings.once and not settings.json and _can_draw():
        return _live(values, settings, access, view, interval)
    # Only the flag repeats the output: an interval in the configuration is for `serve`.
    repeated = interval if "interval" in given.flags and not settings.once else None
    with silence_node_log(), closing(_feed(values, access)) as feed, StopRequest() as stop:
        if isinstance(feed, LocalFeed):
            feed.settle()
        _print_all(feed, settings, view, repeated, stop)
    return 0


# Groups that also matter for other machines, as the interval does. The others say how this one is read.
_OF_ANY_NODE = (TopSettings, NodeAccessSettings, FleetUrlSettings, ControlSettings, LogSettings)


def _refuse_other_machines(flags: Collection[str], access: NodeAccessSettings, fleet: str) -> None:
    """Raise UsageError for two places to read, and for flags of this machine if another one is shown."""
    if "top.fleet" in flags and "top.url" in flags:
        raise UsageError("--fleet and --url exclude each other: choose what to show")
    if len(access.urls) > 1 and any(url.startswith(UNIX) for url in access.urls):
        raise UsageError(f"--url {UNIX} is the gpuledger of this machine: give it alone, or its http:// URL")
    if not access.urls and not fleet:
        return
    of_any = {"interval", *settings_of(_OF_ANY_NODE)} - {"top.command_lines"}
    key = "top.fleet" if fleet and "top.url" not in flags else "top.url"
    # A setting of the file or of the environment has no flag that could be omitted.
    place = f"--{key.removeprefix('top.')}" if key in flags else key
    refuse_other_flags(
        flags, of_any, f" is for reading this machine, and {place} shows others: omit one of them"
    )


# Flags that `top --fleet` cannot honor, by key.
_OF_ONE_NODE = {"top.gpu": "--gpu", "top.sort": "--sort", "top.command_lines": "--command-lines"}


def _refuse_flags_of_a_node(flags: Collection[str]) -> None:
    for key, flag in _OF_ONE_NODE.items():
        if key in flags:
            raise UsageError(f"{flag} is for one node, and --fleet shows many: omit it; --filter has words")


def _can_draw() -> bool:
    """Whether stdin and stdout are an interactive terminal that can move its cursor."""
    return sys.stdout.isatty() and sys.stdin.isatty() and environ.get("TERM", "dumb") not in ("dumb", "")


def _feed(values: Mapping[str, Any], access: NodeAccessSettings) -> Feed:
    if not access.urls:
        return _local_feed(values)
    if access.urls[0].startswith(UNIX):
        return SocketFeed(values, access.urls[0])
    if len(access.urls) > 1:
        return SeveralNodesFeed(access.urls, access)
    return RemoteFeed(access.urls[0], access)


def _local_feed(values: Mapping[str, Any]) -> Feed:
    """This machine; if this user cannot read its driver, what the running gpuledger says of own processes."""
    feed = LocalFeed(values)
    try:
        feed.start()
    except SourceUnavailable as unread:
        other = SocketFeed(values)
        try:
            other.snapshot()
        except GpuledgerError as error:
            other.close()
            raise GpuledgerError(f"{unread}. Also, {error}. Of any node: --url http://NODE:9400") from None
        return other
    return feed


def _live(
    values: Mapping[str, Any],
    settings: TopSettings,
    access: NodeAccessSettings,
    view: TopView,
    interval: float,
) -> int:
    # Imported lazily: the live display takes some 30 MiB.
    from gpuledger.terminal.app import TopApp

    with _buffered_log() as lines, closing(_feed(values, access)) as feed:
        _check(view, parse_snapshot(feed.snapshot()))
        local = feed.local_processes(settings.command_lines) if isinstance(feed, LocalFeed) else None
        app = TopApp(feed, view, interval, glyphs_for(sys.stdout.encoding), local=local)
        app.run()
    for line in lines:
        sys.stderr.write(f"{line}\n")
    return app.return_code or 0


def _check(view: TopView, picture: NodeSnapshot) -> None:
    """Raises UsageError for an unknown GPU."""
    missing = find_unknown_gpus(picture.devices, view.gpus)
    if missing and picture.readings:
        there = ", ".join(row.place for row in picture.devices)
        raise UsageError(f"--gpu: unknown GPU '{missing[0]}'; valid: {there}")


def _print_all(
    feed: Feed, settings: TopSettings, view: TopView, repeated: float | None, stop: StopRequest
) -> None:
    first = True
    while True:
        try:
            body = feed.snapshot()
            picture = parse_snapshot(body)
        except GpuledgerError as error:
            # Repeated output continues after a failed reading.
            if first or repeated is None:
                raise
            sys.stderr.write(f"gpuledger: {error}\n")
        else:
            if first:
                _check(view, picture)
            text = _as_json(body, picture, view) if settings.json else _as_text(feed, picture, view)
            sys.stdout.write(text if first or settings.json else f"\n{text}")
            sys.stdout.flush()
            first = False
        if repeated is None or stop.wait(repeated):
            return


def _as_text(feed: Feed, picture: NodeSnapshot, view: TopView) -> str:
    from gpuledger.terminal.palette import ansi_text
    from gpuledger.terminal.plain_output import render_lines

    terminal = sys.stdout.isatty()
    glyphs, clock = glyphs_for(sys.stdout.encoding), format_clock(picture.unix)
    lines = render_lines(picture, view, feed.origin, clock, output_width(), glyphs, feed.remarks())
    styled = terminal and environ.get("TERM", "dumb") != "dumb"
    colored = "NO_COLOR" not in environ
    return "".join(f"{ansi_text(line, colored=colored) if styled else plain_text(line)}\n" for line in lines)


def _as_json(body: Mapping[str, Any], picture: NodeSnapshot, view: TopView) -> str:
    """The snapshot, reduced to the shown GPUs and processes, these in the shown order."""
    devices = select_devices(picture.devices, view.gpus)
    shown = {row.device_key for row in devices}
    by_row = dict(zip(map(id, picture.processes), body["processes"], strict=True))
    rows = view.processes(picture)
    narrowed = {
        **body,
        "devices": [device for device in body["devices"] if (device["uuid"], device["instance"]) in shown],
        "processes": [by_row[id(row)] for row in rows],
    }
    return json.dumps(narrowed) + "\n"


@contextmanager
def _buffered_log() -> Iterator[deque[str]]:
    """Buffer the last log lines while the live display uses the terminal."""
    root = logging.getLogger()
    before = root.handlers
    handler = _BufferHandler(logging.WARNING)
    handler.setFormatter(before[0].formatter if before else None)
    root.handlers = [handler]
    try:
        yield handler.lines
    finally:
        root.handlers = before


class _BufferHandler(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: deque[str] = deque(maxlen=_KEPT_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
