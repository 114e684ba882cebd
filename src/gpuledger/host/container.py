"""Finds out whether this program runs in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.host.files import read_text

_IN_CGROUP: Final = (
    ("Kubernetes", "kubepods"),
    ("Docker", "docker"),
    ("Podman", "libpod"),
    ("LXC", "lxc"),
    ("systemd-nspawn", "machine.slice"),
)


def find_container(root: Path | str, procfs: Path | str, environment: Mapping[str, str]) -> str:
    """The kind of container, and the evidence for it; empty outside containers.

    `root` is the root of this program's filesystem, `environment` its variables.
    """
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "Kubernetes, by KUBERNETES_SERVICE_HOST"
    for name, kind in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if Path(root, name).exists():
            return f"{kind}, by /{name}"
    manager = environment.get("container")
    if manager:
        return f"{manager}, by the variable container"
    kind = read_text(f"{root}/run/systemd/container").strip()
    if kind:
        return f"{kind}, by /run/systemd/container"
    own = read_text(f"{procfs}/self/cgroup")
    for kind, word in _IN_CGROUP:
        if re.search(rf"/{re.escape(word)}[-./]", own):
            return f"{kind}, by /proc/self/cgroup"
    return ""
