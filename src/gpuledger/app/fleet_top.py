"""`gpuledger top --fleet`: all nodes of a fleet in the terminal, once or again and again."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import closing
from os import environ

from gpuledger.app.fleet_api import FleetApiClient
from gpuledger.app.stop_signals import StopRequest
from gpuledger.host.output_width import output_width
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.fleet_table import fleet_lines
from gpuledger.terminal.layout import Line, glyphs_for, plain_text
from gpuledger.terminal.palette import ansi_text
from gpuledger.terminal.settings import TopSettings

# Seconds between two readings of the live view: the fleet reads its nodes as often.
_INTERVAL = 5.0
# Of xterm, and all that followed it: the alternate screen, the cursor, home, clear to the end.
_ENTER, _LEAVE, _HOME, _REST = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[J"
_LINE_REST = "\x1b[K"


def show_fleet(
    url: str, access: ClientAccessSettings, settings: TopSettings, interval: float | None, *, is_live: bool
) -> int:
    """Show the fleet; returns the exit code. `interval` repeats the output; live, it is always repeated.

    Raises GpuledgerError if the first reading fails.
    """
    with closing(FleetApiClient(url, access)) as client, StopRequest() as stop:
        if settings.json or settings.once or not is_live:
            return _print_all(client, settings, None if settings.once else interval, stop)
        return _live(client, settings, interval or _INTERVAL, stop)


def _print_all(
    client: FleetApiClient, settings: TopSettings, interval: float | None, stop: StopRequest
) -> int:
    first = True
    while True:
        try:
            text = json.dumps(client.fleet_json()) if settings.json else _plain(client, settings)
        except GpuledgerError as error:
            # Repeated output continues after a failed reading.
            if first or interval is None:
                raise
            sys.stderr.write(f"gpuledger: {error}\n")
        else:
            sys.stdout.write(f"{text}\n" if first or settings.json else f"\n{text}\n")
            sys.stdout.flush()
            first = False
        if interval is None or stop.wait(interval):
            return 0


def _plain(client: FleetApiClient, settings: TopSettings) -> str:
    lines = _read_lines(client, settings, output_width())
    styled = sys.stdout.isatty() and environ.get("TERM", "dumb") != "dumb"
    return "\n".join(_styled(line) if styled else plain_text(line) for line in lines)


def _live(client: FleetApiClient, settings: TopSettings, interval: float, stop: StopRequest) -> int:
    """Redraw the lines that fit into the terminal until Ctrl+C."""
    size = shutil.get_terminal_size()
    lines, error = _read_lines(client, settings, size.columns), ""
    sys.stdout.write(_ENTER)
    try:
        while True:
            shown: list[Line] = [*([((error, "stale"),)] if error else []), *lines]
            text = "".join(f"{_styled(line)}{_LINE_REST}\n" for line in shown[: size.lines - 1])
            sys.stdout.write(f"{_HOME}{text}{_REST}")
            sys.stdout.flush()
            if stop.wait(interval):
                return 0
            size = shutil.get_terminal_size()
            try:
                lines, error = _read_lines(client, settings, size.columns), ""
            except GpuledgerError as failure:
                error = str(failure)
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _read_lines(client: FleetApiClient, settings: TopSettings, width: int | None) -> list[Line]:
    picture, glyphs = client.fleet(), glyphs_for(sys.stdout.encoding)
    return fleet_lines(picture, settings.filter.split(), client.url, width, glyphs)


def _styled(line: Line) -> str:
    return ansi_text(line, colored="NO_COLOR" not in environ)
