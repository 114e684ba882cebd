"""A PCI bus for tests: the files of sysfs and /dev that describe GPUs."""

from __future__ import annotations

from pathlib import Path


class PciTree:
    """Files below a folder; device names are those of sysfs, `0000:3b:00.0`."""

    def __init__(self, folder: Path) -> None:
        self._devices = folder / "sys/bus/pci/devices"
        self._dev = folder / "dev"
        self._devices.mkdir(parents=True)
        self._dev.mkdir()
        self.sysfs, self.dev = str(folder / "sys"), str(self._dev)

    def add(
        self,
        name: str,
        vendor: str = "0x10de",
        kind: str = "0x030200",
        driver: str = "nvidia",
        virtual: bool = False,
    ) -> None:
        folder = self._devices / name
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if virtual:
            (folder / "physfn").symlink_to("../0000:01:00.0")

    def node(self, name: str) -> None:
        (self._dev / name).touch()

    def remove_node(self, name: str) -> None:
        (self._dev / name).unlink()
