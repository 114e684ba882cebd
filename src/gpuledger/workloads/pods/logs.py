"""The pods of this node by the names of their log files: no permission and no server is needed for it.

The kubelet writes `pods/NAMESPACE_NAME_UID/CONTAINER/N.log`, and to each such file it makes a link
`containers/NAME_NAMESPACE_CONTAINER-ID.log`. Nothing in the files is read, and no link is followed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.host.background import OwnerIndex, PolledIndex, is_tried
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name
from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods
from gpuledger.workloads.pods.watch import PodWatch

# No name of Kubernetes has an underscore: whatever has another number of them is not the kubelet's.
_POD: Final = re.compile(r"(?P<namespace>[^_/]+)_(?P<name>[^_/]+)_(?P<uid>[^_/]+)")
_LINK: Final = re.compile(
    r"(?P<name>[^_/]+)_(?P<namespace>[^_/]+)_(?P<container>[^_/]+)-(?P<id>[0-9a-f]{12,64})\.log"
)
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_PERIOD: Final = 10.0

# Names of containers by id, under the directory of their pod.
_Links = dict[str, dict[str, str]]


def pod_logs(root: Path, *, clock: Clock, needed: Callable[[], bool] = lambda: True) -> PolledIndex[Pods]:
    """The map of what `read_pod_logs` says of `root`, not begun; of no pods while it is not needed."""

    def read() -> Pods:
        return read_pod_logs(root) if needed() else NO_PODS

    return PolledIndex("pod_logs", read, NO_PODS, period=_PERIOD, clock=clock)


def read_pod_logs(root: Path) -> Pods:
    """The pods under `root` (/var/log); raises GpuledgerError when they cannot be listed.

    Phase, labels and controller are unknown here. The kubelet takes a container's link away with the
    container, and the pod's directory later: a pod that has directories of containers and no link is told as
    finished. Where there is no link at all they are not made here, and nothing is told as finished.
    """
    folders = _folders(root / "pods")
    links, loose = _links(root / "containers")
    for (namespace, name), containers in loose.items():
        # A link that does not name its pod's directory: the newest pod of that name has it.
        for folder in reversed(folders):
            if folder.startswith(f"{namespace}_{name}_"):
                links.setdefault(folder, {}).update(containers)
                break
    return Pods(_pod(root / "pods", folder, links) for folder in folders)


def _pod(parent: Path, folder: str, links: _Links) -> Pod:
    said = _POD.fullmatch(folder)
    assert said is not None
    containers = links.get(folder, {})
    uid = said["uid"]
    return Pod(
        uid=clean_name(uid),
        namespace=clean_name(said["namespace"], 253),
        name=clean_name(said["name"], 253),
        containers=containers,
        # A static pod's directory bears the hash of its file, as its cgroup does.
        hash=uid if _HASH.fullmatch(uid) else "",
        finished=bool(links) and not containers and _has_container(parent / folder),
    )


def _folders(parent: Path) -> list[str]:
    """Names of the pods' directories, the oldest first."""
    try:
        with os.scandir(parent) as entries:
            found = [(_changed(entry), entry.name) for entry in entries if _POD.fullmatch(entry.name)]
    except OSError as error:
        raise GpuledgerError(
            f"{parent} cannot be read ({error.strerror}); mount the node's /var/log there (hostPath, "
            "read-only), or name it with --pod-logs"
        ) from None
    return [name for _, name in sorted(found)]


def _changed(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _has_container(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.is_dir(follow_symlinks=False) for entry in entries)
    except OSError:
        return False


def _links(parent: Path) -> tuple[_Links, dict[tuple[str, str], dict[str, str]]]:
    """Container names by the pod's directory that the link leads into; by namespace and name where none."""
    placed: _Links = defaultdict(dict)
    loose: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for entry, said in _entries(parent):
        folder = _folder_of(entry)
        into = placed[folder] if folder else loose[said["namespace"], said["name"]]
        into[said["id"]] = clean_name(said["container"])
    return dict(placed), loose


def _entries(parent: Path) -> Iterator[tuple[str, re.Match[str]]]:
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                if said := _LINK.fullmatch(entry.name):
                    yield entry.path, said
    except OSError:
        # Without the links pods have names still, and containers have none.
        return


def _folder_of(link: str) -> str:
    """The pod's directory in the text of the link, wherever the node's /var/log is mounted here."""
    try:
        parts = Path(link).readlink().parts
    except OSError:
        return ""
    folder = parts[-3] if len(parts) >= 3 else ""
    return folder if _POD.fullmatch(folder) else ""


class PodNames:
    """The pods out of one or two `maps`, or none.

    What the API server said stands for as long as it is told; only for pods that it did not tell while it
    fails are the log files asked.
    """

    def __init__(self, watch: PodWatch | None = None, logs: PolledIndex[Pods] | None = None) -> None:
        self._watch = watch
        self._logs = logs
        self.maps: tuple[OwnerIndex, ...] = tuple(one for one in (watch, logs) if one is not None)
        self._joined: tuple[Pods, Pods, Pods] = (NO_PODS, NO_PODS, NO_PODS)

    @property
    def value(self) -> Pods:
        """The pods known now: the same object for as long as nothing has changed."""
        if self._watch is None or self._logs is None:
            only = self._watch or self._logs
            return only.value if only is not None else NO_PODS
        told, files = self._watch.value, self._logs.value
        if self._watch.health.success or not len(files):
            return told
        if self._joined[0] is not told or self._joined[1] is not files:
            self._joined = (told, files, told.backed_by(files))
        return self._joined[2]


def spare_logs(watch: PodWatch, root: Path, *, clock: Clock) -> PolledIndex[Pods]:
    """The map of the log files that reads them only while the watch fails."""

    def failing() -> bool:
        health = watch.health
        return is_tried(health) and not health.success

    return pod_logs(root, clock=clock, needed=failing)
