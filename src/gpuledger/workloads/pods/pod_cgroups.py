"""PodCgroups: which pods still have a cgroup. The kubelet removes it when a pod ends, but lists the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Final

from gpuledger.host.files import folder_names
from gpuledger.model.source import Clock
from gpuledger.workloads.cgroup import CGROUP_FORMS

_PODS: Final = tuple(form.compiled() for form in CGROUP_FORMS if form.scope == "pod")
# Directories of the kubelet's cgroup drivers, and of kind, between the root of a hierarchy and the pods.
_ABOVE_PODS: Final = re.compile(
    r"kubelet(?:\.slice)?|(?:kubelet-)?kubepods(?:-\w+)?(?:\.slice)?|burstable|besteffort"
)
# Seconds. The kubelet allocates devices before it creates the cgroup of a pod; that takes less than this.
_CREATION_SECONDS: Final = 30.0
# Seconds. A cgroup that was there and is missing was removed, unless one read of the tree was incomplete:
# longer than between two ticks, shorter than between two reads.
_REMOVAL_SECONDS: Final = 8.0


class PodCgroups:
    """Whether a pod has a cgroup below `root` (/sys/fs/cgroup).

    `refresh` reads the tree, outside the tick. Calling the object only uses memory, so the tick may do it.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = str(root)
        self._clock = clock
        self._found: frozenset[str] | None = None
        # The read that `_ends` belongs to, and from when on each queried pod has ended, infinity for one with
        # a cgroup: with the current tree, and with the one before.
        self._reads = self._queried_read = 0
        self._ends_before: dict[str, float] = {}
        self._ends: dict[str, float] = {}

    def refresh(self) -> None:
        """Read the cgroup tree. Never raises."""
        self._found = pod_uids_with_cgroup(self._root)
        self._reads += 1

    def __call__(self, uid: str) -> bool | None:
        """Whether the pod has a cgroup; None if no tree is visible, or that is not yet certain."""
        found = self._found
        if self._reads != self._queried_read:
            # Pods that were not queried between two refreshes are dropped.
            self._queried_read, self._ends_before, self._ends = self._reads, self._ends, {}
        if found is None:
            return None
        if uid in found:
            self._ends[uid] = inf
            return True
        now = self._clock.elapsed()
        if uid not in self._ends:
            ends = self._ends_before.get(uid, now + _CREATION_SECONDS)
            self._ends[uid] = now + _REMOVAL_SECONDS if ends == inf else ends
        # One read that lacks a cgroup can be incomplete: another must lack it, too.
        return False if now >= self._ends[uid] and self._ends_before.get(uid) != inf else None


def pod_uids_with_cgroup(root: str) -> frozenset[str] | None:
    """UIDs (static pods: hashes) of the pods with a cgroup below `root`, in cgroup v1, v2 and hybrid layouts.

    None if no pod cgroups are visible: on machines without Kubernetes, and in a container that sees only its
    own cgroup.
    """
    tops = [root, *(f"{root}/{name}" for name in folder_names(root) if not _ABOVE_PODS.fullmatch(name))]
    found = [uid for top in tops for uid in _pod_uids_below(top)]
    return frozenset(uid for uid in found if uid) if found else None


def _pod_uids_below(parent: str) -> Iterator[str]:
    """UIDs of the pods below a directory, and an empty text for each directory that can hold pods."""
    for name in folder_names(parent):
        if uid := _uid(name):
            yield uid
        elif _ABOVE_PODS.fullmatch(name):
            if "kubepods" in name:
                yield ""
            yield from _pod_uids_below(f"{parent}/{name}")


def _uid(name: str) -> str:
    match = next(filter(None, (form.match(name) for form in _PODS)), None)
    return match["pod_uid"].replace("_", "-") if match else ""
