"""The owner of a process, as far as it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import (
    BETTER_NAMES,
    STORED_FIELDS,
    UNKNOWN,
    Workload,
    best_known,
    is_same_owner,
)

# Seconds to wait for a pod's name, which can arrive after its process; then the owner is exported as unknown.
OWNER_TIMEOUT = 30.0


@dataclass(slots=True)
class Ownership:
    """The owner of one process, frozen once known. `owner` is None while its name is pending.

    `process` is as last named. `shown` is the process that provides the exported labels, frozen together with
    the owner. `waiting` holds millijoules by method that no series has yet; `methods` are those with a
    series. `changed` marks changes that are not stored, `stored` that the store has a row. Once frozen,
    `labels` are those of the exported row and `owner_labels` those of the owner's series, by method.
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

    def update(self, process: GpuProcess, now: float) -> bool:
        """Apply the latest owner lookup; return True if the owner became known or better known."""
        self.process = process
        if self._has_better_name(process.workload):
            return self._freeze(process.workload)
        if self.resolved:
            return False
        if not process.workload.missing:
            self.resolved = True
            return self._freeze(process.workload)
        is_known = process.workload.missing in BETTER_NAMES
        if self.owner is None and (is_known or now - self.since >= OWNER_TIMEOUT):
            return self.freeze_best_known()
        return False

    def _has_better_name(self, found: Workload) -> bool:
        """Whether a lookup found the frozen owner with a better name.

        That is the name of its user in place of a number, or the number of its job in place of a SLUID.
        """
        owner = self.owner
        if owner is None or owner is found or owner.unit != found.unit or not is_same_owner(owner, found):
            return False
        if owner.job != found.job:
            return owner.has_sluid and found.job.isdigit()
        return owner.user.isdigit() and bool(found.user) and not found.user.isdigit()

    def freeze_best_known(self) -> bool:
        """Freeze the known part of the owner: a user or a container's short id counts, a pod UID does not."""
        return self._freeze(best_known(self.process.workload))

    def _freeze(self, owner: Workload) -> bool:
        self.owner, self.shown = owner, self.process
        self.methods = set()
        self.labels = None
        self.owner_labels.clear()
        self.changed = True
        return True


def owner_fields(owner: Workload) -> dict[str, object]:
    """The known fields of an owner by name."""
    return {
        name: value for name in STORED_FIELDS if (value := getattr(owner, name)) != getattr(UNKNOWN, name)
    }


def owner_from_fields(values: Mapping[str, Any]) -> Workload:
    """The inverse of `owner_fields`, also after JSON, which turns tuples into lists."""
    if not values:
        return UNKNOWN
    labels = tuple((name, value) for name, value in values.get("labels", ()))
    return Workload(**{**values, "labels": labels})
