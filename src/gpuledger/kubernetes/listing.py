"""Objects of one kind, kept up to date by listing them once and watching what changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final, Generic, TypeVar

from gpuledger.host.background import BackgroundIndex, internal_error
from gpuledger.kubernetes.client import ApiClient, Interrupted, Refused
from gpuledger.kubernetes.fields import mapping
from gpuledger.kubernetes.stream import ListReader, NotJson, lines
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

T = TypeVar("T")

_KINDS: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
_GONE: Final = ("Gone", "Expired")


class Gone(GpuledgerError):
    """The server no longer knows what has happened since the version asked for: all must be listed anew."""


class WatchFailed(GpuledgerError):
    """The server ended a watch with an error."""


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """What happened to an object, and the version of the world after it; a bookmark is a version alone."""

    kind: str
    version: str
    about: T | None = None


def read_event(line: bytes, read: Callable[[object], T | None]) -> Event[T]:
    """One line as an event, its object as `read` makes it; raises Gone, WatchFailed or NotJson."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        raise NotJson("a line of the watch") from None
    kind, about = (told.get("type"), told.get("object")) if isinstance(told, dict) else (None, None)
    if not isinstance(about, dict):
        raise NotJson("an event of no object")
    if kind == "ERROR":
        raise _error(about)
    if kind not in _KINDS:
        raise NotJson(f"an event of kind {str(kind)[:40]!r}")
    version = mapping(about, "metadata").get("resourceVersion")
    return Event(
        kind,
        version if isinstance(version, str) else "",
        None if kind == "BOOKMARK" else read(about),
    )


def _error(status: dict[str, Any]) -> GpuledgerError:
    message = str(status.get("message") or status.get("reason") or "no reason told")[:400]
    if status.get("code") == 410 or status.get("reason") in _GONE:
        return Gone(message)
    return WatchFailed(f"the API server ended the watch: {message}; all is listed anew")


log = logging.getLogger("gpuledger.workloads")

_PAGE: Final = "500"
_SHORTEST_PAUSE: Final = 1.0
# A watch that broke off after this many seconds was a good one.
_LONG_ENOUGH: Final = 10.0


class ListWatch(BackgroundIndex, Generic[T]):
    """What is at one path of the API server, in a thread of its own.

    The list is answered from the server's cache (resourceVersion=0), the watch lasts about `watch_seconds`
    and then goes on from where it stood. `jitter` seconds at most are waited before the first list and after
    each watch, so that many do not ask at once. Silence for `grace` seconds longer than a watch means that
    the server hangs. While the server is gone the last known objects stay; `health.last_success` is when it
    last said anything. `query` selects what is wanted.

    A subclass says in `_read` what an object is, in `_key` which one it is, and in `_publish` what is done
    with them when they have changed.
    """

    # Seconds between two tries, once many have failed.
    longest_pause: ClassVar[float] = 60.0

    def __init__(
        self,
        client: ApiClient,
        path: str,
        query: dict[str, str],
        *,
        clock: Clock,
        random: Random | None = None,
        jitter: float = 3.0,
        watch_seconds: float = 300.0,
        grace: float = 15.0,
        name: str,
    ) -> None:
        super().__init__(name, clock, random)
        self._client = client
        self._path = path
        self._query = query
        self._jitter = jitter
        self._watch_seconds = watch_seconds
        self._grace = grace
        self._objects: dict[str, T] = {}
        # Where the watch goes on; empty before the first list and when that is too long ago.
        self._version = ""
        # Whether nothing was heard since a list from the cache: when that expires, the cache was too old.
        self._stale_list = False
        self._began = 0.0
        # The error that the log has, until a watch works again: not only begins.
        self._complaint = ""

    def _let_go(self) -> None:
        self._client.abort()

    def nudge(self) -> None:
        """Nothing: the server tells by itself, and while it fails it is not asked more often."""

    def _run(self) -> None:
        self._wait(self._random.uniform(0.0, self._jitter))
        while not self._stopping:
            self._wait(self._turn())

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _turn(self) -> float:
        """List where that is needed, and watch once; answers how long to wait then."""
        try:
            if not self._version:
                self._list()
            self._watch()
        except Interrupted as error:
            return self._interrupted(error)
        except Gone:
            return self._forgotten()
        except Refused as error:
            if error.gone:
                return self._forgotten()
            if error.status in (403, 404):
                # Who may list and not watch is still told the truth, if late; and an API that is no longer
                # there may have gone to another place.
                self._version = ""
            return max(self._fail(str(error)), error.retry_after)
        except (NotJson, WatchFailed) as error:
            # An event may be lost.
            self._version = ""
            return self._fail(str(error))
        except (GpuledgerError, OSError) as error:
            return self._fail(str(error))
        except Exception as error:
            log.exception("%s could not be read", self.name)
            self._version = ""
            return self._fail(internal_error(error))
        return self._random.uniform(0.0, self._jitter)

    def _list(self) -> None:
        cached = not self._stale_list
        query = {"limit": _PAGE, "resourceVersion": "0"} if cached else {"limit": _PAGE}
        found: dict[str, T] = {}
        while True:
            with self._client.get(self._path, {**self._query, **query}) as pieces:
                reader = ListReader(pieces)
                for told in reader.items():
                    if (about := self._read(told)) is not None:
                        self._put(found, about)
            if not reader.next_page:
                break
            # The token stands for a version; naming one beside it is an error.
            query = {"limit": _PAGE, "continue": reader.next_page}
        version = reader.metadata.get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise NotJson("a list without a version")
        self._objects, self._version = found, version
        self._stale_list = cached
        self._publish()
        self._heard()

    def _watch(self) -> None:
        seconds = max(1, round(self._watch_seconds * self._random.uniform(0.8, 1.0)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": self._version,
        }
        self._began = self._clock.elapsed()
        with self._client.get(self._path, {**self._query, **query}, timeout=seconds + self._grace) as pieces:
            self._began = self._clock.elapsed()
            self._heard()
            for line in lines(pieces):
                if self._stopping:
                    return
                self._take(read_event(line, self._read))
                self._well()
        self._heard()
        self._well()

    def _take(self, event: Event[T]) -> None:
        if event.version:
            self._version = event.version
            self._stale_list = False
        about = event.about
        if about is not None and self._changes(event.kind, about):
            self._publish()
        self._heard()

    def _changes(self, kind: str, about: T) -> bool:
        if kind == "DELETED":
            return self._objects.pop(self._key(about), None) is not None
        before = self._objects.get(self._key(about))
        self._put(self._objects, about)
        return before != about

    def _read(self, told: object) -> T | None:
        """An object out of the API's JSON; None for what is of no use."""
        raise NotImplementedError

    def _key(self, about: T) -> str:
        """By what an object is told from others."""
        raise NotImplementedError

    def _put(self, objects: dict[str, T], about: T) -> None:
        objects[self._key(about)] = about

    def _publish(self) -> None:
        raise NotImplementedError

    def _heard(self) -> None:
        self._succeeded(len(self._objects))

    def _well(self) -> None:
        if self._complaint:
            log.info("%s can be read again", self.name)
        self._complaint = ""
        self._failures = 0

    def _interrupted(self, error: Interrupted) -> float:
        """Balancers end what lasts too long for them: that is no failure, unless it is all that happens."""
        if self._clock.elapsed() - self._began >= _LONG_ENOUGH:
            self._failures = 0
        if self._failures:
            return self._fail(str(error))
        self._failures = 1
        log.debug("%s: %s", self.name, error)
        return self._pause()

    def _forgotten(self) -> float:
        log.debug("%s: the watch has expired, all is listed anew", self.name)
        self._version = ""
        self._failures += 1
        return self._pause()

    def _fail(self, error: str) -> float:
        if self._stopping:
            return 0.0
        if error != self._complaint:
            self._complaint = error
            log.warning("%s: %s", self.name, error)
        self._failed(error)
        return self._pause()

    def _pause(self) -> float:
        longest = min(_SHORTEST_PAUSE * (1 << min(self._failures - 1, 10)), self.longest_pause)
        return longest * self._random.uniform(0.5, 1.0)
