"""What the numbers of SLURM_JOB_GPUS count, by gres.conf.

slurmd numbers the GPUs of its node in the order of its own list. With AutoDetect that is the order of the
driver's library; else the order of the device files that gres.conf names. (Slurm up to 20.02 wrote the number
in the name of the device file. Where gres.conf names all of them from /dev/nvidia0 on, that is the same.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

# As packages and `configless` slurmd have it; the first that can be read is the one.
USUAL: Final = (
    Path("/etc/slurm/gres.conf"),
    Path("/run/slurm/conf/gres.conf"),
    Path("/var/spool/slurmd/conf-cache/gres.conf"),
    Path("/var/spool/slurm/d/conf-cache/gres.conf"),
    Path("/etc/slurm-llnl/gres.conf"),
    Path("/usr/local/etc/gres.conf"),
)

_WORD: Final = re.compile(r'\b(\w++)\s*+=\s*("[^"]*"|\S+)')
_BRACKETS: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_DEEPEST = 8
# A range that is longer is a mistake, and would be ours to store.
_LONGEST_RANGE = 4096
# So are several ranges in one name, each of them multiplied by the next.
_MOST_NAMES = 65_536
# No list of devices or nodes is so long, and no name.
_LONGEST_LIST, _LONGEST_NAME = 8192, 255


@dataclass(frozen=True, slots=True)
class Numbering:
    """What number n stands for: the driver's index n, or the n-th of `files`; else it is not known.

    Each of `files` is one GPU, and for MIG has all the files of one Instance.
    """

    by_driver: bool = False
    files: tuple[tuple[str, ...], ...] = ()


UNKNOWN_NUMBERING = Numbering()


def parse_gres(text: str) -> list[dict[str, str]]:
    """The lines of a gres.conf as parameters, their names in lower case."""
    joined = re.sub(r"\\\n", " ", text)
    lines = (re.split(r"(?<!\\)#", line, maxsplit=1)[0] for line in joined.splitlines())
    parsed = ({word[1].lower(): word[2].strip('"') for word in _WORD.finditer(line)} for line in lines)
    return [line for line in parsed if line]


def numbering(lines: Iterable[dict[str, str]], node: str) -> Numbering:
    """What the numbers count on the node of this name. A line of the node's own beats one for all."""
    mine = [line for line in lines if "nodename" not in line or node in expand(line["nodename"])]
    mine.sort(key=lambda line: "nodename" in line)
    detect = [line["autodetect"].lower() for line in mine if "autodetect" in line]
    if detect and detect[-1] != "off":
        return Numbering(by_driver=True)
    files = [group for line in mine if line.get("name", "").lower() == "gpu" for group in _files(line)]
    return Numbering(files=tuple(sorted(files, key=_natural)))


def expand(text: str) -> list[str]:
    """Slurm's lists: `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7 and login."""
    names = (name for part in _parts(text[:_LONGEST_LIST]) for name in _expand(part, _DEEPEST))
    return [name for name in islice(names, _MOST_NAMES) if len(name) <= _LONGEST_NAME]


def _files(line: dict[str, str]) -> Iterator[tuple[str, ...]]:
    if "multiplefiles" in line:
        yield tuple(expand(line["multiplefiles"]))
    yield from ((name,) for name in expand(line.get("file", "")))


def _natural(group: Sequence[str]) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", group[0]) if group else []
    return [(int(piece) if piece.isdigit() else -1, piece) for piece in pieces]


def _parts(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    yield from (part for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text) if part)


def _expand(part: str, depth: int) -> Iterator[str]:
    match = _BRACKETS.fullmatch(part)
    if not match or not depth:
        yield part
        return
    for item in match[2].split(","):
        bounds = _RANGE.fullmatch(item)
        if not bounds:
            continue
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        for number in range(first, min(last, first + _LONGEST_RANGE) + 1):
            head = f"{match[1]}{number:0{len(bounds[1])}d}"
            yield from (head + rest for rest in _expand(match[3], depth - 1))
