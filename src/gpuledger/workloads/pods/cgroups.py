"""Which pods still have a cgroup: the kubelet removes it when a pod ends, yet goes on listing the pod."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.source import Clock
from gpuledger.workloads.cgroup import FORMS

_PODS: Final = tuple(form.compiled() for form in FORMS if form.scope == "pod")
# What the kubelet's drivers, and kind, put between a hierarchy's root and the pods.
_ABOVE_PODS: Final = re.compile(
    r"kubelet(?:\.slice)?|(?:kubelet-)?kubepods(?:-\w+)?(?:\.slice)?|burstable|besteffort"
)
# A pod is handed its devices before its cgroup is made; in seconds, more than that takes.
_BEING_MADE: Final = 30.0


class PodCgroups:
    """Whether a pod has a cgroup below `root` (/sys/fs/cgroup), from memory.

    `look` is called beside the tick, the answers are given in it.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = str(root)
        self._clock = clock
        self._found: frozenset[str] | None = None
        # The look that the two rest on: since when each pod has none, as asked before it and since.
        self._look: frozenset[str] | None = None
        self._before: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def look(self) -> None:
        """Read the tree again. Never raises."""
        self._found = pods_with_cgroup(self._root)

    def __call__(self, uid: str) -> bool | None:
        """Whether the pod of this UID has one; None where that cannot be seen, or it may be being made."""
        found = self._found
        if found is not self._look:
            # Who is not asked for between two looks is forgotten.
            self._look, self._before, self._since = found, self._since, {}
        if found is None:
            return None
        if uid in found:
            return True
        now = self._clock.elapsed()
        since = self._since.setdefault(uid, self._before.get(uid, now))
        return False if now - since >= _BEING_MADE else None


def pods_with_cgroup(root: str) -> frozenset[str] | None:
    """UIDs (of static pods: hashes) of the pods with a cgroup in cgroup v1, v2 or hybrid at `root`.

    None where no cgroup of pods is to be seen: on other machines, and in a container that sees only its own.
    """
    tops = [root, *(f"{root}/{name}" for name in _folders(root) if not _ABOVE_PODS.fullmatch(name))]
    found = [uid for top in tops for uid in _below(top)]
    return frozenset(uid for uid in found if uid) if found else None


def _below(parent: str) -> Iterator[str]:
    """UIDs of the pods below a folder; an empty one for each folder that is there for pods."""
    for name in _folders(parent):
        if uid := _uid(name):
            yield uid
        elif _ABOVE_PODS.fullmatch(name):
            if "kubepods" in name:
                yield ""
            yield from _below(f"{parent}/{name}")


def _uid(name: str) -> str:
    match = next(filter(None, (form.match(name) for form in _PODS)), None)
    return match["pod_uid"].replace("_", "-") if match else ""


def _folders(parent: str) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
