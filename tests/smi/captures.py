"""Whole captures of nvidia-smi and the page that is made of them, judged cell by cell.

    PYTHONPATH=src:tests python tests/smi/captures.py DIRECTORY

runs the program over every capture of a directory, idle and under load, and says what it told. The judge
knows the rules in another form than the program: it walks through characters and reckons in decimals.
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
# Beginnings of names that are no column's.
OWN = (
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
class Verdict:
    """What a page has of a capture: `fields` in its table, `samples` told of them, and what is wrong."""

    fields: int = 0
    samples: int = 0
    wrong: list[str] = field(default_factory=list)


def judge(capture: Path, phase: str, page: str) -> Verdict:
    told: dict[str, dict[str, tuple[float, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix("nvidia_smi_")
            if name != sample.name and not name.startswith(OWN):
                told.setdefault(name, {})[sample.labels["uuid"]] = (sample.value, family.documentation)
    verdict = Verdict(samples=sum(map(len, told.values())))
    for uuid, header, cell in table(capture, phase):
        verdict.fields += 1
        expected = worth(header, cell)
        found = told.get(name_of(header), {}).pop(uuid, None)
        if (expected is None) != (found is None):
            verdict.wrong.append(f"{header}: {cell!r}: told {found}, expected {expected}")
        elif expected is not None and found is not None:
            value, documentation = found
            if abs(Decimal(value) - expected) > abs(expected) * Decimal("1e-15"):
                verdict.wrong.append(f"{header}: {cell!r}: told {value}, expected {expected}")
            if documentation != header:
                verdict.wrong.append(f"{header}: its help is {documentation!r}")
    verdict.wrong += [f"{name}: told, and no column" for name, left in told.items() if left]
    return verdict


def table(capture: Path, phase: str) -> Iterator[tuple[str, str, str]]:
    """Every cell of the table of GPUs: UUID label, header, cell."""
    lines = [line for line in sections(capture, phase)["query-gpu"].splitlines() if line.strip()]
    headers = [header.strip() for header in lines[0].split(",")]
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        assert len(cells) == len(headers), f"{capture.name}: a comma in a cell: not for this judge"
        uuid = cells[headers.index("uuid")].lower().removeprefix("gpu-")
        yield from ((uuid, header, cell) for header, cell in zip(headers, cells, strict=True))


def name_of(header: str) -> str:
    field_name, _, unit = header.removesuffix("]").partition(" [")
    name = ""
    for place, char in enumerate(field_name):
        before, after = field_name[place - 1 : place], field_name[place + 1 : place + 2]
        starts_word = char.isupper() and before not in ("", ".")
        if starts_word and (before.islower() or before.isdigit() or after.islower()):
            name += "_"
        name += "_" if char == "." else char.lower()
    return f"{name}_{UNITS[unit][0]}" if unit else name


def worth(header: str, cell: str) -> Decimal | None:
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
    """Runs of digits, with a sign before and one point within or before them."""
    place = 0
    while place < len(text):
        start = place
        if text[place] in "+-":
            place += 1
        digits = place
        while place < len(text) and text[place].isdigit():
            place += 1
        if place + 1 < len(text) and text[place] == "." and text[place + 1].isdigit():
            place += 1
            while place < len(text) and text[place].isdigit():
                place += 1
        if place > digits:
            yield text[start:place]
        else:
            place = start + 1


def main() -> int:
    bad = 0
    for capture in captures(Path(sys.argv[1])):
        for phase in PHASES:
            words = ("--source", "smi", "--nvidia-smi-command", command(capture, phase))
            done = gpuledger("collect", *words, "--dialect", "smi", "--stdout", env={"PYTHONPATH": "src"})
            verdict = judge(capture, phase, done.stdout)
            bad += len(verdict.wrong) + done.returncode
            sys.stdout.write(
                f"{capture.name} {phase}: {verdict.fields} fields, {verdict.samples} samples, "
                f"{len(verdict.wrong)} wrong\n"
            )
            sys.stdout.writelines(f"  {line}\n" for line in (*verdict.wrong, done.stderr.strip()) if line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
