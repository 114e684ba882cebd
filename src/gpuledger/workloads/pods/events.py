"""The events of a watch (meta/v1 WatchEvent), read out of its lines: pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.fields import mapping
from gpuledger.workloads.pods.stream import NotJson

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
