"""Keys that several configuration files have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.settings import choice
from gpuledger.outputs.nodes import Node

TLS_VERSIONS: Final = {"TLS12": 12, "TLS13": 13}


def one_of(keys: Mapping[str, Node], *names: str) -> str | None:
    """The one of these keys that is given, None for none. Raises UsageError for two."""
    given = [name for name in names if not keys[name].absent]
    if len(given) > 1:
        raise keys[given[1]].wrong(f"is given together with {given[0]}; one of them is wanted")
    return given[0] if given else None


def path_of(node: Node, folder: Path) -> Path:
    """A path, relative to `folder` where it is not absolute. Raises UsageError for what is none."""
    if not node.text().isprintable():
        raise node.wrong("a path is wanted")
    return folder / node.text()


def tls_versions(keys: Mapping[str, Node]) -> tuple[int, int]:
    """`min_version` and `max_version` as 12 or 13. Raises UsageError."""
    low = TLS_VERSIONS[keys["min_version"].parsed(choice(*TLS_VERSIONS), "TLS12")]
    high = TLS_VERSIONS[keys["max_version"].parsed(choice(*TLS_VERSIONS), "TLS13")]
    if low > high:
        raise keys["max_version"].wrong("is below min_version")
    return low, high
