"""Ids and expected owners for the tables of cgroup forms."""

from __future__ import annotations

from typing import Any

UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
SNAKE = UID.replace("-", "_")
UID2 = "a8f5f167-f44f-4964-b6c9-98f2a5d3e901"
STATIC = "8d3b1f0e9c7a6b5d4e3f2a1b0c9d8e7f"
ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
ID2 = "66d6d4ac9851cfcab8400277ad96770ce52c1d75eeac29046753875056eacaed"
SHORT = ID[:12]
KUBE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
USER = "/user.slice/user-1000.slice"

# Text of /proc/PID/cgroup (a path alone is the single line of cgroup v2), expected owner, where it occurs.
Row = tuple[str, dict[str, Any], str]


def pod(uid: str = UID, container: str = ID, runtime: str = "", **more: Any) -> dict[str, Any]:
    return {
        "kind": "pod",
        "pod_uid": uid,
        "container_id": container,
        "runtime": runtime,
        "missing": "pod_name",
        **more,
    }


def container(container: str = ID, runtime: str = "", **more: Any) -> dict[str, Any]:
    return {
        "kind": "container",
        "container_id": container,
        "runtime": runtime,
        "missing": "container_name",
        **more,
    }


def named_container(name: str, runtime: str, **more: Any) -> dict[str, Any]:
    return {"kind": "container", "container": name, "runtime": runtime, **more}


def job(number: str, step: str = "", uid: int | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "slurm", "job": number, "step": step, "uid": uid, **more}


def batch(number: str, runtime: str, **more: Any) -> dict[str, Any]:
    return {"kind": "job", "job": number, "runtime": runtime, **more}


def user(uid: int, unit: str = "") -> dict[str, Any]:
    return {"kind": "user", "uid": uid, "unit": unit}


def unit(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "unit", "unit": name, **more}


def unknown(missing: str) -> dict[str, Any]:
    return {"kind": "unknown", "missing": missing}
