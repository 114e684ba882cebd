"""Kernel facts of doctor: GPUs on the PCI bus, driver version, device nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.sources.nvml.kernel_facts import KernelFacts, PciGpu, read_kernel_facts


class Tree:
    """A procfs, a sysfs and a /dev made of files."""

    def __init__(self, root: Path) -> None:
        self.procfs, self.sysfs, self.devices = root / "proc", root / "sys", root / "dev"
        for folder in (self.procfs, self.sysfs, self.devices):
            folder.mkdir()

    def write(self, path: Path, text: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def card(
        self, address: str, kind: str = "0x030200", vendor: str = "0x10de", driver: str = "nvidia"
    ) -> Path:
        folder = self.sysfs / "bus/pci/devices" / address
        self.write(folder / "vendor", vendor + "\n")
        self.write(folder / "class", kind + "\n")
        self.write(folder / "power/runtime_status", "active\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        return folder

    def look(self) -> KernelFacts:
        return read_kernel_facts(self.procfs, self.sysfs, self.devices)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_only_physical_display_devices_of_nvidia_count(tree: Tree) -> None:
    tree.card("0000:01:00.0")
    tree.card("0000:01:00.1", kind="0x040300")
    tree.card("0000:02:00.0", kind="0x030000", driver="nouveau")
    tree.card("0000:03:00.0", vendor="0x1002")
    (tree.card("0000:04:00.4") / "physfn").symlink_to("../0000:01:00.0")
    tree.write(tree.procfs / "driver/nvidia/gpus/0000:01:00.0/information", "Model: X\nDevice Minor: \t 3\n")
    assert tree.look().pci == (
        PciGpu("0000:01:00.0", "nvidia", 3, "active"),
        PciGpu("0000:02:00.0", "nouveau", None, "active"),
    )


@pytest.mark.parametrize(
    ("procfs", "sysfs", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC 12.2.0 x\n",
            "",
            "570.86.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n",
            "",
            "575.57.08",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256", "", "470.256"),
        ("", "550.54.15\n", "550.54.15"),
        ("", "", ""),
    ],
)
def test_the_driver_version_is_read_from_procfs_or_sysfs(
    tree: Tree, procfs: str, sysfs: str, version: str
) -> None:
    if procfs:
        tree.write(tree.procfs / "driver/nvidia/version", procfs)
    if sysfs:
        tree.write(tree.sysfs / "module/nvidia/version", sysfs)
    assert tree.look().version == version


def test_device_nodes_of_gpus_and_control_nodes_are_found(tree: Tree) -> None:
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"):
        tree.write(tree.devices / name)
    kernel = tree.look()
    assert [Path(path).name for path, _ in kernel.nodes] == ["nvidia-uvm", "nvidia0", "nvidia12", "nvidiactl"]
    assert all(usable for _, usable in kernel.nodes)
    assert kernel.minors == {0, 12}


def test_missing_trees_are_not_an_error(tmp_path: Path) -> None:
    assert read_kernel_facts(tmp_path / "a", tmp_path / "b", tmp_path / "c") == KernelFacts()
