"""The dialect `amd`: names, units and labels of AMD's device metrics exporter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, node_state, process, reading, snapshot
from gpuledger.dialects.amd import AmdDialect
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import AmdDialectSettings, DialectSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import AMD, Gpu, Instance
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import Allocation, Workload
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import Node

CARD = Gpu(
    "GPU-1901ead3a2ecd4a6",
    2,
    "AMD Instinct MI210",
    "0000:63:00.0",
    serial="PCB-1",
    vbios="113-D67301",
    architecture="CDNA 2",
    vendor=AMD,
)
POD = Workload("pod", "ml", "train-0", "main")
OTHER_POD = replace(POD, pod="train-1")
JOB = Workload("slurm", job="77", user="mira", partition="gpu")


def samples(
    *readings: Reading, allocations: tuple[Allocation, ...] = (), prefix: str = ""
) -> dict[str, dict[tuple[str, ...], float]]:
    seen: Snapshot = replace(snapshot(*readings), allocations=allocations)
    dialect = AmdDialect(AmdDialectSettings(prefix), "node-7")
    return {family.spec.name: family.samples for family in dialect.families(node_state(seen))}


def labels_of(found: dict[str, dict[tuple[str, ...], float]]) -> dict[str, str]:
    (values,) = found["gpu_health"]
    dialect = AmdDialect(AmdDialectSettings())
    names = next(spec.labels for spec in dialect.specs if spec.name == "gpu_health")
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    ("quantity", "value", "name", "exported"),
    [
        (q.POWER, 212.5, "gpu_average_package_power", 212.5),
        (q.POWER, 212.5, "gpu_power_usage", 212.5),
        (q.ENERGY, 59_120_400, "gpu_energy_consumed", 59_120_400_000),
        (q.TEMPERATURE, 41.0, "gpu_edge_temperature", 41.0),
        (q.UTILIZATION, 0.25, "gpu_gfx_activity", 25.0),
        (q.MEMORY_UTILIZATION, 0.5, "gpu_umc_activity", 50.0),
        (q.MEMORY_TOTAL, 64 << 30, "gpu_total_vram", 65536),
        (q.MEMORY_USED, 3 << 20, "gpu_used_vram", 3),
        (q.PCIE_GENERATION, 4, "pcie_speed", 16.0),
        (q.ECC_UNCORRECTED_VOLATILE, 2, "gpu_ecc_uncorrect_total", 2),
    ],
)
def test_a_value_has_the_unit_of_amd_s_exporter(
    quantity: q.Quantity, value: float, name: str, exported: float
) -> None:
    found = samples(reading(CARD, values={quantity: value}))
    assert list(found[name].values()) == [exported]


def test_clocks_have_their_type() -> None:
    found = samples(reading(CARD, values={q.GRAPHICS_CLOCK: 1.7e9, q.MEMORY_CLOCK: 1.6e9}))
    assert {key[-2:]: value for key, value in found["gpu_clock"].items()} == {
        ("0", "system"): 1700,
        ("8", "memory"): 1600,
    }


def test_mi300_has_other_names_for_power_and_temperature() -> None:
    card = replace(CARD, architecture="CDNA 3")
    found = samples(reading(card, values={q.POWER: 5.0, q.TEMPERATURE: 6.0}))
    with_values = {name for name, family in found.items() if family}
    assert with_values == {
        *("gpu_nodes_total", "gpu_health", "gpu_package_power", "gpu_power_usage"),
        "gpu_junction_temperature",
    }


def test_what_the_kernel_does_not_report_is_absent() -> None:
    found = samples(reading(CARD, values={}))
    assert {name for name, family in found.items() if family} == {"gpu_nodes_total", "gpu_health"}


def test_a_gpu_is_named_as_amd_s_exporter_names_it() -> None:
    labels = labels_of(samples(reading(CARD, values={})))
    assert labels == dict.fromkeys(labels, "") | {
        "gpu_id": "2",
        "gpu_uuid": "1901ead3a2ecd4a6",
        "serial_number": "PCB-1",
        "card_model": "AMD Instinct MI210",
        "card_series": "AMD Instinct MI210",
        "card_vendor": "AMD",
        "vbios_version": "113-D67301",
        "hostname": "node-7",
        "gpu_partition_id": "0",
    }


def test_a_package_with_partitions_has_its_mode_and_one_row() -> None:
    part = Instance(f"{CARD.uuid}/1", CARD, 1, 0, 1, "cpx_nps4")
    found = samples(reading(CARD, values={q.POWER: 1.0}), reading(part, values={q.ENGINE_ACTIVITY: 0.5}))
    labels = labels_of(found)
    assert (labels["gpu_compute_partition_type"], labels["gpu_memory_partition_type"]) == ("cpx", "nps4")
    assert list(found["gpu_nodes_total"].values()) == [1]


def test_a_lost_gpu_is_unhealthy() -> None:
    found = samples(reading(CARD, up=False, values={}))
    assert list(found["gpu_health"].values()) == [0]


def test_gpus_of_other_makers_are_left_out() -> None:
    found = samples(reading(gpu(0), values={q.POWER: 1.0}))
    assert found["gpu_nodes_total"] == {(): 0}
    assert not found["gpu_power_usage"]


@pytest.mark.parametrize(
    ("allocated", "running", "expected"),
    [
        ((POD,), (), ("train-0", "ml", "main", "", "", "")),
        ((POD,), (OTHER_POD,), ("train-0", "ml", "main", "", "", "")),
        ((POD, OTHER_POD), (), ("", "", "", "", "", "")),
        ((), (POD,), ("train-0", "ml", "main", "", "", "")),
        ((), (JOB,), ("", "", "", "77", "mira", "gpu")),
        ((), (POD, JOB), ("", "", "", "", "", "")),
        ((), (Workload("user", user="dan"),), ("", "", "", "", "", "")),
    ],
)
def test_labels_of_a_pod_or_job_are_those_of_the_only_one(
    allocated: tuple[Workload, ...], running: tuple[Workload, ...], expected: tuple[str, ...]
) -> None:
    processes = [process(CARD, 10 + number, workload=owner) for number, owner in enumerate(running)]
    allocations = tuple(Allocation(CARD, owner, "kubelet") for owner in allocated)
    labels = labels_of(samples(reading(CARD, *processes, values={}), allocations=allocations))
    names = ("pod", "namespace", "container", "job_id", "job_user", "job_partition")
    assert tuple(labels[name] for name in names) == expected


def test_names_can_have_a_prefix() -> None:
    found = samples(reading(CARD, values={q.POWER: 1.0}), prefix="amd_")
    assert all(name.startswith("amd_") for name in found)


def test_dialects_with_nvidia_s_names_have_only_nvidia_s_gpus() -> None:
    seen = Node(load_scenario("mixed-lab")).at(5)
    dialects = create_dialects(DialectSettings(), "0")
    found = {
        name: {
            value
            for family in dialects[name].families(node_state(seen))
            for labels in family.samples
            for label, value in zip(family.spec.labels, labels, strict=True)
            if label.lower() in ("uuid", "gpu_uuid") and value
        }
        for name in ("native", "dcgm", "smi", "amd")
    }
    uuids = {reading.device.gpu.uuid: reading.device.gpu.vendor for reading in seen.readings}
    assert found["native"] >= set(uuids)
    assert {uuids[uuid] for uuid in found["dcgm"]} == {"nvidia"}
    assert {uuids[f"GPU-{uuid}"] for uuid in found["amd"]} == {"amd"}
