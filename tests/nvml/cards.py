"""A test GPU of each architecture: what it has, and what it returns NOT_SUPPORTED for.

From nvml.h's notes on architectures and from reports of users. Of a GB10 only memory, power limits and fans
are known; the lack of profiling metrics is assumed.
"""

from __future__ import annotations

from collections.abc import Callable

from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess

NOT_SUPPORTED = 3
_MIB = 1 << 20
_NVLINKS = ("field.38", "field.45", "field.52", "field.59", "field.90", "field.138", "field.139")
_ECC = (
    *("field.3", "field.4", "field.5", "field.6", "nvmlDeviceGetTotalEccErrors"),
    *("nvmlDeviceGetEccMode", "nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetSramEccErrorStatus"),
)
_REPAIRS = (
    *("field.142", "field.143", "field.144", "field.145", "field.301", "field.302"),
    "nvmlDeviceGetRowRemapperHistogram",
)
_LIMITS = (
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "field.187",
    "field.188",
    "field.189",
    "field.192",
)
_MEMORY_TEMPERATURE = "field.82"
_MEMORY_CLOCKS = (
    "nvmlDeviceGetClockInfo.2",
    "nvmlDeviceGetMaxClockInfo.2",
    "nvmlDeviceGetApplicationsClock.2",
)


def _card(*lacks: str, name: str, **numbers: int) -> NvmlGpu:
    numbers = {"utilization": 42, "memory_utilization": 17, **numbers}
    gpu = NvmlGpu(NvmlProcess(4242, memory=2 << 30, sm=40), name=name, activity=40.0, **numbers)
    gpu.errors = dict.fromkeys(lacks, NOT_SUPPORTED)
    return gpu


def _with_instances(gpu: NvmlGpu, *instances: NvmlInstance) -> NvmlGpu:
    gpu.numbers["mig"] = 1
    gpu.instances = list(instances)
    gpu.processes = [NvmlProcess(4242, memory=2 << 30, gi=instances[0].gi, ci=instances[0].ci)]
    return gpu


def volta() -> NvmlGpu:
    """A V100: retires pages; no MIG, PCIe counters or GPM."""
    return _card(
        name="Tesla V100-SXM2-32GB",
        architecture=5,
        major_cc=7,
        minor_cc=0,
        cores=5120,
        memory_total=32768 * _MIB,
        mig=-1,
        nvlinks=6,
        power_limit=300_000,
        power_limit_max=300_000,
    )


def ampere() -> NvmlGpu:
    """An A100: remaps rows and supports MIG; no GPM."""
    return _card(
        name="NVIDIA A100-SXM4-80GB",
        architecture=7,
        major_cc=8,
        minor_cc=0,
        cores=6912,
        memory_total=81920 * _MIB,
        nvlinks=12,
        power_limit=400_000,
        power_limit_max=400_000,
    )


def ampere_mig() -> NvmlGpu:
    """An A100 with two MIG devices."""
    return _with_instances(
        ampere(),
        NvmlInstance(0, gi=1, profile="4g.40gb", sms=56, activity=40.0),
        NvmlInstance(1, gi=2, profile="3g.40gb", sms=42, activity=0.0),
    )


def hopper() -> NvmlGpu:
    """An H100: everything except a fan and retired pages."""
    return _card(name="NVIDIA H100 80GB HBM3")


def hopper_mig() -> NvmlGpu:
    """An H100 with three MIG devices, two of which share a GPU instance."""
    return _with_instances(
        hopper(),
        NvmlInstance(0, gi=1, profile="3g.40gb", sms=60, activity=40.0),
        NvmlInstance(1, gi=2, ci=0, profile="1c.2g.20gb", sms=16, total=20 << 30, activity=30.0),
        NvmlInstance(2, gi=2, ci=1, profile="1c.2g.20gb", sms=16, total=20 << 30, activity=10.0),
    )


def ada_consumer() -> NvmlGpu:
    """An RTX 4090: a fan; no ECC, memory temperature, NVLink, MIG or GPM."""
    return _card(
        *_NVLINKS,
        *_ECC,
        *_REPAIRS,
        _MEMORY_TEMPERATURE,
        name="NVIDIA GeForce RTX 4090",
        architecture=8,
        major_cc=8,
        minor_cc=9,
        cores=16384,
        memory_total=24564 * _MIB,
        mig=-1,
        nvlinks=0,
        fan=30,
        power_limit=450_000,
        power_limit_max=600_000,
    )


def gb10() -> NvmlGpu:
    """A GB10: unified memory, which NVML does not report; no power limits."""
    return _card(
        *_NVLINKS,
        *_ECC,
        *_REPAIRS,
        *_LIMITS,
        *_MEMORY_CLOCKS,
        _MEMORY_TEMPERATURE,
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlGpmQueryDeviceSupport",
        name="NVIDIA GB10",
        architecture=10,
        major_cc=12,
        minor_cc=1,
        cores=6144,
        memory=1,
        mig=-1,
        nvlinks=0,
    )


CARDS: dict[str, Callable[[], NvmlGpu]] = {
    "volta": volta,
    "ampere": ampere,
    "ampere-mig": ampere_mig,
    "hopper": hopper,
    "hopper-mig": hopper_mig,
    "ada-consumer": ada_consumer,
    "gb10": gb10,
}
