"""What the kubelet wrote down of its device plugins: read where its socket is not to be reached.

It tells UIDs of pods, not names, and nothing of what DRA handed out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpuledger.host.files import read_at_most
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.workloads.pod_resources.grants import CHECKPOINT, Grant, PodResources

_LONGEST: Final = 64 * 1024 * 1024


def read_checkpoint(path: Path) -> PodResources:
    """The grants in `kubelet_internal_checkpoint`. Raises GpuledgerError with one line.

    Its checksum is of Go's own printing of the value, and is not checked: a file that was half written is no
    JSON.
    """
    try:
        content = read_at_most(path, _LONGEST)
    except FileNotFoundError:
        raise GpuledgerError(
            f"no checkpoint at {path}; mount the node's /var/lib/kubelet/device-plugins"
        ) from None
    except PermissionError as error:
        raise GpuledgerError(f"{path} is not readable: {error.strerror}; run as root") from None
    except OSError as error:
        why = f"{path} is not readable: {error.strerror}"
        raise GpuledgerError(f"{why}; see that it is the kubelet's") from None
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        raise GpuledgerError(f"{path} is not whole JSON, half written perhaps; it is read again") from None
    data = told.get("Data") if isinstance(told, dict) else None
    if not isinstance(data, dict) or "PodDeviceEntries" not in data:
        raise GpuledgerError(f"{path} is no checkpoint of device plugins; name the kubelet's")
    # Go writes an empty list as null.
    entries = data["PodDeviceEntries"] or []
    if not isinstance(entries, list):
        raise GpuledgerError(f"{path} has PodDeviceEntries that are no list; name the kubelet's")
    return PodResources(tuple(grant for entry in entries for grant in _grants(entry)), found_by=CHECKPOINT)


def _grants(entry: object) -> Iterator[Grant]:
    if not isinstance(entry, dict):
        return
    uid, container, resource = (_text(entry.get(key)) for key in ("PodUID", "ContainerName", "ResourceName"))
    if not uid or not resource:
        return
    for device in dict.fromkeys(_ids(entry.get("DeviceIDs"))):
        yield Grant(container=container, resource=resource, device_id=device, pod_uid=uid)


def _ids(told: Any) -> Iterator[str]:
    """Ids by NUMA node; before Kubernetes 1.20 one list."""
    parts = told.values() if isinstance(told, dict) else (told,)
    for part in parts:
        for one in part if isinstance(part, list) else ():
            if name := _text(one):
                yield name


def _text(value: object) -> str:
    return clean_name(value, 253) if isinstance(value, str) else ""
