"""`gpuledger top`: who is on the GPUs now."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from os import environ
from typing import Any

from gpuledger.app.flags import no_words, parse, parser
from gpuledger.app.logs import quiet_node, set_up
from gpuledger.app.node_api import Access
from gpuledger.app.signals import StopRequest
from gpuledger.app.top_feeds import LocalFeed, RemoteFeed
from gpuledger.config.assemble import assemble
from gpuledger.config.node import EVERYTHING, TOP
from gpuledger.config.settings import LogSettings
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build
from gpuledger.node.settings import NodeSettings
from gpuledger.terminal.feed import Feed
from gpuledger.terminal.line import glyphs_for, plain
from gpuledger.terminal.picture import Picture, read_picture
from gpuledger.terminal.search import Filter, of_gpus, unknown_gpus
from gpuledger.terminal.settings import NodeAccessSettings, TopSettings
from gpuledger.terminal.view import View, clock_text

_ABOUT = """\
Who is on the GPUs now, in the terminal: which are free, at work or held without use, and of each process the
owner, memory, watts and joules. Of this machine, or with --url of a node that runs gpuledger serve.
"""
_EXAMPLES = """\
examples:
  gpuledger top                                    this machine; ? shows the keys, q leaves
  gpuledger top --url http://node-7:9400           another one, from its gpuledger serve
  gpuledger top --sort watts --filter 'train !test'
  gpuledger top --gpu 0,1/2_0                      GPU 0, and one MIG instance of GPU 1
  gpuledger top --source simulator                 without a GPU: a made-up node with eight

for scripts, mails and pipes:
  gpuledger top --once                             one picture; so gets it whatever is not a terminal
  gpuledger top | grep HELD                        which GPUs are held without being used
  gpuledger top --interval 10s >> log              one every ten seconds, until stopped
  gpuledger top --json | jq '.processes[] | select(.user == "ann")'

with a password, and an authority of one's own:
  gpuledger top --url https://node-7:9400 --user ann --password-file ~/.gpu --ca-file /etc/ssl/site.pem

keys: arrows move, enter shows details, a column's letter sorts (again: the other way), < and > sort by the
next column, / filters, 0-9 or tab and enter choose a GPU, space stops and goes on, q leaves.

Of this machine joules are counted from the moment top began; `serve` keeps books, and --url shows them.
Absent is '-': not told, which is not zero. More: docs/top.md
"""


# Log lines that came while the terminal was drawn on and are shown when that ends.
_LAST = 10


def run(arguments: Sequence[str]) -> int:
    """Show pictures until the user has enough; answers 0."""
    made = parser("top", _ABOUT, _EXAMPLES, TOP)
    made.usage = "gpuledger top [FLAGS]"
    given = parse(made, TOP.values(), arguments, environ)
    no_words("top", given.words)
    values = assemble(TOP.values(), given.flags, environ, given.config, EVERYTHING)
    set_up(build(LogSettings, values))
    settings = build(TopSettings, values)
    access = build(NodeAccessSettings, values)
    view = View(settings.sort, Filter.of(settings.filter), settings.gpu)
    interval = build(NodeSettings, values).interval
    if not settings.once and not settings.json and _can_draw():
        return _live(values, access, view, interval)
    # Only a flag asks for more than one picture: an interval in the configuration is for `serve`.
    repeated = interval if "interval" in given.flags and not settings.once else None
    with quiet_node(), closing(_feed(values, access)) as feed, StopRequest() as stop:
        _settle(feed)
        _print_all(feed, settings, view, repeated, stop)
    return 0


def _can_draw() -> bool:
    """Whether there is a terminal that can move its cursor, with somebody before it."""
    return sys.stdout.isatty() and sys.stdin.isatty() and environ.get("TERM", "dumb") not in ("dumb", "")


def _feed(values: Mapping[str, Any], access: NodeAccessSettings) -> Feed:
    if not access.url:
        feed = LocalFeed(values)
        feed.start()
        return feed
    return RemoteFeed(
        access.url,
        Access(access.user, access.password_file, access.ca_file, access.cert_file, access.key_file),
    )


def _settle(feed: Feed) -> None:
    if isinstance(feed, LocalFeed):
        feed.settle()


def _live(values: Mapping[str, Any], access: NodeAccessSettings, view: View, interval: float) -> int:
    # Drawing takes some 30 MiB: only who looks pays for it.
    from gpuledger.terminal.app import TopApp

    with _held_back() as lines, closing(_feed(values, access)) as feed:
        _check(view, read_picture(feed.snapshot()))
        app = TopApp(feed, view, interval, glyphs_for(sys.stdout.encoding))
        app.run()
    for line in lines:
        sys.stderr.write(f"{line}\n")
    return app.return_code or 0


def _check(view: View, picture: Picture) -> None:
    """Raises UsageError for a GPU that is not there."""
    missing = unknown_gpus(picture.devices, view.gpus)
    if missing and picture.readings:
        there = ", ".join(row.place for row in picture.devices)
        raise UsageError(f"--gpu: there is no '{missing[0]}'; there are {there}")


def _print_all(
    feed: Feed, settings: TopSettings, view: View, repeated: float | None, stop: StopRequest
) -> None:
    first = True
    while True:
        try:
            body = feed.snapshot()
            picture = read_picture(body)
        except GpuledgerError as error:
            # Who asked for a picture every so often is not left alone because one is missing.
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


def _as_text(feed: Feed, picture: Picture, view: View) -> str:
    from gpuledger.terminal.palette import painted
    from gpuledger.terminal.text import lines_of

    terminal = sys.stdout.isatty()
    # In a pipe nothing is cut: programs look for whole names there.
    width = shutil.get_terminal_size().columns if terminal or environ.get("COLUMNS") else None
    glyphs, clock = glyphs_for(sys.stdout.encoding), clock_text(picture.unix)
    lines = lines_of(picture, view, feed.origin, clock, width, glyphs, feed.remarks())
    styled = terminal and environ.get("TERM", "dumb") != "dumb"
    coloured = "NO_COLOR" not in environ
    return "".join(f"{painted(line, coloured=coloured) if styled else plain(line)}\n" for line in lines)


def _as_json(body: Mapping[str, Any], picture: Picture, view: View) -> str:
    """The snapshot as it came, of the GPUs and processes that are shown alone, these in their order."""
    devices = of_gpus(picture.devices, view.gpus)
    shown = {(row.uuid, row.instance) for row in devices}
    by_row = dict(zip(map(id, picture.processes), body["processes"], strict=True))
    rows = view.processes(picture)
    narrowed = {
        **body,
        "devices": [one for one in body["devices"] if (one["uuid"], one["instance"]) in shown],
        "processes": [by_row[id(row)] for row in rows],
    }
    return json.dumps(narrowed) + "\n"


@contextmanager
def _held_back() -> Iterator[list[str]]:
    """While the terminal is drawn on, keep log lines, which would go through the picture."""
    lines: list[str] = []
    root = logging.getLogger()
    before = root.handlers
    keeper = _Keeper(lines)
    keeper.setFormatter(before[0].formatter if before else None)
    root.handlers = [keeper]
    try:
        yield lines
    finally:
        root.handlers = before


class _Keeper(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        del self._lines[:-_LAST]
