"""`nvidia-smi -L`: the index of each GPU, and the UUIDs and profiles of its MIG devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from re import compile as pattern

_GPU = pattern(r"GPU\s+([0-9]{1,5}):.*\(UUID:\s*([^\s()]+)\)\s*")
# So long a line is nobody's, and takes the patterns long.
_LONGEST = 1000
_MIG = pattern(r"\s+MIG\s+(\S.*?)\s+Device\s+([0-9]{1,5}):\s*\(UUID:\s*(MIG-[^\s()]+)\)\s*")


@dataclass(slots=True)
class Listing:
    """Index by GPU UUID; `(UUID, profile)` of a MIG device by `(GPU UUID, MIG device index)`."""

    indexes: dict[str, int] = field(default_factory=dict)
    parts: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)


def parse_listing(text: str) -> Listing:
    """What the list holds; a line that is not whole is left out, with the MIG lines that follow a GPU's."""
    listing = Listing()
    gpu = ""
    for line in text.split("\n"):
        if len(line) > _LONGEST:
            gpu = ""
        elif found := _GPU.fullmatch(line):
            gpu = found[2]
            listing.indexes[gpu] = int(found[1])
        elif (found := _MIG.fullmatch(line)) and gpu:
            listing.parts[gpu, int(found[2])] = (found[3], found[1])
        elif not line.startswith(" "):
            gpu = ""
    return listing
