"""Complete captures of nvidia-smi, and a cell-by-cell check of the metrics page made from them.

    PYTHONPATH=src:tests python tests/smi/captures.py DIRECTORY

runs the program on every capture of a directory, idle and under load, and prints the results of the check.
The check implements the rules independently of the program: character by character and with decimals.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from running import gpuledger
from smi.nvidia_smi import sections

PHASES = ("idle", "load")
STAND_IN = Path(__file__).parent / "nvidia_smi.py"
# Prefixes of metric names that do not come from columns.
NOT_COLUMNS = (
    "gpu_info",
    "compute_app",
    "mig_info",
    "mig_memory_",
    "xid_",
    "energy_",
    "pcie_throughput_",
    "failed_scrapes",
    "command_exit_code",
    "last_collect_",
)

UNITS = {
    "W": ("watts", "1"),
    "W/s": ("watts_per_second", "1"),
    "MHz": ("clock_hz", "1e6"),
    "MiB": ("bytes", "1048576"),
    "%": ("ratio", "0.01"),
    "us": ("seconds", "1e-6"),
    "ms": ("seconds", "1e-3"),
    "seconds": ("seconds", "1"),
}
WORDS = {
    "enabled": 1,
    "disabled": 0,
    "yes": 1,
    "no": 0,
    "active": 1,
    "not active": 0,
    "default": 0,
    "exclusive_thread": 1,
    "prohibited": 2,
    "exclusive_process": 3,
}
LISTS = {
    "gpu_recovery_action": ["none", "gpu reset", "node reboot", "drain p2p", "drain and reset"],
    "fabric.state": ["not supported", "not started", "in progress", "completed"],
}


def captures(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.txt"))


def command(capture: Path, phase: str) -> str:
    return shlex.join([sys.executable, str(STAND_IN), "--capture", str(capture), "--phase", phase, "--"])


@dataclass
class PageCheck:
    """Result: the number of `fields` in the capture's table, of `samples` on the page, and the errors."""

    fields: int = 0
    samples: int = 0
    wrong: list[str] = field(default_factory=list)


def check_page(capture: Path, phase: str, page: str) -> PageCheck:
    samples: dict[str, dict[str, tuple[float, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix("nvidia_smi_")
            if name != sample.name and not name.startswith(NOT_COLUMNS):
                samples.setdefault(name, {})[sample.labels["uuid"]] = (sample.value, family.documentation)
    result = PageCheck(samples=sum(map(len, samples.values())))
    for uuid, header, cell in table(capture, phase):
        result.fields += 1
        expected = expected_value(header, cell)
        found = samples.get(metric_name(header), {}).pop(uuid, None)
        if (expected is None) != (found is None):
            result.wrong.append(f"{header}: {cell!r}: found {found}, expected {expected}")
        elif expected is not None and found is not None:
            value, documentation = found
            if abs(Decimal(value) - expected) > abs(expected) * Decimal("1e-15"):
                result.wrong.append(f"{header}: {cell!r}: found {value}, expected {expected}")
            if documentation != header:
                result.wrong.append(f"{header}: its help is {documentation!r}")
    result.wrong += [
        f"{name}: exported, but there is no such column" for name, left in samples.items() if left
    ]
    return result


def table(capture: Path, phase: str) -> Iterator[tuple[str, str, str]]:
    """Yield UUID label, header and cell for every cell of the GPU table."""
    lines = [line for line in sections(capture, phase)["query-gpu"].splitlines() if line.strip()]
    headers = [header.strip() for header in lines[0].split(",")]
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        assert len(cells) == len(headers), f"{capture.name}: a comma in a cell: not supported by this check"
        uuid = cells[headers.index("uuid")].lower().removeprefix("gpu-")
        yield from ((uuid, header, cell) for header, cell in zip(headers, cells, strict=True))


def metric_name(header: str) -> str:
    field_name, _, unit = header.removesuffix("]").partition(" [")
    name = ""
    for position, char in enumerate(field_name):
        before, after = field_name[position - 1 : position], field_name[position + 1 : position + 2]
        starts_word = char.isupper() and before not in ("", ".")
        if starts_word and (before.islower() or before.isdigit() or after.islower()):
            name += "_"
        name += "_" if char == "." else char.lower()
    return f"{name}_{UNITS[unit][0]}" if unit else name


def expected_value(header: str, cell: str) -> Decimal | None:
    field_name, _, unit = header.removesuffix("]").partition(" [")
    text = cell.lower()
    if field_name in LISTS:
        return Decimal(LISTS[field_name].index(text)) if text in LISTS[field_name] else None
    if text in WORDS:
        return Decimal(WORDS[text])
    if text.startswith("0x"):
        return Decimal(int(text, 16))
    numbers = list(numbers_in(text))
    return Decimal(numbers[0]) * Decimal(UNITS[unit][1] if unit else "1") if len(numbers) == 1 else None


def numbers_in(text: str) -> Iterator[str]:
    """Yield numbers: digits with an optional sign before them and at most one point."""
    position = 0
    while position < len(text):
        start = position
        if text[position] in "+-":
            position += 1
        digits = position
        while position < len(text) and text[position].isdigit():
            position += 1
        if position + 1 < len(text) and text[position] == "." and text[position + 1].isdigit():
            position += 1
            while position < len(text) and text[position].isdigit():
                position += 1
        if position > digits:
            yield text[start:position]
        else:
            position = start + 1


def main() -> int:
    bad = 0
    for capture in captures(Path(sys.argv[1])):
        for phase in PHASES:
            arguments = ("--source", "smi", "--nvidia-smi-command", command(capture, phase))
            done = gpuledger("collect", *arguments, "--dialect", "smi", "--stdout", env={"PYTHONPATH": "src"})
            result = check_page(capture, phase, done.stdout)
            bad += len(result.wrong) + done.returncode
            sys.stdout.write(
                f"{capture.name} {phase}: {result.fields} fields, {result.samples} samples, "
                f"{len(result.wrong)} wrong\n"
            )
            sys.stdout.writelines(f"  {line}\n" for line in (*result.wrong, done.stderr.strip()) if line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
