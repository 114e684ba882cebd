"""Pods of this node by the names of their log files; needs no API server and no permission there.

The kubelet writes `pods/NAMESPACE_NAME_UID/CONTAINER/N.log` and links to each file with
`containers/NAME_NAMESPACE_CONTAINER-ID.log`. Files are not read and links are not followed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuledger.host.files import folder_names
from gpuledger.host.owner_index import BackgroundIndex, PolledIndex, is_tried
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name
from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods
from gpuledger.workloads.pods.pod_watch import PodWatch

# Kubernetes names have no underscores: a directory with another number of them is not from the kubelet.
_POD: Final = re.compile(r"(?P<namespace>[^_/]+)_(?P<name>[^_/]+)_(?P<uid>[^_/]+)")
_LINK: Final = re.compile(
    r"(?P<name>[^_/]+)_(?P<namespace>[^_/]+)_(?P<container>[^_/]+)-(?P<id>[0-9a-f]{12,64})\.log"
)
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_PERIOD: Final = 10.0

# Container names by id, by the directory of their pod.
_Links = dict[str, dict[str, str]]


def open_pod_log_index(root: Path, instead_of: PodWatch | None = None, *, clock: Clock) -> PolledIndex[Pods]:
    """The index of `read_pod_logs(root)`, not started.

    With `instead_of` it reads the log files only while this watch fails, and else is empty.
    """

    def read() -> Pods:
        health = None if instead_of is None else instead_of.health
        failing = health is None or (is_tried(health) and not health.success)
        return read_pod_logs(root) if failing else NO_PODS

    return PolledIndex("pod_logs", read, NO_PODS, period=_PERIOD, clock=clock)


def read_pod_logs(root: Path) -> Pods:
    """The pods under `root` (/var/log). Raises GpuledgerError if they cannot be listed.

    Phase, labels and controller are unknown. The kubelet removes the link of a container with the container,
    and the directory of the pod later: a pod with container directories and no link is `finished`. If there
    are no links at all, this node does not create them, and no pod is `finished`.
    """
    folders = _folders(root / "pods")
    links, unplaced = _links(root / "containers")
    for (namespace, name), containers in unplaced.items():
        # The link does not lead to a pod directory: assign it to the newest pod with that name.
        named = [folder[0] for folder in folders if folder.group("namespace", "name") == (namespace, name)]
        if named:
            links.setdefault(named[-1], {}).update(containers)
    return Pods(_pod(root / "pods", folder, links) for folder in folders)


def _pod(parent: Path, match: re.Match[str], links: _Links) -> Pod:
    containers = links.get(match[0], {})
    uid = match["uid"]
    return Pod(
        uid=clean_name(uid),
        namespace=clean_name(match["namespace"], 253),
        name=clean_name(match["name"], 253),
        containers=containers,
        # The directory of a static pod has the hash of its manifest, like its cgroup.
        hash=uid if _HASH.fullmatch(uid) else "",
        finished=bool(links) and not containers and bool(folder_names(str(parent / match[0]))),
    )


def _folders(parent: Path) -> list[re.Match[str]]:
    """The names of the pod directories, oldest first."""
    try:
        with os.scandir(parent) as entries:
            found = [(_modified(entry), entry.name) for entry in entries]
    except OSError as error:
        raise GpuledgerError(
            f"{parent} cannot be read ({error.strerror}); mount the node's /var/log there (hostPath, "
            "read-only), or set its path with --pod-logs"
        ) from None
    return [match for _, name in sorted(found) if (match := _POD.fullmatch(name))]


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _links(parent: Path) -> tuple[_Links, dict[tuple[str, str], dict[str, str]]]:
    """Container names by the pod directory of their link; by namespace and pod name if it has none."""
    placed: _Links = defaultdict(dict)
    unplaced: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for link, match in _entries(parent):
        folder = _folder_of(link)
        containers = placed[folder] if folder else unplaced[match["namespace"], match["name"]]
        containers[match["id"]] = clean_name(match["container"])
    return dict(placed), unplaced


def _entries(parent: Path) -> Iterator[tuple[str, re.Match[str]]]:
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                if match := _LINK.fullmatch(entry.name):
                    yield entry.path, match
    except OSError:
        # Without links, pods still have names, but containers do not.
        return


def _folder_of(link: str) -> str:
    """The name of the pod directory in the target of the link, wherever /var/log is mounted here."""
    try:
        parts = Path(link).readlink().parts
    except OSError:
        return ""
    folder = parts[-3] if len(parts) >= 3 else ""
    return folder if _POD.fullmatch(folder) else ""


class PodIndexes:
    """The known pods, from the API server, the log files, both or neither.

    With both, the API server's pods come first. The log files add further pods only while the watch fails.
    """

    def __init__(self, watch: PodWatch | None = None, logs: PolledIndex[Pods] | None = None) -> None:
        self._watch = watch
        self._logs = logs
        self.indexes: tuple[BackgroundIndex, ...] = tuple(
            index for index in (watch, logs) if index is not None
        )
        self._joined: tuple[Pods, Pods, Pods] = (NO_PODS, NO_PODS, NO_PODS)

    @property
    def value(self) -> Pods:
        """The pods known now; the same object while nothing changes."""
        if self._watch is None or self._logs is None:
            only = self._watch or self._logs
            return only.value if only is not None else NO_PODS
        watched, logged = self._watch.value, self._logs.value
        if self._watch.health.success or not len(logged):
            return watched
        if self._joined[0] is not watched or self._joined[1] is not logged:
            self._joined = (watched, logged, watched.with_fallback(logged))
        return self._joined[2]
