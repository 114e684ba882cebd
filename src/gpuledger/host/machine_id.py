"""Identity of this machine, for GPUs that have none."""

from __future__ import annotations

import re
from typing import Final

from gpuledger.host.files import ReadFile, read_or_none, read_whole
from gpuledger.model.hashing import blake2b
from gpuledger.model.text import decode_utf8

_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")
_NOBODY: Final = "0" * 32
_DIGITS: Final = 12
# Makes the digest another one than those of other programs.
_PURPOSE: Final = b"gpuledger"


def machine_digest(node: str, read: ReadFile = read_whole, path: str = "/etc/machine-id") -> str:
    """12 hexadecimal digits that differ between machines and do not change; empty if nothing names this one.

    Made of the name of the Kubernetes `node` if there is one: the file of a container is that of its image,
    if it has one. Else of the machine id, which others must not see unhashed (machine-id(5)).
    """
    found = decode_utf8(read_or_none(path, read) or b"").strip().lower()
    name = node or (found if _MACHINE_ID.fullmatch(found) and found != _NOBODY else "")
    if not name:
        return ""
    return blake2b(name.encode(), person=_PURPOSE, digest_size=_DIGITS // 2).hexdigest()
