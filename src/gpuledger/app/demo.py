"""A day of books for `gpuledger demo`: the real ledger reads the simulator faster than real time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep, time

from gpuledger.app.control_socket import SOCKET_NAME
from gpuledger.app.logs import limit_log, silence_node_log
from gpuledger.app.node_parts import NodeParts
from gpuledger.ledger.store.read_only_file import open_ledger
from gpuledger.ledger.store.schema import BEGUN
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.source import Clock
from gpuledger.node.settings import NO_SOCKET

DEMO_SOURCE = "simulator:demo"

# Seconds. Reads that are more than a minute apart would leave time unwatched; the page shows the last hour as
# means over ten seconds.
HISTORY = 86_400.0
_STEP, _RECENT, _FINE_STEP = 59.0, 3600.0, 9.5
# The simulator computes a day in seconds.
_LONGEST = 7 * HISTORY

# Bytes of the path of a unix socket.
_LONGEST_SOCKET = 107
_CONFIGURATION = """\
# Demo prices, and the simulated ledger, for `gpuledger report --config FILE`; with the socket of the running
# demo, for `gpuledger free --config FILE`.
source: {source}
state_dir: {folder}
control: {{socket: {socket}}}
price:
  currency: EUR
  gpu_hour: 2.40
  kwh: 0.30
  note: These are demo prices, invented for the simulation.
teams:
  - {{team: research, namespace: ml-research}}
  - {{team: research, namespace: notebooks}}
  - {{team: products, namespace: inference}}
  - {{team: products, namespace: search}}
"""


class HistoryClock:
    """A clock that begins in the past, stands still until it is advanced, and in the present runs.

    `lag` is how far it is behind, in seconds of the source's clock, of which `speed` pass in a second. It
    measures from before the machine's boot, so that `elapsed` is not negative after a boot within the `lag`.
    """

    def __init__(self, clock: Clock, lag: float, speed: float) -> None:
        self._clock = clock
        self._speed = speed
        self._before_boot = lag / speed
        self._at = clock.elapsed()

    @property
    def lag(self) -> float:
        """How far it is behind."""
        return max(0.0, self._present() - self._at) * self._speed

    def unix(self) -> float:
        """Wall time in unix seconds."""
        return self._clock.unix() - self.lag

    def elapsed(self) -> float:
        """Monotonic seconds."""
        return min(self._at, self._present())

    def advance(self, seconds: float) -> None:
        """Pass this much of the source's time, at most up to the present."""
        self._at += seconds / self._speed
        if self._at >= self._present():
            self._at = inf

    def _present(self) -> float:
        return self._clock.elapsed() + self._before_boot


def write_history(
    parts: NodeParts,
    clock: HistoryClock,
    stopped: Callable[[], bool],
    progress: Callable[[float], None],
    posted: float = 0.0,
) -> None:
    """Tick the node until its clock is in the present, or until it is stopped.

    `progress` is called with the part that is done, from 0 to 1. `posted` is the unix time of the last
    posting of an earlier demo: its books are continued from there, also if their day is incomplete.
    """
    with silence_node_log(), limit_log("gpuledger.ledger", logging.ERROR if posted else logging.NOTSET):
        if posted:
            clock.advance(max(posted + 1 - clock.unix(), clock.lag - HISTORY))
            # The books have the Xids until then.
            with suppress(SourceUnavailable):
                parts.source.read(frozenset())
        whole = clock.lag
        parts.node.tick()
        if posted and not whole:
            # Energy counters that are behind those of the earlier demo: the ledger would log a second reading
            # of them as a fault.
            sleep(1)
            parts.node.tick()
        costs = (0.0, 0.0)
        while (lag := clock.lag) > 0 and not stopped():
            # While a tick is booked the present moves on, at a high speed by more than a step.
            clock.advance(max(_STEP if lag > _RECENT else _FINE_STEP, 2 * min(costs)))
            behind = clock.lag
            parts.node.tick()
            costs = (costs[1], clock.lag - behind)
            progress(max(0.0, 1 - clock.lag / whole))


def history_of(file: Path, usual: float) -> float:
    """Seconds since the begin of this ledger, if it exists: the node that is simulated is then the same.

    `usual` is the history of a demo without a ledger, or with one that began too long ago.
    """
    try:
        with closing(open_ledger(file)) as connection:
            found = connection.execute("SELECT value FROM meta WHERE key = ?", (BEGUN,)).fetchone()
    except GpuledgerError:
        found = None
    past = usual if found is None else time() - found[0]
    return past if 0 < past <= _LONGEST else usual


@contextmanager
def demo_directory(given: str) -> Iterator[Path]:
    """The directory of the books: the given one, else a temporary one. Raises GpuledgerError."""
    if given:
        folder = Path(given)
        with _naming(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder.absolute()
        return
    with TemporaryDirectory(prefix="gpuledger-demo-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


def write_demo_configuration(folder: Path, source: str = DEMO_SOURCE) -> Path:
    """Write the configuration of a demo of this source to its directory, for `report` and `explain`.

    Raises GpuledgerError.
    """
    # Imported lazily: other commands do not write JSON, which is YAML.
    from json import dumps

    file = folder / "demo.yaml"
    socket = str(folder / SOCKET_NAME)
    if len(os.fsencode(socket)) > _LONGEST_SOCKET:
        socket = NO_SOCKET
    names = {"source": source, "folder": str(folder), "socket": socket}
    text = _CONFIGURATION.format(**{key: dumps(name) for key, name in names.items()})
    with _naming(file):
        file.write_text(text, encoding="utf-8")
    return file


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise GpuledgerError with the path for an OSError: that of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise GpuledgerError(
            f"cannot write {path}: {error.strerror}; name another directory with --state-dir"
        ) from None
