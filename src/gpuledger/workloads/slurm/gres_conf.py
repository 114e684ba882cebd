"""Parses gres.conf, which defines what the numbers in SLURM_JOB_GPUS count.

slurmd numbers the GPUs of its node in the order of an internal list. With AutoDetect that is the order of the
driver library; otherwise it is the order of the device files in gres.conf. Slurm up to 20.02 wrote the number
in the name of the device file, which is the same if gres.conf lists all files from /dev/nvidia0 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gpuledger.model.devices import AMD, INTEL

# Makers by the value of AutoDetect: ROCm SMI, and oneAPI Level Zero.
_DETECTED: Final = {"rsmi": AMD, "oneapi": INTEL}
_WORD: Final = re.compile(r'\b(\w++)\s*+=\s*("[^"]*"|\S+)')
_BRACKETS: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_MAX_BRACKETS = 8
# A longer range is a mistake, and would take memory.
_MAX_RANGE = 4096
# Several ranges in one name multiply.
_MAX_NAMES = 65_536
# In characters; no real list of devices or nodes, and no real name, is longer.
_MAX_LIST_LENGTH, _MAX_NAME_LENGTH = 8192, 255


@dataclass(frozen=True)
class GpuNumbering:
    """The meaning of GPU number n: driver index n if `by_driver`, else the n-th of `files`, else unknown.

    `vendor` is the maker of the GPUs that AutoDetect found by another library than NVIDIA's.

    Each element of `files` holds the device files of one GPU or of one MIG Instance.
    """

    by_driver: bool = False
    files: tuple[tuple[str, ...], ...] = ()
    vendor: str = ""


def parse_gres_conf(text: str) -> list[dict[str, str]]:
    """The parameters of each line of a gres.conf, with names in lower case."""
    joined = re.sub(r"\\\n", " ", text)
    lines = (re.split(r"(?<!\\)#", line, maxsplit=1)[0] for line in joined.splitlines())
    parsed = ({word[1].lower(): word[2].strip('"') for word in _WORD.finditer(line)} for line in lines)
    return [line for line in parsed if line]


def gres_lines_of(lines: Iterable[dict[str, str]], node: str) -> list[dict[str, str]]:
    """The lines for the node with this name, after those for all nodes."""
    mine = [line for line in lines if "nodename" not in line or node in expand_hostlist(line["nodename"])]
    return sorted(mine, key=lambda line: "nodename" in line)


def gpu_numbering(lines: Iterable[dict[str, str]], node: str) -> GpuNumbering:
    """The GPU numbering on the node with this name. A line for the node overrides a line for all nodes."""
    mine = gres_lines_of(lines, node)
    detect = [line["autodetect"].lower() for line in mine if "autodetect" in line]
    if detect and detect[-1] != "off":
        return GpuNumbering(by_driver=True, vendor=_DETECTED.get(detect[-1], ""))
    files = [group for line in mine if line.get("name", "").lower() == "gpu" for group in _files(line)]
    return GpuNumbering(files=tuple(sorted(files, key=_natural)))


def expand_hostlist(text: str) -> list[str]:
    """Expand a Slurm hostlist: `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7 and login."""
    # Split at the commas outside brackets.
    parts = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text[:_MAX_LIST_LENGTH])
    return list(_bounded(name for part in parts for name in _expand(part, _MAX_BRACKETS)))


def _bounded(names: Iterable[str]) -> Iterator[str]:
    return (name for name in islice(names, _MAX_NAMES) if len(name) <= _MAX_NAME_LENGTH)


def _files(line: dict[str, str]) -> Iterator[tuple[str, ...]]:
    if "multiplefiles" in line:
        yield tuple(expand_hostlist(line["multiplefiles"]))
    yield from ((name,) for name in expand_hostlist(line.get("file", "")))


def _natural(group: Sequence[str]) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", group[0]) if group else []
    return [(int(piece) if piece.isdecimal() and len(piece) < 20 else -1, piece) for piece in pieces]


def _expand(part: str, depth: int) -> Iterator[str]:
    match = _BRACKETS.fullmatch(part)
    if not match or not depth:
        yield part
        return
    # Expanded once, not for each number before it. If it is empty, there are no names at all.
    rests = list(_bounded(_expand(match[3], depth - 1)))
    if not rests:
        return
    for item in match[2].split(","):
        bounds = _RANGE.fullmatch(item)
        if not bounds:
            continue
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        for number in range(first, min(last, first + _MAX_RANGE) + 1):
            head = f"{match[1]}{number:0{len(bounds[1])}d}"
            yield from (head + rest for rest in rests)
