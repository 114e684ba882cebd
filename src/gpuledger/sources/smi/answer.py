"""What one answer of nvidia-smi holds, whatever its form: cells, not yet values."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from dataclasses import dataclass, field
from re import IGNORECASE
from re import compile as pattern
from typing import Final

from gpuledger.model.text import from_bytes
from gpuledger.sources.smi.command import Outcome, Ran
from gpuledger.sources.smi.values import why_absent

Cells = Mapping[str, str]

# A Block in which this many cells are told twice is two GPUs run together, and neither can be told.
RUN_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that an answer says is wrong, or that could not be read of it.

    `bus` is the GPU's PCI bus id where it is known. `reason` is fit for a label, `detail` for a person.
    """

    reason: str
    detail: str
    bus: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One process as printed; None where the form has no such column."""

    pid: str | None = None
    name: str | None = None
    type: str | None = None
    memory: str | None = None
    gi: str | None = None
    ci: str | None = None


@dataclass(slots=True)
class Block:
    """One GPU as printed.

    `cells` goes by path in the XML and in the text of `-q` (`fb_memory_usage/total`), by field name in CSV
    (`memory.total`). `parts` are its MIG devices. `rows` is None when the list was not told, which
    `rows_said` may explain. `spoiled` counts cells that were told twice or could not be taken apart.
    """

    bus: str
    cells: dict[str, str] = field(default_factory=dict)
    parts: list[Cells] = field(default_factory=list)
    rows: list[Row] | None = None
    rows_said: str = ""
    spoiled: int = 0
    raw: Cells = field(default_factory=dict)

    def first(self, names: tuple[str, ...]) -> str | None:
        """The first of these cells that holds something, else the first there is, else None."""
        return first(self.cells, names)


@dataclass(slots=True)
class Answer:
    """One answer: the driver's versions, a Block for each GPU that could be read, and what went wrong.

    `expected` is how many GPUs the answer says there are, None where it does not say. `parts_unknown` is
    true when MIG is on and the form at hand does not tell the MIG devices.
    """

    blocks: list[Block] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    expected: int | None = None
    parts_unknown: bool = False

    @property
    def whole(self) -> bool:
        """True when every GPU of the machine is in it: by its own count, else because nothing went wrong."""
        return not self.troubles if self.expected is None else self.expected == len(self.blocks)


def first(cells: Cells, names: tuple[str, ...]) -> str | None:
    """The first of these cells that holds something, else the first there is, else None."""
    found = [cells[name] for name in names if name in cells]
    return next((cell for cell in found if not why_absent(cell)), found[0] if found else None)


_BUS = pattern(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])")
_NO_HANDLE = pattern(
    r"unable to determine the device handle for\s+(?:gpu)?\s*"
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\s*:\s*(.*)",
    IGNORECASE,
)
_REASONS = (("lost", "GPU_IS_LOST"), ("reset", "RESET_REQUIRED"), ("permission", "NO_PERMISSION"))


def bus_id(printed: str) -> str:
    """A PCI bus id in the form of NVML's `busId` (8 digits of domain); as printed when it is none."""
    found = _BUS.fullmatch(printed.strip())
    if found is None:
        return printed.strip()
    domain, bus, device, function = found.groups()
    return f"{(domain or '0').zfill(8)}:{bus}:{device}.{function}".upper()


def trouble_of(line: str) -> Trouble | None:
    """The trouble that a line outside the data tells of; None for any other line."""
    said = line.strip()
    found = _NO_HANDLE.search(said)
    if found:
        why = found[2].lower()
        reason = next((name for word, name in _REASONS if word in why), "UNKNOWN")
        return Trouble(reason, said[:300], bus_id(found[1]))
    lowered = said.lower()
    if lowered.startswith("no devices were found"):
        return Trouble("NO_DEVICES", said[:300])
    if lowered.startswith(("nvidia-smi has failed", "failed to initialize nvml")):
        return Trouble("DRIVER_NOT_LOADED", said[:300])
    return None


_MARKED: Final = ((BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"))
# How much of an answer is looked at for zeros, which UTF-16 has in every second byte of plain text.
_HEAD: Final = 64


def told(outcome: Outcome) -> str:
    """What the command wrote to its standard output; nothing where it did not start."""
    return decoded(outcome.stdout) if isinstance(outcome, Ran) else ""


def decoded(raw: bytes) -> str:
    """UTF-8, or UTF-16 as PowerShell writes it, with lines that end in a line feed alone."""
    for mark, encoding in _MARKED:
        if raw.startswith(mark):
            return _lines(raw[len(mark) :].decode(encoding, "replace"))
    head = raw[:_HEAD]
    if len(head) > 3 and head[1::2].count(0) == len(head) // 2 and 0 not in head[::2]:
        return _lines(raw.decode("utf-16-le", "replace"))
    return _lines(from_bytes(raw.removeprefix(BOM_UTF8)))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text
