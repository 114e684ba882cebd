"""Names from pci.ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.sources.drm.pci_names import fallback_name, pci_names
from unit.sources.drm.support import PCI_IDS


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "pci.ids").write_text(PCI_IDS)
    return str(tmp_path / "pci.ids")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ((0x1002, 0x73BF), "AMD Radeon RX 6800/6800 XT / 6900 XT"),
        ((0x1002, 0x740F), "AMD Instinct MI210"),
        ((0x8086, 0xE20B), "Intel Arc B580"),
        ((0x10DE, 0x73BF), "Not this one"),
        ((0x8086, 0x73BF), None),
        ((0x1002, 0x1DA2), None),
    ],
)
def test_a_device_has_the_product_s_name_of_its_maker(
    file: str, device: tuple[int, int], name: str | None
) -> None:
    assert pci_names([device], [file]).get(device) == name


def test_the_first_file_that_exists_is_read(tmp_path: Path, file: str) -> None:
    assert pci_names([(0x8086, 0xE20B)], [str(tmp_path / "none"), file]) == {
        (0x8086, 0xE20B): "Intel Arc B580"
    }
    assert pci_names([(0x8086, 0xE20B)], [str(tmp_path / "none")]) == {}


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"\t\t\t\n\tzz\n1002\n\t73b", b"1002  X\n\te20b"])
def test_a_damaged_file_has_no_names(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "pci.ids").write_bytes(text)
    assert pci_names([(0x1002, 0x73BF)], [str(tmp_path / "pci.ids")]) == {}


def test_a_device_without_a_name_is_named_by_its_ids() -> None:
    assert fallback_name((0x1002, 0x73BF)) == "AMD [1002:73bf]"
    assert fallback_name((0x1234, 0x1)) == "GPU [1234:0001]"
