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
        self._information = folder / "proc/driver/nvidia/gpus"
        self.sysfs, self.dev, self.procfs = str(folder / "sys"), str(self._dev), str(folder / "proc")

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
            self.bind(name, driver)
        if virtual:
            (folder / "physfn").symlink_to("../0000:01:00.0")

    def bind(self, name: str, driver: str = "nvidia") -> None:
        (self._devices / name / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def minor(self, name: str, number: int) -> None:
        """Describes the GPU in procfs, as the driver does."""
        folder = self._information / name
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nBus Location: \t {name}\nDevice Minor: \t {number}\n"
        (folder / "information").write_text(text)

    def node(self, name: str) -> None:
        (self._dev / name).touch()

    def remove_node(self, name: str) -> None:
        (self._dev / name).unlink()
