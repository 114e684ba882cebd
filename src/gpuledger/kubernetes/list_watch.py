"""ListWatch: objects of one kind, kept up to date by a list and a watch on the API server."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from gpuledger.host.owner_index import BackgroundIndex, Jitter, internal_error
from gpuledger.kubernetes.api_client import ApiClient, ApiResponseInterrupted, ApiServerRefused, list_pages
from gpuledger.kubernetes.fields import mapping_at
from gpuledger.kubernetes.json_stream import NotJson, split_lines
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

T = TypeVar("T")

_EVENT_KINDS: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
_EXPIRED_REASONS: Final = ("Gone", "Expired")


class WatchExpired(GpuledgerError):
    """The requested resourceVersion has expired: everything must be listed again."""


class WatchFailed(GpuledgerError):
    """The server ended a watch with an error."""


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event of a watch; `version` is its resourceVersion. A bookmark has no item."""

    kind: str
    version: str
    item: T | None = None


def parse_watch_event(line: bytes, parse: Callable[[object], T | None]) -> WatchEvent[T]:
    """Parse one line of a watch, and its object with `parse`. Raises WatchExpired, WatchFailed or NotJson."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise NotJson("a line of the watch") from None
    kind, item = (data.get("type"), data.get("object")) if isinstance(data, dict) else (None, None)
    if not isinstance(item, dict):
        raise NotJson("an event without an object")
    if kind == "ERROR":
        raise _error(item)
    if kind not in _EVENT_KINDS:
        raise NotJson(f"an event of kind {str(kind)[:40]!r}")
    version = mapping_at(item, "metadata").get("resourceVersion")
    return WatchEvent(
        kind,
        version if isinstance(version, str) else "",
        None if kind == "BOOKMARK" else parse(item),
    )


def _error(status: dict[str, Any]) -> GpuledgerError:
    message = str(status.get("message") or status.get("reason") or "no reason given")[:400]
    if status.get("code") == 410 or status.get("reason") in _EXPIRED_REASONS:
        return WatchExpired(message)
    return WatchFailed(f"the API server ended the watch: {message}; listing again")


log = logging.getLogger("gpuledger.workloads")

_MIN_PAUSE: Final = 1.0
# A watch that breaks off after this many seconds counts as a success.
_HEALTHY_WATCH_SECONDS: Final = 10.0


class ListWatch(BackgroundIndex, Generic[T]):
    """The objects at one path of the API server, kept up to date by a thread.

    The list comes from the server's cache (resourceVersion=0). Each watch takes about `watch_seconds`, and
    the next one continues at its resourceVersion. A random delay of at most `jitter` seconds before the first
    list and after each watch spreads the load of many clients. No data for `grace` seconds longer than a
    watch means that the server hangs. While the server fails, the last known objects are kept;
    `health.last_success` is the time of the last response. `query` selects the objects.

    A subclass parses an object in `_parse_object`, identifies it in `_object_key`, and uses changed objects
    in `_publish`.
    """

    # The longest pause between two attempts in seconds.
    max_pause: ClassVar[float] = 60.0

    def __init__(
        self,
        client: ApiClient,
        path: str,
        query: dict[str, str],
        *,
        clock: Clock,
        random: Jitter | None = None,
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
        # The resourceVersion at which the watch continues; empty if a list is needed.
        self._version = ""
        # Whether there was no event since a list from the cache. If that version expires, the cache was too
        # old, and the next list bypasses it.
        self._stale_list = False
        self._watch_started = 0.0
        # Whether the server refused the last list: the API or a permission is missing.
        self.refused = False
        # The last logged error. It is cleared once a watch works, not when it starts.
        self._logged_error = ""

    def _interrupt(self) -> None:
        self._client.abort()

    def _run(self) -> None:
        self._wait(self._random.uniform(0.0, self._jitter))
        while not self._stopping:
            self._wait(self._list_and_watch())

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _list_and_watch(self) -> float:
        """List if needed, and watch once. Return the seconds until the next call."""
        try:
            if not self._version:
                self._list()
            self._watch()
        except ApiResponseInterrupted as error:
            return self._on_interrupted(error)
        except WatchExpired:
            return self._on_expired()
        except ApiServerRefused as error:
            if error.status == 410:
                return self._on_expired()
            if error.status in (403, 404):
                self.refused = not self._version
                # List again: without permission to watch, lists still give a late but correct state, and an
                # API that has vanished may have moved to another path.
                self._version = ""
            return max(self._fail(str(error)), error.retry_after)
        except (NotJson, WatchFailed) as error:
            # An event may be lost: list again.
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
        found: dict[str, T] = {}
        with closing(list_pages(self._client, self._path, self._query, cached=cached)) as pages:
            for page in pages:
                for data in page.items():
                    if (item := self._parse_object(data)) is not None:
                        self._store(found, item)
        version = page.metadata.get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise NotJson("a list without a resourceVersion")
        self._objects, self._version = found, version
        self._stale_list = cached
        self._publish()
        self._record_success()

    def _watch(self) -> None:
        seconds = max(1, round(self._watch_seconds * self._random.uniform(0.8, 1.0)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": self._version,
        }
        self._watch_started = self._clock.elapsed()
        with self._client.get(self._path, {**self._query, **query}, timeout=seconds + self._grace) as chunks:
            self._watch_started = self._clock.elapsed()
            self._record_success()
            for line in split_lines(chunks):
                if self._stopping:
                    return
                self._apply_event(parse_watch_event(line, self._parse_object))
                self._record_recovery()
        self._record_success()
        self._record_recovery()

    def _apply_event(self, event: WatchEvent[T]) -> None:
        if event.version:
            self._version = event.version
            self._stale_list = False
        item = event.item
        if item is not None and self._apply_change(event.kind, item):
            self._publish()
        self._record_success()

    def _apply_change(self, kind: str, item: T) -> bool:
        if kind == "DELETED":
            return self._objects.pop(self._object_key(item), None) is not None
        before = self._objects.get(self._object_key(item))
        self._store(self._objects, item)
        return before != item

    def _parse_object(self, data: object) -> T | None:
        """Parse an object from the API's JSON; None to skip it."""
        raise NotImplementedError

    def _object_key(self, item: T) -> str:
        """The key that identifies an object."""
        raise NotImplementedError

    def _store(self, objects: dict[str, T], item: T) -> None:
        objects[self._object_key(item)] = item

    def _publish(self) -> None:
        raise NotImplementedError

    def _record_success(self) -> None:
        self.refused = False
        self._succeeded(len(self._objects))

    def _record_recovery(self) -> None:
        if self._logged_error:
            log.info("%s can be read again", self.name)
        self._logged_error = ""
        self._failures = 0

    def _on_interrupted(self, error: ApiResponseInterrupted) -> float:
        """Load balancers end long connections: that is a failure only if it happens repeatedly."""
        if self._clock.elapsed() - self._watch_started >= _HEALTHY_WATCH_SECONDS:
            self._failures = 0
        if self._failures:
            return self._fail(str(error))
        self._failures = 1
        log.debug("%s: %s", self.name, error)
        return self._pause()

    def _on_expired(self) -> float:
        log.debug("%s: the watch has expired, listing again", self.name)
        self._version = ""
        self._failures += 1
        return self._pause()

    def _fail(self, error: str) -> float:
        if self._stopping:
            return 0.0
        if error != self._logged_error:
            self._logged_error = error
            log.warning("%s: %s", self.name, error)
        self._failed(error)
        return self._pause()

    def _pause(self) -> float:
        longest = min(_MIN_PAUSE * (1 << min(self._failures - 1, 10)), self.max_pause)
        return longest * self._random.uniform(0.5, 1.0)
