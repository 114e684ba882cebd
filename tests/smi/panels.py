"""The queries in the panels of the public dashboards for nvidia_gpu_exporter.

14574 shows one GPU, 25547 all GPUs of a node. `$of` is replaced by the label matchers of the dashboard's
variables, `$node` by those without the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Panels = Mapping[str, Sequence[str]]


def of(family: str) -> str:
    """Select the series of a family on the selected GPUs."""
    return f"nvidia_smi_{family}{{$of}}"


INFO: Final = of("gpu_info")
BY_GPU: Final = "sum by (uuid, instance, job)"


def share(part: str, *wholes: str) -> str:
    """Divide by the first of the totals that is exported."""
    return f"{of(part)} / ({' or '.join(map(of, wholes))})"


def limited(reason: str) -> str:
    """Query a clock limit reason by the driver's new name, else by the old one."""
    return f"{of(f'clocks_event_reasons_{reason}')} or {of(f'clocks_throttle_reasons_{reason}')}"


def reasons(by: str) -> str:
    """Count the active ones of the four reasons that reduce performance; a missing series is inactive."""
    four = ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    return " + ".join(f"({by} ({limited(reason)}) or {by} ({INFO}) * 0)" for reason in four)


def uncorrected(by: str) -> str:
    """Query the total, or else the sum of its exported parts."""
    parts = '{__name__=~"nvidia_smi_ecc_errors_uncorrected_aggregate_.+", $of}'
    return f"{by} ({of('ecc_errors_uncorrected_aggregate_total')}) or {by} ({parts})"


def or_none(query: str, by: str = BY_GPU) -> str:
    """Return -1, which the panel shows as n/a, for a GPU without this series."""
    return f"({query}) or ({by} ({INFO}) * 0 - 1)"


def labelled(query: str, info: str = INFO) -> str:
    """Add the GPU's index and name for the legend."""
    return f"({query}) * on (uuid) group_left (index, name) {info}"


def one_info(matchers: str = "$of") -> str:
    return f"(max by (uuid, index, name) (nvidia_smi_gpu_info{{{matchers}}}))"


def of_instance(family: str, matchers: str) -> str:
    """Add the profile to a MIG instance's value; compute instances of one GPU instance are combined."""
    profile = (
        f'label_replace(nvidia_smi_mig_info{{{matchers}}}, "profile", "$1", "profile", "^[0-9]+c\\\\.(.*)$")'
    )
    which = f"(max by (uuid, gpu_instance_id, profile) ({profile}))"
    return f"{of(family)} * on (uuid, gpu_instance_id) group_left (profile) {which}"


def chosen(matchers: str) -> str:
    """List the GPUs for the variable, with name, index and the first eight characters of the UUID."""
    named = f'label_join(nvidia_smi_gpu_info{{{matchers}}}, "ni", " #", "name", "index")'
    short = f'label_replace({named}, "us", "($1)", "uuid", "^(........).*")'
    return f'label_join({short}, "gpu_label", " ", "ni", "us")'


LIMITS: Final = ("enforced_power_limit_watts", "power_limit_watts", "power_default_limit_watts")
MEMORY: Final = share("memory_used_bytes", "memory_total_bytes")
HOLDS: Final = f"{of('compute_app_used_memory_bytes')} or ({of('compute_app_info')} * 0)"
SINCE_XID: Final = f"time() - max by (uuid, xid) ({of('xid_last_timestamp_seconds')})"
XIDS: Final = f"sum by (uuid) ({of('xid_errors_total')})"
EVERY_INFO: Final = "nvidia_smi_gpu_info{$node}"

VARIABLES: Panels = {
    "job": ["group by (job) (nvidia_smi_index)"],
    "node": ["group by (instance) (nvidia_smi_index{$node})"],
    "gpu": [chosen("$node")],
    "gpu, before": ["group by (uuid) (nvidia_smi_index)"],
}

ONE_GPU: Panels = {
    "Recovery Action": [of("gpu_recovery_action")],
    "Throttling": [reasons("sum by (uuid)")],
    "ECC Errors": [uncorrected("sum by (uuid)")],
    "P-State": [of("pstate")],
    "GPU Info": [INFO],
    "Compute Mode": [of("compute_mode")],
    "GPU Util": [or_none(f"sum({of('utilization_gpu_ratio')})", "sum"), of("utilization_gpu_ratio")],
    "Power": [share("power_draw_watts", *LIMITS), of("power_draw_watts")],
    "Fan": [or_none(f"sum({of('fan_speed_ratio')})", "sum"), of("fan_speed_ratio")],
    "Temperature": [of("temperature_gpu")],
    "GPU Clock": [share("clocks_current_graphics_clock_hz", "clocks_max_graphics_clock_hz")],
    "Memory Clock": [share("clocks_current_memory_clock_hz", "clocks_max_memory_clock_hz")],
    "Memory Alloc": [MEMORY, of("memory_used_bytes")],
    "Memory Util": [or_none(f"sum({of('utilization_memory_ratio')})", "sum"), of("utilization_memory_ratio")],
    "Throttle Reasons": [
        limited(reason)
        for reason in (
            *("gpu_idle", "sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"),
            *("hw_power_brake_slowdown", "applications_clocks_setting", "sync_boost"),
        )
    ],
    "Clock Speeds": [of(f"clocks_current_{name}_clock_hz") for name in ("graphics", "video", "sm", "memory")],
    "GPU Processes": [HOLDS, f"({HOLDS}) / on (uuid) group_left () {of('memory_total_bytes')}"],
    "Process Memory": [of("compute_app_used_memory_bytes")],
    "Process Collection": ["nvidia_smi_compute_apps_last_collect_success{$node}"],
    "Fabric State": [of("fabric_state")],
    "ECC Uncorrected": [
        'label_replace({__name__=~"nvidia_smi_ecc_errors_uncorrected_.+", $of}, '
        '"kind", "$1", "__name__", "nvidia_smi_ecc_errors_uncorrected_(.+)")'
    ],
    "XID Errors": [f"sum({of('xid_errors_total')}) or sum({INFO}) * 0"],
    "Last XID": [f"time() - max({of('xid_last_timestamp_seconds')}) or (sum({INFO}) * 0 - 1)"],
    "XID Errors by Code": [of("xid_errors_total")],
    "PCIe Throughput": [of(f"pcie_throughput_{way}_bytes_per_second") for way in ("tx", "rx")],
    "Energy": [
        f"rate({of('energy_joules_total')}[$interval])",
        f"sum(increase({of('energy_joules_total')}[24h])) / 3.6e6",
    ],
    "MIG": [
        of_instance(f"mig_{family}", "$of")
        for family in ("memory_used_bytes", "sm_activity_ratio", "tensor_activity_ratio")
    ],
}

# Queries of 14574 in version 1.1.0 that differ; its clock limit reasons have the names of drivers before 535.
ONE_GPU_BEFORE: Panels = {"Power Draw %": [share("power_draw_watts", "power_default_limit_watts")]}

SIDE_BY_SIDE: Panels = {
    "GPUs": [
        chosen("$of"),
        *(or_none(of(family)) for family in ("utilization_gpu_ratio", "temperature_gpu", "pstate")),
        *(or_none(query) for query in (MEMORY, uncorrected(BY_GPU), of("gpu_recovery_action"))),
        or_none(f"{of('power_draw_watts')} / (({' or '.join(map(of, LIMITS))}) > 0)"),
        reasons(BY_GPU),
    ],
    "Over time": [
        labelled(query)
        for query in (
            *(of("utilization_gpu_ratio"), of("utilization_memory_ratio"), MEMORY, of("memory_used_bytes")),
            *(of("temperature_gpu"), of("power_draw_watts"), of("fan_speed_ratio"), of("pstate")),
            *(of("clocks_current_graphics_clock_hz"), of("clocks_current_memory_clock_hz")),
            *(reasons(BY_GPU), uncorrected(BY_GPU), of("gpu_recovery_action")),
            f"rate({of('energy_joules_total')}[$interval])",
            *(of("pcie_throughput_tx_bytes_per_second"), of("pcie_throughput_rx_bytes_per_second")),
        )
    ],
    "XID Errors": [
        f"{labelled(XIDS, one_info())} or {one_info()} * 0 or ({XIDS} unless on (uuid) {EVERY_INFO})"
    ],
    "Last XID per GPU": [
        f"{labelled(SINCE_XID, one_info())} or ({one_info()} * 0 - 1) unless on (uuid) "
        f"{of('xid_last_timestamp_seconds')} or (({SINCE_XID}) unless on (uuid) {EVERY_INFO})"
    ],
    "MIG": [
        labelled("max by (uuid, gpu_instance_id, profile) (nvidia_smi_mig_info{$node})", one_info()),
        labelled(of_instance("mig_sm_activity_ratio", "$node")),
        labelled(of_instance("mig_memory_used_bytes", "$node")),
    ],
}
DASHBOARDS: Mapping[str, Panels] = {
    "variables": VARIABLES,
    "14574": ONE_GPU,
    "14574 of 1.1.0": ONE_GPU_BEFORE,
    "25547": SIDE_BY_SIDE,
}
