"""Engine time of DRM clients between two ticks, by process and device.

A client counts once for each GPU, whichever processes hold it: descriptors are inherited and passed on. It
belongs to the lowest pid that holds it, until that process closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.text import decode_utf8
from gpuledger.sources.drm.client_files import ClientFiles, OpenFile
from gpuledger.sources.drm.fdinfo import DrmClient, parse_fdinfo

# Engine classes of amdgpu, i915 and xe (see drm-usage-stats.rst): what counts as graphics and as compute.
_COMPUTE: Final = frozenset({"compute", "ccs"})
_GRAPHICS: Final = frozenset({"gfx", "render", "rcs"})
_ENCODERS: Final = frozenset({"enc", "enc_1"})
_DECODERS: Final = frozenset({"dec"})
_JPEG: Final = frozenset({"jpeg"})
_NANO: Final = 1e9
# Engines of one class that a client can keep busy, or wait for: a counter that gains more has leapt.
_MOST_ENGINES: Final = 1000

ClientKey = tuple[str, int]


@dataclass(slots=True)
class EngineUse:
    """What one process used of one device since the last tick, as fractions of time by engine class.

    They can pass 1: time in a queue counts, and a class can have several engines of unknown number. `memory`
    is the bytes that its clients hold now. `computes` and `draws`: it has ever used such an engine. `known`
    is False while two readings of a client cannot be compared, `reported` if the kernel keeps no engine time.
    """

    shares: dict[str, float] = field(default_factory=dict)
    memory: int | None = None
    computes: bool = False
    draws: bool = False
    known: bool = True
    reported: bool = True
    has_named_codecs: bool = False

    @property
    def main(self) -> float:
        """Share of the busier of the graphics and compute engines."""
        return max((self.shares.get(name, 0.0) for name in _GRAPHICS | _COMPUTE), default=0.0)

    @property
    def other(self) -> float:
        """Share of the busiest engine that is neither these nor a codec's: copy, video of Intel."""
        known = _GRAPHICS | _COMPUTE | _ENCODERS | _DECODERS | _JPEG
        return max((share for name, share in self.shares.items() if name not in known), default=0.0)

    def codec(self, names: frozenset[str]) -> float:
        """Share of these engines together."""
        return sum(self.shares.get(name, 0.0) for name in names)

    @property
    def encoder(self) -> float:
        """Share of encoder time (amdgpu)."""
        return self.codec(_ENCODERS)

    @property
    def decoder(self) -> float:
        """Share of decoder time (amdgpu)."""
        return self.codec(_DECODERS)

    @property
    def jpeg(self) -> float:
        """Share of JPEG engine time (amdgpu)."""
        return self.codec(_JPEG)

    def add(self, client: _TrackedClient) -> None:
        """Add one client of the process."""
        for name, share in client.shares.items():
            self.shares[name] = self.shares.get(name, 0.0) + share
        held = client.last.held_memory
        if held is not None:
            self.memory = (self.memory or 0) + held
        busy = client.busy_classes
        self.computes = self.computes or bool(busy & _COMPUTE) or (bool(busy) and not busy & _GRAPHICS)
        self.draws = self.draws or bool(busy & _GRAPHICS)
        self.known = self.known and client.known
        self.reported = self.reported and client.last.reports_use
        self.has_named_codecs = self.has_named_codecs or client.last.driver == "amdgpu"


@dataclass(slots=True)
class _TrackedClient:
    """One client over time, last read at `at`.

    `engines` are the highest values seen, the last time at `followed_at`: a driver's may fall for a moment.
    """

    owner: OpenFile
    last: DrmClient
    at: float
    followed_at: float
    engines: dict[str, int] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    known: bool = False
    leapt: bool = False

    @property
    def busy_classes(self) -> frozenset[str]:
        """Classes of engines that the client has used."""
        used = (self.last.engines.items(), self.last.cycles.items())
        return frozenset(name for items in used for name, amount in items if amount)

    def advance(self, now: DrmClient, at: float) -> None:
        """Compute the shares since the last reading."""
        self.shares, self.known, self.leapt = {}, now.reports_use, False
        most = _MOST_ENGINES * max(at - self.at, 1.0) * _NANO
        for name, amount in now.engines.items():
            highest, seconds = self.engines.get(name, 0), at - self.followed_at
            gained = max(0, amount - highest)
            if abs(amount - highest) > most:
                # It is believed if the next reading goes on from there.
                gained = amount - self.last.engines.get(name, 0)
                if not 0 <= gained <= most:
                    self.known, self.leapt = False, True
                    continue
                highest, seconds = 0, at - self.at
            self.engines[name] = max(amount, highest)
            if seconds > 0:
                self.shares[name] = gained / _NANO / seconds / (now.capacity.get(name) or 1)
        for name, amount in now.cycles.items():
            self._add_cycles(
                name, amount - self.last.cycles.get(name, 0), self.last.total_cycles.get(name, 0), now
            )
        self.last, self.at = now, at
        if self.known:
            self.followed_at = at

    def begin(self, since: float | None, totals: Mapping[tuple[str, str], int]) -> None:
        """Count a client that began after the last tick at `since`, at most for the time since.

        `totals` are the cycles of each GPU and class at the last tick.
        """
        now = self.last
        self.engines = dict(now.engines)
        if since is None or self.at <= since:
            return
        self.known = now.reports_use
        for name, amount in now.engines.items():
            self.shares[name] = amount / _NANO / (self.at - since) / (now.capacity.get(name) or 1)
        for name, amount in now.cycles.items():
            self._add_cycles(name, amount, totals.get((now.address, name)), now)
        self.shares = {name: min(1.0, share) for name, share in self.shares.items()}

    def _add_cycles(self, name: str, gained: int, total_before: int | None, now: DrmClient) -> None:
        total = now.total_cycles.get(name, 0) - (total_before or 0)
        if gained == 0 and total >= 0:
            self.shares[name] = 0.0
        elif total_before is not None and 0 < gained <= total * _MOST_ENGINES:
            self.shares[name] = gained / total / (now.capacity.get(name) or 1)
        else:
            # The total restarts with the driver, a reset and a resume: the sample is lost.
            self.known = False


@dataclass(frozen=True, slots=True)
class ClientUses:
    """What each process used, by PCI address and the name of its file in /dev/dri, then by pid.

    The name is that in the process's container, where a file can have another name than on the machine; it
    only says which partition it is. `hidden` is how many processes could not be looked at. `rocm` are pids
    that have KFD open. `ended` are the places of clients that ended since the last tick: their last use is
    not known. `leaps` is how many clients have engine time that cannot be true. `unlisted` as in FoundFiles.
    """

    by_place: Mapping[tuple[str, str], Mapping[int, EngineUse]]
    hidden: int = 0
    processes: int = 0
    rocm: frozenset[int] = frozenset()
    ended: frozenset[tuple[str, str]] = frozenset()
    leaps: int = 0
    unlisted: bool = False


class UsageTracker:
    """Reads the clients of GPUs once a tick and compares them with the last tick."""

    def __init__(self, files: ClientFiles) -> None:
        self._files = files
        self._clients: dict[ClientKey, _TrackedClient] = {}
        self._read_at: float | None = None

    def read(
        self,
        now: float,
        is_asleep: Callable[[str], bool],
        addresses: Collection[str],
        unreported: Mapping[str, tuple[str, str]] | None = None,
    ) -> ClientUses:
        """Return the uses of the GPUs at these addresses at `now`, seconds of the boot clock.

        The clients of a GPU that sleeps are not read, which would wake it: they used nothing. `unreported`
        are driver and address of files in /dev/dri that fdinfo need not describe, because their driver does
        not or their GPU sleeps: each process that holds one counts as one client.
        """
        found = self._files.find(now)
        holders: dict[ClientKey, list[tuple[OpenFile, DrmClient]]] = {}
        for file in found.files:
            client = self._asleep_client(file) if is_asleep(file.node) else self._read_client(file)
            if client is None and file.node in (unreported or {}):
                client = DrmClient(*(unreported or {})[file.node], -file.pid)
            if client is not None and client.address in addresses:
                holders.setdefault((client.address, client.client_id), []).append((file, client))
        before = self._clients
        self._update(holders, now)
        ended = frozenset(
            (key[0], tracked.owner.node)
            for key, tracked in before.items()
            if key not in self._clients and key[1] >= 0
        )
        self._read_at = now
        by_place: dict[tuple[str, str], dict[int, EngineUse]] = {}
        for (address, _), tracked in self._clients.items():
            uses = by_place.setdefault((address, tracked.owner.node), {})
            uses.setdefault(tracked.owner.pid, EngineUse()).add(tracked)
        leaps = sum(tracked.leapt for tracked in self._clients.values())
        return ClientUses(by_place, found.hidden, found.processes, found.rocm, ended, leaps, found.unlisted)

    def _read_client(self, file: OpenFile) -> DrmClient | None:
        raw = self._files.text(file)
        return None if raw is None else parse_fdinfo(decode_utf8(raw))

    def _asleep_client(self, file: OpenFile) -> DrmClient | None:
        known = (tracked.last for tracked in self._clients.values() if tracked.owner == file)
        return next(known, None)

    def _update(self, holders: Mapping[ClientKey, list[tuple[OpenFile, DrmClient]]], now: float) -> None:
        before, self._clients = self._clients, {}
        totals: dict[tuple[str, str], int] = {}
        for tracked_before in before.values():
            for name, total in tracked_before.last.total_cycles.items():
                place = (tracked_before.last.address, name)
                totals[place] = max(total, totals.get(place, 0))
        for key, held in holders.items():
            tracked = before.get(key)
            files = {file.pid: (file, client) for file, client in reversed(held)}
            if tracked is None or tracked.owner.pid not in files:
                owner, client = files[min(files)]
                if tracked is None:
                    tracked = _TrackedClient(owner, client, now, now)
                    # One that was already open while its GPU slept is not new.
                    was_open = (key[0], -owner.pid) in before
                    tracked.begin(None if was_open else self._read_at, totals)
                    self._clients[key] = tracked
                    continue
                tracked.owner = owner
            tracked.owner, client = files[tracked.owner.pid]
            tracked.advance(client, now)
            self._clients[key] = tracked
