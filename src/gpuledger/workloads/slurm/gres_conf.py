"""Parses gres.conf, which defines what the numbers in SLURM_JOB_GPUS count.

slurmd numbers the GPUs of its node in the order of an internal list. With AutoDetect=nvml, rsmi or oneapi
that is the order of the driver library, with AutoDetect=nvidia that of the names of the device files, and
without AutoDetect that of the types in slurm.conf, then of the lines and files in gres.conf. If gres.conf has
files, the list has only their GPUs. Slurm up to 20.11 wrote the number in the name of the device file, which
is the same if gres.conf lists all files from /dev/nvidia0 on, in this order. Source: src/interfaces/gres.c
and src/plugins/gres of Slurm 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from gpuledger.model.devices import AMD, INTEL

# Makers by the value of AutoDetect: ROCm SMI, and oneAPI Level Zero.
_DETECTED: Final = {"rsmi": AMD, "oneapi": INTEL}
_WORD: Final = re.compile(r'\b(\w++)\s*+=\s*("[^"]*"|\S+)')
_BRACKETS: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_GRES: Final = re.compile(r"(\w+)(?::([^:,()]+))??(?::(\d{1,9}))?(?:\(.*\))?", re.ASCII)
_MAX_BRACKETS = 8
# A longer range is a mistake, and would take memory.
_MAX_RANGE = 4096
# Several ranges in one name multiply.
_MAX_NAMES = 65_536
# In characters; no real list of devices or nodes, and no real name, is longer.
_MAX_LIST_LENGTH, _MAX_NAME_LENGTH = 8192, 255


@dataclass(frozen=True)
class GpuNumbering:
    """The meaning of GPU number n: the n-th GPU by the order of the driver if `by_driver`, minor n if
    `by_minor`, else the n-th of `files`, else unknown.

    Each element of `files` holds the device files of one GPU or of one MIG Instance; the order of the driver
    counts only these GPUs, if there are any. `vendor` is the maker of the GPUs that AutoDetect found by
    another library than NVIDIA's.
    """

    by_driver: bool = False
    by_minor: bool = False
    files: tuple[tuple[str, ...], ...] = ()
    vendor: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the numbers have a meaning."""
        return self.by_driver or self.by_minor or bool(self.files)


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


class NodeGres(NamedTuple):
    """What slurm.conf says that a node has: `gpu:a100:4`. The type is empty if it has none."""

    name: str
    type: str
    number: int


def node_gres(lines: Iterable[dict[str, str]], node: str) -> list[NodeGres]:
    """The gres of the node in the lines of slurm.conf, in that order."""
    text = default = ""
    for line in lines:
        names = expand_hostlist(line.get("nodename", ""))
        if "DEFAULT" in names:
            default = line.get("gres", default)
        elif node in names:
            text = line.get("gres", default)
    matches = map(_GRES.fullmatch, text.split(","))
    return [NodeGres(one[1].lower(), one[2] or "", int(one[3] or 1)) for one in matches if one]


def gpu_numbering(
    lines: Iterable[dict[str, str]], node: str, configured: Sequence[NodeGres] = ()
) -> GpuNumbering:
    """The GPU numbering on the node with this name. A line for the node overrides a line for all nodes.

    `lines` are those of gres.conf, `configured` is what slurm.conf says that the node has.
    """
    mine = gres_lines_of(lines, node)
    detected = next((line["autodetect"].lower() for line in reversed(mine) if "autodetect" in line), "off")
    of_gpus = [line for line in mine if line.get("name", "").lower() == "gpu"]
    if detected == "off":
        return GpuNumbering(files=tuple(_in_order(of_gpus, configured)))
    groups = [tuple(_files(line)) for line in of_gpus]
    # A line without files is for any GPU that was detected.
    files = (file for group in groups for file in group) if all(groups) else ()
    listed = tuple(sorted(files, key=_natural))
    if detected == "nvidia":
        return GpuNumbering(by_minor=not listed, files=listed)
    return GpuNumbering(by_driver=True, files=listed, vendor=_DETECTED.get(detected, ""))


def _in_order(lines: Iterable[dict[str, str]], configured: Iterable[NodeGres]) -> list[tuple[str, ...]]:
    """The files of these lines as slurmd orders them: each entry of slurm.conf takes those of its type."""
    remaining = [(line.get("type", "").lower(), list(_files(line))) for line in lines]
    everything = [file for _, files in remaining for file in files]
    found = []
    for entry in configured:
        count = entry.number if entry.name == "gpu" else 0
        for type_, files in remaining:
            if count and files and entry.type.lower() in ("", type_):
                found += files[:count]
                count -= min(count, len(files))
                files.clear()
    return found or everything


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
