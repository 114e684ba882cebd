"""Names of PCI devices from the machine's pci.ids (Debian package pci.ids, or hwdata)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from gpuledger.model.text import clean_name, decode_utf8

PCI_IDS: Final = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/usr/share/pci.ids")
_LONGEST: Final = 120
VENDORS: Final = {0x1002: "AMD", 0x8086: "Intel"}

# Vendor and device.
PciId = tuple[int, int]


def pci_names(wanted: Collection[PciId], files: Collection[str] = PCI_IDS) -> dict[PciId, str]:
    """The names of these devices by the first of these files that exists; those that it lacks are omitted.

    The file is read line by line and not kept: it has more than a megabyte. Names of boards are not used:
    many are those of the laptop or server.
    """
    for file in files:
        try:
            with Path(file).open("rb") as lines:
                return _find_names(lines, frozenset(wanted))
        except OSError:
            continue
    return {}


def fallback_name(device: PciId) -> str:
    """The name of a device that no list has: its maker and PCI ids."""
    vendor, number = device
    return f"{VENDORS.get(vendor, 'GPU')} [{vendor:04x}:{number:04x}]"


def _find_names(lines: Iterable[bytes], wanted: frozenset[PciId]) -> dict[PciId, str]:
    found: dict[PciId, str] = {}
    vendors = {vendor for vendor, _ in wanted}
    vendor: int | None = None
    for line in lines:
        # Classes of devices follow after the last vendor.
        if line.startswith(b"C "):
            break
        if line.startswith(b"\t"):
            if vendor is None or line.startswith(b"\t\t"):
                continue
            number = _number(line[1:5])
            if number is not None and (vendor, number) in wanted:
                found[vendor, number] = _name(vendor, line[5:])
        elif line[:1] not in (b"#", b"\n"):
            known = _number(line[:4])
            vendor = known if known in vendors else None
    return found


def _number(text: bytes) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _name(vendor: int, text: bytes) -> str:
    name = clean_name(decode_utf8(text).strip(), _LONGEST)
    # "Navi 33 [Radeon RX 7600]": the name of the product is in brackets.
    inner = name.rpartition("[")[2].removesuffix("]") if name.endswith("]") else name
    maker = VENDORS.get(vendor, "")
    return inner if not maker or inner.startswith(maker) else f"{maker} {inner}"
