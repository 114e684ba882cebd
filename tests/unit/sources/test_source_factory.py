"""Which sources `auto` opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import DrmMachine
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.model.errors import UsageError
from gpuledger.sources import source_factory
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import find_sources, open_source
from pci_tree import PciTree
from unit.sources.simulator.support import ManualClock


class Machine:
    """A PCI bus and DRM cards."""

    def __init__(self, folder: Path) -> None:
        self.tree = PciTree(folder)
        self.drm = DrmMachine(folder)
        self.pci = PciBus(self.tree.sysfs, self.tree.dev, self.drm.procfs)

    def kind(self) -> str:
        return find_sources(SmiSettings(), self.pci)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(source_factory, "prefers_smi", lambda smi: smi.command != SmiSettings().command)
    return Machine(tmp_path)


def test_a_machine_without_other_gpus_is_read_by_nvml_alone(machine: Machine) -> None:
    assert machine.kind() == "nvml"
    machine.tree.add("0000:3b:00.0")
    machine.drm.add_card(0, "0000:02:00.0", "1a03:2000", "ast")
    assert machine.kind() == "nvml"


@pytest.mark.parametrize("driver", ["amdgpu", "radeon", "i915", "xe"])
def test_a_machine_with_other_gpus_alone_is_read_by_drm(machine: Machine, driver: str) -> None:
    machine.drm.add_card(0, "0000:00:02.0", "8086:9b41", driver)
    assert machine.kind() == "drm"


def test_a_machine_with_gpus_of_several_makers_is_read_by_both(machine: Machine) -> None:
    machine.tree.add("0000:3b:00.0")
    machine.drm.add_card(0, "0000:03:00.0", "1002:740f")
    assert machine.kind() == "nvml+drm"


def test_an_integrated_gpu_beside_nvidia_s_does_not_count(machine: Machine) -> None:
    machine.tree.add("0000:3b:00.0")
    machine.drm.add_card(0, "0000:00:02.0", "8086:9b41", "i915")
    assert machine.kind() == "nvml"
    machine.drm.add_card(1, "0000:03:00.0", "8086:56a5", "i915")
    assert machine.kind() == "nvml+drm"


@pytest.mark.parametrize("kind", ["0x030000", "0x038000", "0x120000"])
def test_an_amd_gpu_waits_for_its_driver(machine: Machine, kind: str) -> None:
    machine.tree.add("0000:03:00.0", "0x1002", kind, driver="")
    assert machine.kind() == "drm"


def test_other_devices_of_amd_are_no_gpus(machine: Machine) -> None:
    machine.tree.add("0000:03:00.1", "0x1002", "0x040300", driver="snd_hda_intel")
    assert machine.kind() == "nvml"


def test_a_command_that_the_user_set_is_read_alone(machine: Machine) -> None:
    machine.tree.add("0000:3b:00.0")
    machine.drm.add_card(0, "0000:03:00.0", "1002:740f")
    assert find_sources(SmiSettings(command="ssh gpu1 nvidia-smi"), machine.pci) == "smi"


def test_without_the_machine_s_bus_auto_is_nvidia(machine: Machine) -> None:
    assert find_sources(SmiSettings(), None) == "nvml"


@pytest.mark.parametrize("kind", ["drm", "nvml", "nvml+drm", "smi+drm"])
def test_a_source_can_be_named_and_its_name_opens_it_again(machine: Machine, kind: str) -> None:
    host = ProcFs(machine.drm.procfs)
    source = open_source(SourceSettings(source=kind), SmiSettings(), host, ManualClock(), machine.pci)
    assert (source.info.name, source.has_local_pids) == (kind, True)
    source.close()


@pytest.mark.parametrize("kind", ["drm:card0", "nvml+drm:1"])
def test_a_source_of_hardware_has_no_argument(machine: Machine, kind: str) -> None:
    with pytest.raises(UsageError, match="has no argument"):
        open_source(SourceSettings(source=kind), SmiSettings(), ProcFs(), ManualClock(), machine.pci)
