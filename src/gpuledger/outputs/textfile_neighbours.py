"""Finds files in a textfile directory that conflict with this program's, or that node_exporter drops."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from typing import NamedTuple

from gpuledger.host.files import file_signature

# Enough for any textfile directory. Files beyond these limits are not checked.
_MAX_FILES = 256
_MAX_BYTES = 1 << 20

# The family or sample name at the start of a line of text 0.0.4.
_NAME = re.compile(rb"^[ \t]*(?:#[ \t]+(?:HELP|TYPE)[ \t]+)?([a-zA-Z_:][a-zA-Z0-9_:]*)", re.MULTILINE)
# A sample with a timestamp. Labels are optional; a label value cannot contain a line end.
_TIMESTAMP = re.compile(
    rb"^[ \t]*[a-zA-Z_:][a-zA-Z0-9_:]*[ \t]*(?:\{[^\n]*\}[ \t]*|[ \t])[^ \t\n{}\"]+[ \t]+-?\d+[ \t]*$",
    re.MULTILINE,
)
# A HELP or TYPE line or a sample, and the name of its family or sample.
_HEADER = re.compile(rb"[ \t]*(?:#[ \t]*(HELP|TYPE)[ \t]+)?([a-zA-Z_:][a-zA-Z0-9_:]*)")
# Comments that node_exporter does not read, or of which it takes any text.
_FREE_COMMENT = re.compile(rb"[ \t]*#(?![ \t]*TYPE[ \t])")

# The grammar of node_exporter's parser, which has no types of OpenMetrics and no blanks at the end of a line.
_METRIC = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_HELP = rb"HELP[ \t]+(?:" + _METRIC + rb"(?:[ \t]+(?:[^\\]|\\[\\n])*+)?)?"
_TYPE = rb"TYPE[ \t]+(?:" + _METRIC + rb"(?:[ \t]+(?i:counter|gauge|histogram|summary|untyped)?)?)?"
_COMMENT = re.compile(rb"[ \t]*+(?:#[ \t]*+(?:(?!(?:HELP|TYPE)[ \t]).*|" + _HELP + b"|" + _TYPE + b"))?")
_PAIR = rb"[ \t]*+[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+" + rb'"(?:[^\\"]|\\[\\"n])*+"[ \t]*+'
_LABELS = rb"\{(?:" + _PAIR + b"(?:," + _PAIR + rb")*+,?)?[ \t]*+\}"
_SAMPLE = re.compile(
    rb"[ \t]*+" + _METRIC + rb"[ \t]*+(" + _LABELS + rb")?[ \t]*+([^ \t{]++)(?:[ \t]++-?[0-9]++)?"
)
_QUOTED = re.compile(rb'"(?:[^\\"]|\\.)*+"')
_LABEL_NAME = re.compile(rb"[a-zA-Z_][a-zA-Z0-9_]*+")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPECIAL = re.compile(rb"(?i)[+-]?inf(?:inity)?|nan")


class NeighbourProblem(NamedTuple):
    """A problem of another file: one clause each for what is wrong and what to do."""

    why: str
    remedy: str


class NeighbourFiles:
    """Checks the other `.prom` files of a directory; reads only changed files.

    `families` are those that this program writes into the file `own`.
    """

    def __init__(self, own: Path, families: Iterable[str]) -> None:
        self._own = own
        self._families = frozenset(name.encode() for name in families)
        self._signatures: dict[Path, tuple[int, ...] | None] = {}

    @property
    def has_own_file(self) -> bool:
        """Whether this program has written its file here."""
        return file_signature(self._own) is not None

    def find_problems(self) -> list[NeighbourProblem]:
        """Returns the problems of new and changed files, by name.

        A file that cannot be read is skipped: node_exporter most likely cannot read it either, and reports
        it.
        """
        before, self._signatures = self._signatures, {path: file_signature(path) for path in self._files()}
        changed = [path for path, now in self._signatures.items() if before.get(path) != now]
        return [problem for path in sorted(changed) for problem in self._problems(path)]

    def _problems(self, path: Path) -> Iterator[NeighbourProblem]:
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES)
        except OSError:
            return
        shared = self._families & set(_NAME.findall(content))
        if shared:
            names = ", ".join(sorted(name.decode() for name in shared))
            yield NeighbourProblem(
                f"{path} exports {names} too: node_exporter drops one of two equal series",
                "stop the program that writes that file and remove it, or choose another --dialect",
            )
        dropped = _reason_to_drop(content)
        if dropped:
            yield NeighbourProblem(
                f"{path} {dropped}: node_exporter drops the whole file (node_textfile_scrape_error is 1)",
                "correct the program that writes that file, or remove it",
            )

    def _files(self) -> list[Path]:
        try:
            with os.scandir(self._own.parent) as entries:
                prom_files = (entry for entry in entries if entry.name.endswith(".prom"))
                # Regular files only: opening a pipe would block.
                others = (entry for entry in prom_files if entry.name != self._own.name and entry.is_file())
                return [Path(entry.path) for entry in islice(others, _MAX_FILES)]
        except OSError:
            return []


def _reason_to_drop(content: bytes) -> str:
    if _TIMESTAMP.search(content):
        return "has timestamps"
    if len(content) == _MAX_BYTES:
        # The last line may be cut.
        return ""
    if content and not content.endswith(b"\n"):
        return "does not end with a line end"
    seen: set[tuple[bytes, bytes]] = set()
    for number, line in enumerate(content.split(b"\n"), 1):
        if again := _repeated_header(line, seen):
            return f"{again} in line {number}"
        if line.endswith(b"\r") and not _FREE_COMMENT.match(line):
            return "has line ends of Windows"
        if not _is_valid(line):
            return f"is not in Prometheus's text format in line {number}"
    return ""


def _repeated_header(line: bytes, seen: set[tuple[bytes, bytes]]) -> str:
    """What is wrong with a HELP or TYPE line after those in `seen`, to which the line is added."""
    found = _HEADER.match(line)
    if found is None:
        return ""
    kind, name = found[1] or b"", found[2]
    problem = ""
    if kind and (kind, name) in seen:
        problem = f"has a second {kind.decode()} line of {name.decode()}"
    elif kind == b"TYPE" and (b"", name) in seen:
        problem = f"has the TYPE line of {name.decode()} after a sample"
    seen.add((kind, name))
    return problem


def _is_valid(line: bytes) -> bool:
    if _COMMENT.fullmatch(line):
        return True
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return False
    labels, value = found.groups()
    if labels:
        try:
            labels.decode()
        except UnicodeDecodeError:
            return False
        names = _LABEL_NAME.findall(_QUOTED.sub(b"", labels))
        if b"__name__" in names or len(set(names)) < len(names):
            return False
    if _NUMBER.fullmatch(value):
        return abs(float(value)) != inf
    return _SPECIAL.fullmatch(value) is not None
