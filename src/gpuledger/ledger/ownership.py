"""Who a process belongs to, as far as it is known by now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import AWAITED, UNKNOWN, Workload

# A pod's name can come some seconds after its process; who is not known by then is told as unknown.
PATIENCE = 30.0


def not_less(before: Workload, now: Workload) -> Workload:
    """The newest answer, without what it has forgotten: a pod that is deleted before its process is gone, and
    a map that begins anew, take no name away.
    """
    if before.kind in ("unknown", "user") or before.missing in AWAITED:
        return now
    if now.kind in ("unknown", "user") or (now.missing in AWAITED and _same(before, now)):
        return before
    if not _same(before, now):
        return now
    lost = {
        name: getattr(before, name)
        for name in ("namespace", "pod", "container", "labels", "controller_kind", "controller")
        if getattr(before, name) and not getattr(now, name)
    }
    return replace(now, **lost) if lost else now


def _same(one: Workload, other: Workload) -> bool:
    return one.kind == other.kind and one.pod_uid == other.pod_uid and one.container_id == other.container_id


@dataclass(slots=True)
class Ownership:
    """One process's owner, frozen once known. `owner` is None while waiting for a name.

    `process` is as last named; `shown` is the one whose labels are told, frozen together with the owner.
    `waiting` holds millijoules by method that no series has yet; `methods` are those that have one.
    `changed` says that the store has not been told, `stored` that it was once. Once frozen, `labels` are the
    told row's and `owner_labels` those of the owner's series by method.
    """

    process: GpuProcess
    since: float
    owner: Workload | None = None
    shown: GpuProcess | None = None
    resolved: bool = False
    waiting: Counter[str] = field(default_factory=Counter)
    methods: set[str] = field(default_factory=set)
    changed: bool = True
    stored: bool = False
    labels: tuple[str, ...] | None = None
    owner_labels: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def wait(self, method: str, millijoules: int) -> None:
        """Keep joules until the owner is known."""
        self.waiting[method] += millijoules
        self.changed = True

    def add_method(self, method: str) -> None:
        """There is a series of this method."""
        if method not in self.methods:
            self.methods.add(method)
            self.changed = True

    def learn(self, process: GpuProcess, now: float) -> bool:
        """Take in the newest answer; True when the owner became known by it, or known better."""
        self.process = process
        if self.resolved:
            return False
        if not process.workload.missing:
            self.resolved = True
            return self._freeze(process.workload)
        if self.owner is None and now - self.since >= PATIENCE:
            return self._freeze(self._deepest())
        return False

    def give_up(self) -> None:
        """The process is gone: who is not known now will never be."""
        if self.owner is None:
            self._freeze(self._deepest())

    def _deepest(self) -> Workload:
        """What there is of an answer: a user without more is one, an id without its name is not."""
        found = self.process.workload
        return UNKNOWN if found.missing in AWAITED else found

    def _freeze(self, owner: Workload) -> bool:
        self.owner, self.shown = owner, self.process
        self.methods = set()
        self.labels = None
        self.owner_labels.clear()
        self.changed = True
        return True


_NAMES = tuple(item.name for item in fields(Workload))


def owner_words(owner: Workload) -> dict[str, object]:
    """Field by name, without those of which nothing is known."""
    return {name: word for name in _NAMES if (word := getattr(owner, name)) != getattr(UNKNOWN, name)}


def owner_from(words: Mapping[str, Any]) -> Workload:
    """What `owner_words` said, also after JSON, which has lists for tuples."""
    if not words:
        return UNKNOWN
    labels = tuple((name, value) for name, value in words.get("labels", ()))
    return Workload(**{**words, "labels": labels})
