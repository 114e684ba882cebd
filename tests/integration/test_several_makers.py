"""A machine with GPUs of NVIDIA (the test library), AMD and Intel (published dumps): one page, one ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from drm_machine import DrmMachine, amd_client
from gpuledger.host.machine_id import machine_digest
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from pci_tree import PciTree
from running import gpuledger, promtool_check, serving_prepared

NODE = "lab-7"
RADEON, ARC = "GPU-946d7e1ef9b172dd", f"PCI-0000:09:00.0-8086:e20b-{machine_digest(NODE)}"


class MixedMachine:
    """Two NVIDIA GPUs, a Radeon with a process, and an Arc."""

    def __init__(self, folder: Path) -> None:
        self.tree = PciTree(folder)
        for slot in ("0000:3b:00.0", "0000:5e:00.0"):
            self.tree.add(slot)
        self.drm = DrmMachine(folder)
        self.drm.add_dump("rx6900xt", render=128)
        self.drm.add_dump("b580", render=129)
        self.drm.add_process(41)
        self.drm.add_process(42, {3: ("renderD128", amd_client("0000:0c:00.0", 1, gfx=10**9, vram=1 << 20))})
        self.nvml = NvmlState(folder / "state", [NvmlGpu(NvmlProcess(41)), NvmlGpu()])
        self.nvml.write()

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--sysfs", self.tree.sysfs, "--procfs", self.drm.procfs, "--host-pids", "trust")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(build().parent),
            "TEST_NVML_STATE": str(self.nvml.path),
            "NODE_NAME": NODE,
        }


@pytest.fixture
def machine(tmp_path: Path) -> MixedMachine:
    return MixedMachine(tmp_path)


def series(page: str, family: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(f"{family}{{")]


def test_all_gpus_are_on_one_page_and_in_one_ledger(machine: MixedMachine, tmp_path: Path) -> None:
    state = str(tmp_path / "books")
    flags = ("--interval", "0.1", "--energy.zero-hold", "0", "--state-dir", state, *machine.flags)
    with serving_prepared(*flags, env=machine.environment) as server:
        server.wait_ticks(5)
        page = server.get("/metrics/native").text
        devices = server.get("/api/v1/snapshot").json()["devices"]
        amd = server.get("/metrics/amd").text
    infos = series(page, "gpuledger_device_info")
    found = sorted(
        (line.partition('gpu="')[2][0], line.partition('vendor="')[2].partition('"')[0]) for line in infos
    )
    # NVIDIA's GPUs have NVML's indexes; the others follow in the order of their slots.
    assert found == [("0", "nvidia"), ("1", "nvidia"), ("2", "intel"), ("3", "amd")]
    assert 'gpuledger_source_info{source="nvml+drm"' in page
    assert {line.rpartition(" ")[2] for line in series(page, "gpuledger_device_up")} == {"1"}
    assert {line.rpartition(" ")[2] for line in series(page, "gpuledger_energy_imbalance_joules")} == {"0"}
    assert any(RADEON in line for line in series(page, "gpuledger_device_power_watts"))
    assert any(ARC in line for line in series(page, "gpuledger_device_energy_joules_total"))
    assert promtool_check(page)[0] == 0
    # AMD's names are gauges that end in _total.
    assert promtool_check(amd)[0] == 3
    assert len(series(amd, "gpu_health")) == 1
    names = {device["name"] for device in devices}
    assert len(names) >= 3
    done = gpuledger("report", "--by", "gpu", "--state-dir", state, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.dumps(json.loads(done.stdout))
    assert RADEON in rows
    assert ARC in rows


def test_a_driver_that_fails_does_not_cost_the_gpus_of_other_makers(
    machine: MixedMachine, tmp_path: Path
) -> None:
    environment = machine.environment | {"LD_LIBRARY_PATH": str(tmp_path)}
    flags = ("--source", "nvml+drm", "--interval", "0.1", "--state-dir", str(tmp_path), *machine.flags)
    with serving_prepared(*flags, env=environment) as server:
        page = server.wait_ticks(2)
        page = server.get("/metrics/native").text
    assert any(RADEON in line for line in series(page, "gpuledger_device_up"))
    assert 'gpuledger_collector_success{collector="source"} 1' in page


def test_doctor_checks_the_gpus_of_each_maker(machine: MixedMachine) -> None:
    done = gpuledger("doctor", "--format", "json", *machine.flags, env=machine.environment)
    found = {one["check"]: one["verdict"] for one in json.loads(done.stdout)["findings"]}
    assert found["driver.answers"] == "works"
    assert found["drm.gpus"] == "works"
    assert found["drm.processes"] == "works"


def test_a_recording_of_both_is_replayed(machine: MixedMachine, tmp_path: Path) -> None:
    file = str(tmp_path / "both.jsonl.gz")
    flags = ("--for", "1s", "--every", "200ms", *machine.flags)
    done = gpuledger("record", file, *flags, env=machine.environment)
    assert done.returncode == 0, done.stderr
    with serving_prepared("--source", f"replay:{file}", "--state-dir", str(tmp_path)) as server:
        server.wait_ticks(2)
        page = server.get("/metrics/native").text
    infos = series(page, "gpuledger_device_info")
    assert sorted(line.partition('vendor="')[2].partition('"')[0] for line in infos) == [
        *("amd", "intel", "nvidia", "nvidia")
    ]
    # Masked, but in the same form; an address identifies no machine, the digits after it do.
    assert RADEON not in page
    assert ARC not in page
    assert f'"{ARC.removesuffix(machine_digest(NODE))}' in page


def test_reading_nvidia_s_gpus_imports_nothing_of_other_makers() -> None:
    code = """
import sys
from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
open_source(SourceSettings(source="nvml"), SmiSettings(), ProcFs(), SystemClock(), PciBus())
print([name for name in sys.modules if ".drm" in name or "composite" in name])
"""
    environment: Mapping[str, str] = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=dict(environment)
    )
    assert done.stdout == "[]\n"
