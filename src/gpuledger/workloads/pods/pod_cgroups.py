"""PodCgroups: which pods still have a cgroup. The kubelet removes it when a pod ends, but lists the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


class PodCgroups:
    """Whether a pod has a cgroup below `root` (/sys/fs/cgroup).

    `refresh` reads the tree, outside the tick. Calling the object only uses memory, so the tick may do it.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = str(root)
        self._clock = clock
        self._found: frozenset[str] | None = None
        # The tree that `_missing_since` belongs to, and since when each queried pod has no cgroup: with the
        # current tree, and with the one before.
        self._queried_tree: frozenset[str] | None = None
        self._missing_before: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}

    def refresh(self) -> None:
        """Read the cgroup tree. Never raises."""
        self._found = pod_uids_with_cgroup(self._root)

    def __call__(self, uid: str) -> bool | None:
        """Whether the pod has a cgroup; None if no tree is visible, or the cgroup may still be created."""
        found = self._found
        if found is not self._queried_tree:
            # Pods that were not queried between two refreshes are dropped.
            self._queried_tree, self._missing_before, self._missing_since = found, self._missing_since, {}
        if found is None:
            return None
        if uid in found:
            return True
        now = self._clock.elapsed()
        since = self._missing_since.setdefault(uid, self._missing_before.get(uid, now))
        return False if now - since >= _CREATION_SECONDS else None


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
