"""Parsed output of one nvidia-smi call (XML, CSV or text): cells as printed, not yet converted to values."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping
from dataclasses import dataclass, field
from re import IGNORECASE
from re import compile as pattern
from typing import Final

from gpuledger.model.text import decode_utf8
from gpuledger.sources.smi import cell_names
from gpuledger.sources.smi.cell_values import absent_reason, cell_text, parse_index

Cells = Mapping[str, str]

# More GPUs than a machine has: further ones are not read.
MOST_GPUS = 256
# Lines of an output that cannot be read, after which the rest is not read.
MOST_UNREADABLE = 1000
# No path of nvidia-smi has a longer part.
LONGEST_NAME = 200
# So many duplicate cells in one block mean that two GPUs' outputs merged; neither can be trusted.
MERGED_GPUS_LIMIT = 4


@dataclass(frozen=True, slots=True)
class SmiProblem:
    """An error that nvidia-smi printed, or a part of its output that cannot be parsed.

    `bus` is the GPU's PCI bus id, empty if unknown; `index` is its index, None if unknown. `reason` fits a
    label value; `detail` is for people.
    """

    reason: str
    detail: str
    bus: str = ""
    index: int | None = None

    @property
    def names_gpu(self) -> bool:
        """Whether it is a problem of a certain GPU."""
        return bool(self.bus) or self.index is not None


@dataclass(slots=True)
class GpuBlock:
    """One GPU as printed.

    Keys of `cells` are paths for XML and the text of `-q` (`fb_memory_usage/total`), field names for CSV
    (`memory.total`); those of `mig_devices` and `processes`, with the cells of one each, are the same without
    the path of the list. `processes` is None when the output has no process list; `process_list_message` is
    the text printed in its place. `invalid_cells` counts duplicate and unparsable cells. `raw` holds the CSV
    columns, header and cell as printed.
    """

    bus: str
    cells: dict[str, str] = field(default_factory=dict)
    mig_devices: list[dict[str, str]] = field(default_factory=list)
    processes: list[dict[str, str]] | None = None
    process_list_message: str = ""
    invalid_cells: int = 0
    raw: Cells = field(default_factory=dict)

    def first_cell(self, names: tuple[str, ...]) -> str | None:
        """`first_present` of this GPU's cells."""
        return first_present(self.cells, names)


@dataclass(slots=True)
class SmiOutput:
    """One output: driver versions, a GpuBlock for each parsed GPU, and the problems.

    `attached_gpus` is the number of GPUs that the output states, None if it states none.
    `mig_devices_unknown` is true when MIG is on but the format does not list the MIG devices.
    """

    blocks: list[GpuBlock] = field(default_factory=list)
    problems: list[SmiProblem] = field(default_factory=list)
    driver: str = ""
    cuda: str = ""
    attached_gpus: int | None = None
    mig_devices_unknown: bool = False

    @property
    def is_complete(self) -> bool:
        """True when the output holds every GPU: `attached_gpus` of them, or without it, no problems."""
        return not self.problems if self.attached_gpus is None else self.attached_gpus == len(self.blocks)

    @property
    def lacks_gpu(self) -> bool:
        """True when GPUs may be missing, so that the position of a block is not the index of its GPU."""
        return self.attached_gpus != len(self.blocks) or any(found.names_gpu for found in self.problems)

    def read_machine_cells(self, cells: Cells) -> None:
        """Set the versions and the number of GPUs from those of `cells` that have a value."""
        self.driver = cell_text(first_present(cells, cell_names.DRIVER)) or self.driver
        self.cuda = cell_text(first_present(cells, cell_names.CUDA)) or self.cuda
        if (count := parse_index(first_present(cells, cell_names.ATTACHED_GPUS) or "")) is not None:
            self.attached_gpus = count


_NOTE = pattern(r"(.*\S)\s+\[[^\[\]]*\]")


def without_note(printed: str) -> str:
    """Return a value or header without the note in brackets behind it (`610.43 [Deprecated; ...]`).

    Text that is only a note is kept: `[N/A]` says that there is no value.
    """
    found = _NOTE.fullmatch(printed) if printed.endswith("]") else None
    return found[1] if found else printed


def first_present(cells: Cells, names: tuple[str, ...]) -> str | None:
    """Return the first of the named cells that holds a value, else the first that exists, else None."""
    found = [cells[name] for name in names if name in cells]
    return next((cell for cell in found if not absent_reason(cell)), found[0] if found else None)


def too_many_gpus() -> SmiProblem:
    """The problem of an output with more GPUs than MOST_GPUS."""
    return SmiProblem("TOO_MANY_GPUS", f"more than {MOST_GPUS} GPUs in the output: the rest is not read")


_BUS = pattern(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])")
# `GPU 0000:65:00.0: GPU is lost`; newer drivers print the index, too, or alone: `GPU0: 0000:65:00.0: ...`.
_NO_HANDLE = pattern(
    r"unable to (?:determine|detect) the device handle for\s+(?:gpu\s*)?"
    r"(?:([0-9]{1,4})\s*:\s+)?(?:((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\s*:)?\s*(.*)",
    IGNORECASE,
)
_REASONS = (("lost", "GPU_IS_LOST"), ("reset", "RESET_REQUIRED"), ("permission", "NO_PERMISSION"))


def normalize_bus_id(printed: str) -> str:
    """Return a PCI bus id in the form of NVML's `busId` (8 digits of domain); other text unchanged.

    Empty if it has no value, as for an integrated GPU.
    """
    found = _BUS.fullmatch(printed.strip())
    if found is None:
        return "" if absent_reason(printed) else printed.strip()
    domain, bus, device, function = found.groups()
    return f"{(domain or '0').zfill(8)}:{bus}:{device}.{function}".upper()


def parse_problem(line: str) -> SmiProblem | None:
    """Parse an error message printed outside the data; None for any other line."""
    message = line.strip()
    found = _NO_HANDLE.search(message)
    if found and (found[1] or found[2]):
        cause = found[3].lower()
        reason = next((name for word, name in _REASONS if word in cause), "UNKNOWN")
        index = int(found[1]) if found[1] else None
        return SmiProblem(reason, message[:300], normalize_bus_id(found[2] or ""), index)
    lowered = message.lower()
    if lowered.startswith("no devices were found"):
        return SmiProblem("NO_DEVICES", message[:300])
    if lowered.startswith(("nvidia-smi has failed", "failed to initialize nvml")):
        return SmiProblem("DRIVER_NOT_LOADED", message[:300])
    return None


# Bytes checked for zeros: ASCII text encoded in UTF-16 has one in every second byte.
_DETECTION_BYTES: Final = 64


def decode_output(raw: bytes) -> str:
    """Decode UTF-8, or UTF-16 as PowerShell writes it, and convert CRLF line ends to LF."""
    head = raw[:_DETECTION_BYTES]
    if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        text = raw.decode("utf-16", "replace")
    elif len(head) > 3 and head[1::2].count(0) == len(head) // 2 and 0 not in head[::2]:
        text = raw.decode("utf-16-le", "replace")
    else:
        text = decode_utf8(raw.removeprefix(BOM_UTF8))
    return text.replace("\r\n", "\n")
