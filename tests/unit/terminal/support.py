"""Small snapshots in the format of `/api/v1/snapshot`."""

from __future__ import annotations

from gpuledger.terminal.snapshot import parse_snapshot

NOW = 1_700_000_000.0
GIB = 2**30
OWNER = {"owner_kind": "", "namespace": "", "pod": "", "container": "", "user": "", "job": ""}


def uuid(gpu):
    return f"GPU-{int(gpu):08}-aaaa-bbbb-cccc-000000000000"


def device(gpu="0", instance="", **changes):
    return {
        "uuid": uuid(gpu),
        "gpu": gpu,
        "instance": instance,
        "name": "NVIDIA H100 80GB HBM3",
        "profile": "1g.10gb" if instance else "",
        "pci_bus_id": "00000000:1A:00.0",
        "up": True,
        "holds_processes": True,
        "state": "idle",
        "utilization_ratio": 0.0,
        "memory_used_bytes": 0,
        "memory_total_bytes": 80 * GIB,
        "power_watts": 70.0,
        "power_limit_watts": 700.0,
        "temperature_celsius": 32,
        "processes": 0,
        "sessions": 0,
        "energy_joules": 1234.5,
        "owners": [],
        **changes,
    }


def holder(processes=1, held=0.0, present=True, **owner):
    return {
        **OWNER,
        **owner,
        "present": present,
        "processes": processes,
        "held_seconds": held,
        "allocated_seconds": 0.0,
    }


def problem(kind, level="warning", label="", **changes):
    return {
        "kind": kind,
        "level": level,
        "label": label,
        "summary": "",
        "remedy": "",
        "since": None,
        "count": 1,
        "ratio": None,
        "observed_seconds": None,
        **changes,
    }


def process(pid=1, gpu="0", **changes):
    return {
        "uuid": uuid(gpu),
        "gpu": gpu,
        "instance": "",
        "pid": pid,
        "count": None,
        "command": "python",
        "types": ["C"],
        **OWNER,
        "memory_bytes": GIB,
        "sm_ratio": 0.5,
        "memory_bandwidth_ratio": 0.25,
        "power_watts": 100.0,
        "joules": 2000.0,
        "measured_joules": 500.0,
        "start_unix": NOW - 60,
        "start_exact": True,
        "unresolved": "",
        **changes,
    }


def snapshot(devices=None, processes=(), status=(), source=(), **changes):
    return {
        "version": "v1",
        "gpuledger": "0.2.0",
        "node": "node-1",
        "unix": NOW,
        "tick": 7,
        "source": {
            "name": "nvml",
            "simulated": False,
            "detail": "",
            "driver_version": "570.1",
            "cuda_version": "12.8",
            **dict(source),
        },
        "status": {
            "text": "ok",
            "healthy": True,
            "stalled": False,
            "readings": True,
            "paused": False,
            "paused_until": None,
            "interval_seconds": 1.0,
            **dict(status),
        },
        "devices_complete": True,
        "devices": [device()] if devices is None else list(devices),
        "processes": list(processes),
        **changes,
    }


def parsed(*arguments, **changes):
    return parse_snapshot(snapshot(*arguments, **changes))


def rows(*processes):
    return parsed(processes=processes).processes
