"""Receipts for tests, in the form of `gpuledger receipt --format json`."""

from __future__ import annotations

from typing import Any, cast

from gpuledger.ledger.report.receipt.content import (
    RECEIPT_VERSION,
    Amounts,
    ReceiptGpu,
    ReceiptHost,
    ReceiptJson,
)

GIB = 1 << 30
HOUR = 3600
BEGIN = 1_764_460_800.0


def amounts(**more: Any) -> Amounts:
    """One GPU-hour of 0.7 kWh, allocated and used all the time."""
    found: dict[str, Any] = {
        "gpu_microseconds": HOUR * 1_000_000,
        "estimated_microseconds": 0,
        "millijoules": 2_520_000_000,
        "measured_millijoules": 2_520_000_000,
        "high_millijoules": 2_520_000_000,
        "time_cost": "2.0000000000",
        "energy_cost": "0.2100000000",
        "cost": "2.2100000000",
        "unpriced_microseconds": 0,
        "unpriced_millijoules": 0,
        "co2_grams": 280.0,
        "allocated_seconds": 3600.0,
        "resident_seconds": 3600.0,
        "active_seconds": 3600.0,
        "held_seconds": 0.0,
        "unknown_seconds": 0.0,
        "sessions": 1,
    }
    return cast("Amounts", found | more)


def gpu_row(node: str = "n1", index: str = "0", **more: Any) -> ReceiptGpu:
    """A GPU of 80 GiB at half of its SM capacity for an hour."""
    found: dict[str, Any] = {
        **amounts(),
        "node": node,
        "uuid": f"GPU-{node}-{index}",
        "gpu_uuid": f"GPU-{node}-{index}",
        "index": index,
        "model": "NVIDIA H100 80GB HBM3",
        "instance": "",
        "profile": "",
        "sm_share": 1.0,
        "begins": BEGIN,
        "ends": BEGIN + HOUR,
        "first_active": BEGIN + 5,
        "last_active": BEGIN + HOUR - 5,
        "wait_seconds": 5,
        "gap_seconds": 0,
        "tail_seconds": 5,
        "present_seconds": HOUR,
        "begun_before": False,
        "unwatched_seconds": 0.0,
        "usage_complete": True,
        "memory_bytes": 80 * GIB,
        "memory_peak_bytes": 40 * GIB,
        "memory_mean_bytes": 30.0 * GIB,
        "sm_seconds": 1800.0,
        "sm_known_seconds": 3600.0,
        "sm_mean": 0.5,
        "sm_peak": 0.9,
        "throttled": {},
        "throttle_known_seconds": 3600.0,
        "pcie_rx_bytes": None,
        "pcie_tx_bytes": None,
        "nvlink_rx_bytes": None,
        "nvlink_tx_bytes": None,
        "bars": {"present": [3600], "active": [3600], "unknown": [0], "utilization": [0.5]},
    }
    return cast("ReceiptGpu", found | more)


def unused_gpu(node: str = "n1", index: str = "0", **more: Any) -> ReceiptGpu:
    """A GPU that was allocated for an hour, without a process."""
    never: dict[str, Any] = {
        "resident_seconds": 0.0,
        "active_seconds": 0.0,
        "held_seconds": 3600.0,
        "memory_peak_bytes": None,
        "memory_mean_bytes": None,
        "sm_seconds": 0.0,
        "sm_known_seconds": 0.0,
        "sm_mean": None,
        "sm_peak": None,
        "first_active": None,
        "last_active": None,
        "wait_seconds": HOUR,
        "bars": {"present": [3600], "active": [0], "unknown": [0], "utilization": [None]},
    }
    return gpu_row(node, index, **(never | more))


def host_row(node: str = "n1", **more: Any) -> ReceiptHost:
    """A job that used two of eight cores, and 12 of 64 GiB."""
    found: dict[str, Any] = {
        "node": node,
        "job": "4711",
        "seconds": 3600.0,
        "cpu_seconds": 7200.0,
        "cores": 8,
        "memory_peak_bytes": 12 * GIB,
        "memory_limit_bytes": 64 * GIB,
        "is_limited": False,
    }
    return cast("ReceiptHost", found | more)


def receipt(node: str = "n1", *gpus: ReceiptGpu, **more: Any) -> ReceiptJson:
    """The receipt that a node has of job 4711; without `gpus`, of one GPU."""
    rows = list(gpus) or [gpu_row(node)]
    owner = dict.fromkeys(
        ("namespace", "pod", "container", "unit", "slurm_account", "partition", "array_job", "array_task"), ""
    )
    owner |= {"kind": "slurm", "job": "4711", "user": "dan", "job_name": "train"}
    owner |= dict.fromkeys(("controller_kind", "controller", "queue"), "")
    found: dict[str, Any] = {
        "version": RECEIPT_VERSION,
        "program": "0.2.0",
        "nodes": [node],
        "simulated": False,
        "made": BEGIN + HOUR + 60,
        "who": {"kind": "job", "key": ["", "4711"], "name": "job 4711", "explain": "job:4711"},
        "owner": owner,
        "since": BEGIN,
        "until": BEGIN + HOUR + 60,
        "ledger_until": BEGIN + HOUR + 60,
        "begins": BEGIN,
        "ends": BEGIN + HOUR,
        "running": False,
        "zone": "UTC",
        "basis": "allocation",
        "currency": "EUR",
        "price_list": "a1b2",
        "total": amounts(),
        "gpus": rows,
        "processes": [],
        "processes_omitted": 0,
        "owners": [],
        "owners_omitted": 0,
        "hosts": [host_row(node)],
        "bars": {"begins": int(BEGIN), "step_seconds": HOUR, "count": 1},
        "advice": [],
        "notes": [],
    }
    return cast("ReceiptJson", found | more)
