"""One scenario per alert, and scenarios in which nothing may fire.

A scenario says which series differ from those of a healthy target, and what fires when.

All scenarios are evaluated together: each has its own target, GPU and label `cluster`.
"""

from __future__ import annotations

from alert_page import Series, declared
from alert_targets import LENGTH, Scenario


def _xid(number: int) -> Series:
    """An Xid after five minutes."""
    return declared("gpuledger_device_xid_last_timestamp_seconds", "_x9 300x200", uuid="GPU", xid=str(number))


def _meaning(number: int, text: str) -> Series:
    return declared("gpuledger_xid_info", "_x9 1x200", xid=str(number), meaning=text)


def _down(reason: str) -> Series:
    """The reason for which a GPU is down from the sixth minute on."""
    values = "_x11 1x20 stale"
    return declared("gpuledger_device_down", values, uuid="GPU", mig_instance="", reason=reason)


def _smi(reason: str, values: str) -> Series:
    return Series(f"nvidia_smi_clocks_event_reasons_{reason}", {"uuid": ""}, values)


def _dcgm(field_name: str, values: str) -> Series:
    return Series(f"DCGM_FI_DEV_{field_name}", {"UUID": "GPU", "gpu": "0"}, values)


THROTTLED = "gpuledger_device_throttled_seconds_total"
HELD = "gpuledger_owner_held_seconds_total"
SNAPSHOT = "gpuledger_snapshot_timestamp_seconds"
ALLOCATED = "gpuledger_device_allocated_ratio"
RISING = f"0+30x{LENGTH}"
# For 17 minutes, from the sixth on.
BREAKS = "1x10 0x33 1x155"
BEGINS = "0x10 1x33 0x155"

SCENARIOS = (
    Scenario("healthy", {10: "", 80: "", 95: ""}),
    Scenario("healthy-agent", {10: "", 80: "", 95: ""}, kind="agent"),
    Scenario("healthy-operator", {10: "", 80: "", 95: ""}, kind="operator"),
    # Alerts that also fire on healthy machines.
    Scenario(
        "utilization",
        {4: "", 7: "HighGPUUtilization", 30: ""},
        {"gpuledger_device_utilization_ratio": "0.95x40 0.2x159"},
    ),
    Scenario(
        "process",
        {10: "", 30: "LongRunningGPUProcess"},
        {"gpuledger_process_start_time_seconds": "-6000x200"},
        labels={"pod": "train-0", "namespace": "ml", "command": "python3", "gpu": "0"},
    ),
    Scenario(
        "memory",
        {8: "", 12: "GPUMemoryNearlyFull"},
        {"gpuledger_device_memory_used_bytes": "97x200", "gpuledger_device_memory_free_bytes": "3x200"},
    ),
    Scenario("power-limit", {60: "", 75: "GPUPowerThrottling"}, {f'{THROTTLED}{{reason="power"}}': RISING}),
    # The pod of the healthy GPU serves a model, with a tenth of the requests after 40 minutes.
    Scenario(
        "dear-tokens",
        {60: "", 99: "GPUCostPerTokenDoubled"},
        also=(
            Series(
                "vllm:generation_tokens_total",
                {"namespace": "ml", "pod": "train-0", "model_name": "m", "job": "engines"},
                "0+30000x80 2403000+3000x119",
            ),
        ),
        labels={"namespace": "ml", "model_name": "m"},
    ),
    # Hardware.
    Scenario(
        "lost",
        {5: "", 8: "GPULost", 20: ""},
        {"gpuledger_device_up": "1x10 0x20 1x169"},
        also=(_down("GPU_IS_LOST"),),
        labels={"gpu": "0", "name": "NVIDIA H100 80GB HBM3", "service": "monitor-1", "reason": "GPU_IS_LOST"},
    ),
    Scenario(
        "lost-without-reason", {5: "", 8: "GPULost", 20: ""}, {"gpuledger_device_up": "1x10 0x20 1x169"}
    ),
    Scenario(
        "recovery", {5: "", 8: "GPURecoveryNeeded", 30: ""}, {"gpuledger_device_recovery_action": BEGINS}
    ),
    Scenario(
        "xid-79",
        {4: "", 6: "GPUXidFatal", 27: ""},
        also=(_xid(79), _meaning(79, "off the bus")),
        labels={"xid": "79", "gpu": "0", "meaning": "off the bus"},
    ),
    Scenario("xid-94", {4: "", 6: "GPUXidResetWanted", 27: ""}, also=(_xid(94),), labels={"xid": "94"}),
    Scenario("xid-of-programs", {6: "", 10: ""}, also=tuple(map(_xid, (13, 31, 43, 45)))),
    # The exporter is restarted after the Xid, and does not know it any more.
    Scenario(
        "xid-restart",
        {10: "GPUXidFatal", 19: "GPUXidFatal", 27: ""},
        also=(
            declared("gpuledger_device_xid_last_timestamp_seconds", "_x9 300x2 stale", uuid="GPU", xid="119"),
        ),
    ),
    Scenario(
        "ecc",
        {9: "", 15: "GPUUncorrectedECCErrors", 80: ""},
        {'gpuledger_device_ecc_errors_total{type="uncorrected"}': "0x20 1x179"},
    ),
    Scenario(
        "old-ecc",
        {1: "", 10: "", 80: ""},
        {
            'gpuledger_device_ecc_errors_total{type="uncorrected"}': "7x200",
            'gpuledger_device_ecc_errors_total{type="corrected"}': "0+5x200",
        },
    ),
    Scenario(
        "remap-failed", {5: "", 7: "GPURowRemapFailed", 30: ""}, {"gpuledger_device_row_remap_failed": BEGINS}
    ),
    Scenario(
        "repair",
        {14: "", 18: "GPUMemoryRepairPending", 30: ""},
        {"gpuledger_device_row_remap_pending": BEGINS},
    ),
    Scenario(
        "hot",
        {9: "", 13: "GPUThermalThrottling", 30: ""},
        {f'{THROTTLED}{{reason="thermal"}}': "0x10 0+30x26 780x162"},
    ),
    # A third of the time: the fans answer, no fault.
    Scenario("warm", {18: "", 30: ""}, {f'{THROTTLED}{{reason="thermal"}}': "0+10x200"}),
    Scenario(
        "power-brake",
        {4: "", 9: "GPUPowerBrake", 30: ""},
        {f'{THROTTLED}{{reason="power_brake"}}': "0x10 0+30x26 780x162"},
    ),
    # The driver has no native counters, or an older version of the exporter: another dialect has the states.
    Scenario(
        "hot-smi",
        {9: "", 13: "GPUThermalThrottling", 30: ""},
        {THROTTLED: None},
        also=(_smi("sw_thermal_slowdown", BEGINS), _smi("hw_thermal_slowdown", "0x200")),
    ),
    Scenario(
        "hot-dcgm",
        {9: "", 13: "GPUThermalThrottling", 30: ""},
        {THROTTLED: None},
        also=(_dcgm("CLOCKS_EVENT_REASONS", "5x10 96x26 5x162"),),
    ),
    Scenario(
        "brake-dcgm",
        {9: "", 13: "GPUPowerBrake"},
        {THROTTLED: None},
        also=(_dcgm("CLOCK_THROTTLE_REASONS", "4x20 128x179"),),
    ),
    # A collectors file with both names of a field.
    Scenario(
        "both-names-dcgm",
        {9: "", 13: "GPUPowerBrake"},
        {THROTTLED: None, "gpuledger_device_row_remap_failed": None},
        also=(
            *(_dcgm(f"CLOCK{name}_REASONS", "4x20 128x179") for name in ("S_EVENT", "_THROTTLE")),
            *(_dcgm(f"ROW_REMAP_{name}", "0x200") for name in ("FAILURE", "FAILED")),
        ),
    ),
    Scenario(
        "power-limit-smi",
        {58: "", 75: "GPUPowerThrottling"},
        {THROTTLED: None},
        also=(_smi("sw_power_cap", "1x200"),),
    ),
    Scenario(
        "remap-failed-dcgm",
        {9: "", 12: "GPURowRemapFailed"},
        {"gpuledger_device_row_remap_failed": None},
        also=(_dcgm("ROW_REMAP_FAILURE", "0x20 1x179"),),
    ),
    Scenario(
        "retired-pages-smi",
        {19: "", 23: "GPUMemoryRepairPending"},
        {"gpuledger_device_row_remap_pending": None},
        also=(Series("nvidia_smi_retired_pages_pending", {"uuid": ""}, "0x20 1x179"),),
    ),
    Scenario(
        "earlier-version",
        {30: "", 90: ""},
        {
            THROTTLED: None,
            "gpuledger_device_row_remap_failed": None,
            "gpuledger_device_row_remap_pending": None,
            "gpuledger_device_recovery_action": None,
            "gpuledger_gpu_price": None,
        },
    ),
    # Owners.
    Scenario(
        "idle",
        {45: "", 75: "GPUHeldIdle"},
        {HELD: RISING},
        labels={"pod": "train-0", "namespace": "ml", "gpu": "0"},
    ),
    Scenario("half-idle", {75: "", 95: ""}, {HELD: "0+15x200"}),
    Scenario("no-longer-idle", {75: "GPUHeldIdle", 90: ""}, {HELD: "0+30x152 4560x47"}),
    Scenario(
        "reservation", {75: "", 95: ""}, {HELD: RISING}, relabel={"namespace": "kai-resource-reservation"}
    ),
    Scenario("device-plugin", {75: "", 95: ""}, {HELD: RISING}, relabel={"namespace": "gpu-operator"}),
    Scenario("monitoring-claim", {75: "", 95: ""}, {HELD: RISING, ALLOCATED: "0x200"}),
    # The target.
    Scenario(
        "down",
        {12: "", 18: "GPULedgerDown InstanceDown", 60: "GPULedgerDown InstanceDown"},
        {"up": "1x20 0x179"},
        stops=20,
    ),
    Scenario("flapping", {20: "", 90: ""}, {"up": "1 1 0 1 0 " * 40}),
    # kube-state-metrics; the nodes of `Scenario.target`.
    Scenario(
        "maintenance",
        {18: "InstanceDown", 95: "InstanceDown"},
        {"up": "1x20 0x179"},
        also=(Series("kube_node_spec_unschedulable", {"instance": "ksm:8080"}, "0x18 1x181"),),
        stops=20,
    ),
    Scenario("removed", {12: "", 18: "", 95: ""}, {"up": "1x20 stale"}, stops=20),
    Scenario(
        "never-answered",
        {4: "", 8: "GPULedgerDown InstanceDown"},
        also=(Series("up", {"instance": "10.0.0.2:9400"}, "0x200"),),
        labels={"instance": "10.0.0.2:9400"},
    ),
    Scenario("stale", {10: "", 16: "GPULedgerStale"}, {SNAPSHOT: "0+30x20 600x179"}),
    Scenario(
        "file-of-5-minutes",
        {20: "", 44: "", 49: ""},
        {SNAPSHOT: " ".join(f"{300 * number}x9" for number in range(LENGTH // 10))},
        also=(Series("node_textfile_scrape_error", {}, f"0x{LENGTH}"),),
    ),
    Scenario(
        "file-not-written",
        {24: "", 32: "GPULedgerStale"},
        {SNAPSHOT: "0+30x20 600x179"},
        also=(Series("node_textfile_scrape_error", {}, f"0x{LENGTH}"),),
    ),
    Scenario("stalled", {5: "", 9: "GPULedgerStale"}, {"gpuledger_tick_stalled": BEGINS}),
    Scenario("no-reading", {1: "", 4: "GPULedgerStale"}, {SNAPSHOT: None}),
    Scenario("paused", {10: "", 20: ""}, {SNAPSHOT: None, "gpuledger_paused": "1x200"}),
    Scenario(
        "collector",
        {9: "", 12: "GPULedgerCollectorFailing", 30: ""},
        {'gpuledger_collector_success{collector="ledger"}': BREAKS},
        labels={"collector": "ledger"},
    ),
    Scenario("devices-fail", {12: "", 25: ""}, {'gpuledger_collector_success{collector="devices"}': BREAKS}),
    Scenario(
        "owner-index",
        {14: "", 18: "GPUOwnerMappingBroken", 30: ""},
        also=(declared("gpuledger_map_success", BREAKS, map="pods"),),
        labels={"map": "pods"},
    ),
    Scenario(
        "no-owner",
        {9: "", 22: "GPUProcessesWithoutOwner", 30: ""},
        also=(declared("gpuledger_unresolved_processes", BEGINS, reason="not_found"),),
    ),
    Scenario(
        "imbalance",
        {4: "", 8: "GPULedgerBooksOutOfBalance", 30: ""},
        {"gpuledger_energy_imbalance_joules": BEGINS},
    ),
    Scenario(
        "account-lost",
        {3: "GPULedgerBooksOutOfBalance"},
        {"gpuledger_device_energy_joules_total": "0+18000x200"},
    ),
    Scenario(
        "settings",
        {9: "", 12: "GPULedgerConfigNotLoaded", 30: ""},
        {"gpuledger_config_last_reload_success": BREAKS},
    ),
    Scenario("simulated", {1: "GPUDataSimulated", 90: "GPUDataSimulated"}, simulated=True),
    # Agent and operator.
    Scenario(
        "agent-down",
        {12: "", 18: "GPULedgerAgentDown InstanceDown", 60: "GPULedgerAgentDown InstanceDown"},
        {"up": "1x20 0x179"},
        kind="agent",
        stops=20,
    ),
    Scenario(
        "receiver-down",
        {19: "", 27: "GPULedgerAgentNotDelivering"},
        {"gpuledger_agent_queue_oldest_timestamp_seconds": "0+30x20 600x179"},
        kind="agent",
        labels={"receiver": "store"},
    ),
    Scenario(
        "dropped",
        {4: "", 8: "GPULedgerAgentSamplesDropped", 30: ""},
        {'gpuledger_agent_dropped_samples_total{reason="age"}': "0x10 0+500x10 5000x178"},
        kind="agent",
    ),
    # The agent is restarted: its counters begin again.
    Scenario(
        "dropped-before",
        {20: "", 60: ""},
        {'gpuledger_agent_dropped_samples_total{reason="age"}': "900x20 0x179"},
        kind="agent",
    ),
    Scenario(
        "targets-down",
        {9: "", 22: "GPULedgerAgentTargetsDown", 30: ""},
        {
            'gpuledger_agent_targets{state="down"}': "1x10 9x33 1x155",
            'gpuledger_agent_targets{state="up"}': "9x10 1x33 9x155",
        },
        kind="agent",
        labels={"group": "gpus"},
    ),
    Scenario(
        "watch",
        {14: "", 18: "GPULedgerAgentDiscoveryFailing", 30: ""},
        {"gpuledger_agent_watch_up": BREAKS},
        kind="agent",
        labels={"watch": "pods"},
    ),
    Scenario(
        "agent-settings",
        {9: "", 12: "GPULedgerAgentConfigNotLoaded", 30: ""},
        {"gpuledger_agent_config_last_reload_success": BREAKS},
        kind="agent",
    ),
    Scenario(
        "operator-down",
        {14: "", 23: "GPULedgerOperatorDown InstanceDown"},
        {"up": "1x20 0x179"},
        kind="operator",
        stops=20,
    ),
    Scenario(
        "no-leader",
        {9: "", 12: "GPULedgerOperatorNoLeader", 30: ""},
        {"gpuledger_operator_leading": BREAKS},
        kind="operator",
    ),
    Scenario(
        "reconcile-errors",
        {9: "", 40: "GPULedgerOperatorFailing"},
        {
            'gpuledger_operator_reconciles_total{result="error"}': "3x20 3+1x179",
            'gpuledger_operator_reconciles_total{result="success"}': "0+1x20 20x179",
        },
        kind="operator",
    ),
    Scenario(
        "some-reconcile-errors",
        {40: ""},
        {'gpuledger_operator_reconciles_total{result="error"}': "0+1x200"},
        kind="operator",
    ),
    Scenario(
        "degraded",
        {19: "", 22: "GPULedgerMonitorDegraded", 30: ""},
        {'gpuledger_operator_monitor_condition{condition="Degraded"}': BEGINS},
        kind="operator",
        labels={"name": "gpus", "kind": "GpuMonitor"},
    ),
)
