"""Every flag of the newest release of each original: its default, written out, is accepted and changes
nothing but the choice of the dialect.

The tables were read from dcgm-exporter 4.5.3-4.8.2, nvidia_gpu_exporter 1.9, the later code of both, and
my-gpu-exporter.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.collectors import read_collectors
from gpuledger.config.commands import ALL_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import declared_settings

# Flag, variable, default.
DCGM_EXPORTER = """
-f DCGM_EXPORTER_COLLECTORS /etc/dcgm-exporter/default-counters.csv
-a DCGM_EXPORTER_LISTEN :9400
-c DCGM_EXPORTER_INTERVAL 30000
-k DCGM_EXPORTER_KUBERNETES false
-o DCGM_EXPORTER_USE_OLD_NAMESPACE false
-p DCGM_EXPORTER_CPU_DEVICES_STR f
-m DCGM_EXPORTER_CONFIGMAP_DATA none
-r DCGM_REMOTE_HOSTENGINE_INFO localhost:5555
--kubernetes-enable-pod-labels DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS false
--kubernetes-enable-pod-uid DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID false
--kubernetes-gpu-id-type DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE uid
--kubernetes-pod-label-allowlist-regex DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX
-d DCGM_EXPORTER_DEVICES_STR f
-n DCGM_EXPORTER_NO_HOSTNAME false
-s DCGM_EXPORTER_OTHER_DEVICES_STR f
--fake-gpus DCGM_EXPORTER_USE_FAKE_GPUS false
--web-config-file DCGM_EXPORTER_WEB_CONFIG_FILE
-x DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE 300000
--rbmn DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME false
--debug DCGM_EXPORTER_DEBUG false
--clock-events-count-window-size DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE 300000
--enable-dcgm-log DCGM_EXPORTER_ENABLE_DCGM_LOG false
--dcgm-log-level DCGM_EXPORTER_DCGM_LOG_LEVEL NONE
--log-format DCGM_EXPORTER_LOG_FORMAT text
--pod-resources-kubelet-socket DCGM_POD_RESOURCES_KUBELET_SOCKET /var/lib/kubelet/pod-resources/kubelet.sock
--hpc-job-mapping-dir DCGM_HPC_JOB_MAPPING_DIR
--nvidia-resource-names NVIDIA_RESOURCE_NAMES
--kubernetes-virtual-gpus KUBERNETES_VIRTUAL_GPUS false
--dump-enabled DCGM_EXPORTER_DUMP_ENABLED false
--dump-directory DCGM_EXPORTER_DUMP_DIRECTORY /tmp/dcgm-exporter-debug
--dump-retention DCGM_EXPORTER_DUMP_RETENTION 24
--dump-compression DCGM_EXPORTER_DUMP_COMPRESSION true
--kubernetes-enable-dra KUBERNETES_ENABLE_DRA false
--disable-startup-validate DISABLE_STARTUP_VALIDATE false
--enable-gpu-bind-unbind-watch DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH false
--gpu-bind-unbind-poll-interval DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL 1s
--enable-pprof DCGM_EXPORTER_ENABLE_PPROF false
--config-file DCGM_EXPORTER_CONFIG_FILE
--web-read-timeout DCGM_EXPORTER_WEB_READ_TIMEOUT 10s
--web-write-timeout DCGM_EXPORTER_WEB_WRITE_TIMEOUT 30s
--max-concurrent-scrapes DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES 16
--enable-exporter-metrics DCGM_EXPORTER_ENABLE_EXPORTER_METRICS false
--watch-max-keep-age DCGM_EXPORTER_WATCH_MAX_KEEP_AGE 10m0s
--watch-max-keep-samples DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES 0
--health-require-gpus DCGM_EXPORTER_HEALTH_REQUIRE_GPUS false
--container-labels DCGM_EXPORTER_CONTAINER_LABELS false
--container-runtime-socket DCGM_CONTAINER_RUNTIME_SOCKET
--web-systemd-socket DCGM_EXPORTER_SYSTEMD_SOCKET false
"""
NVIDIA_GPU_EXPORTER = """
--web.listen-address - :9835
--web.systemd-socket - false
--web.config.file -
--web.network - tcp
--web.read-timeout - 10s
--web.read-header-timeout - 10s
--web.write-timeout - 15s
--web.idle-timeout - 60s
--web.telemetry-path - /metrics
--web.max-requests - 40
--web.timeout-offset - 500ms
--web.enable-pprof - false
--nvidia-smi-command - nvidia-smi
--query-field-names - AUTO
--query-field-names-exclude -
--collect.backend - exec
--collect.interval - 0
--collect.timeout - 10s
--collect.compute-apps - false
--collect.compute-apps-mig - false
--collect.pcie-throughput - false
--demo-config -
--shutdown-on-error - false
--log.level - info
--log.format - logfmt
"""
MY_GPU_EXPORTER = """
--dcgm-update-frequency - 1s
--process-scan-interval - 10s
--kubernetes-enabled - true
--pod-resources-socket - /var/lib/kubelet/pod-resources/kubelet.sock
--metric-retention - 5m
--metric-prefix - my_gpu_process
--enable-energy-estimation - true
--gpu-idle-power - 0
--listen-address - :9400
--metrics-path - /metrics
--log-level - info
"""
ROWS = [
    (flag, "" if variable == "-" else variable, value)
    for line in (DCGM_EXPORTER + NVIDIA_GPU_EXPORTER + MY_GPU_EXPORTER).strip().splitlines()
    if line
    for flag, variable, value in [(line + "  ").split(" ", 2)]
    for value in [value.strip()]
]
# Defaults of the originals that are no defaults here, because their meaning is another one.
CHOICES = {
    "dialect",
    "slow_interval",
    "process_scan_interval",
    "source",
    "nvidia_smi.timeout",
    "smi.compute_apps",
    "listen_address",
    "kubernetes.enabled",
    "dcgm.collectors",
}
DEFAULTS = {
    item.key: default for group in NODE_GROUPS.values() for _, item, default in declared_settings(group)
}


def settings(*arguments: str, **variables: str) -> dict[str, Any]:
    given = parse_flags(
        build_parser("serve", "", "", NODE_GROUPS), NODE_GROUPS.values(), arguments, variables
    )
    found = load_values(NODE_GROUPS.values(), given.flags, variables, given.config, ALL_GROUPS)
    others = ("dcgm_exporter.", "nvidia_gpu_exporter.", "my_gpu_exporter.")
    return {key: value for key, value in found.items() if not key.startswith(others)}


def changed(found: dict[str, Any]) -> set[str]:
    return {key for key, value in found.items() if value != DEFAULTS[key]} - CHOICES


@pytest.mark.parametrize(("flag", "variable", "value"), ROWS, ids=[row[0] for row in ROWS])
def test_a_default_that_is_written_out_changes_nothing(flag: str, variable: str, value: str) -> None:
    assert changed(settings(f"{flag}={value}")) <= {"nvidia_smi.command", "nvidia_smi.query_field_names"}
    if variable:
        assert changed(settings(**{variable: value})) == set()
        assert changed(settings(**{variable: f" {value} "})) == set()


@pytest.mark.parametrize("name", ["default-counters", "dcp-metrics-included"])
def test_a_collectors_file_of_the_image_of_dcgm_exporter_stands_for_the_defaults(name: str) -> None:
    assert read_collectors(f"/etc/dcgm-exporter/{name}.csv") is DEFAULT_COLLECTORS
    with pytest.raises(UsageError, match="cannot read the collectors file"):
        read_collectors("/etc/dcgm-exporter/mine.csv")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--no-collect.compute-apps"], {"smi.compute_apps": False, "dialect": ("smi",)}),
        (["--no-web.enable-pprof", "--no-shutdown-on-error"], {}),
        (["--no-web.systemd-socket"], {"systemd_socket": False, "dialect": ("smi",)}),
        # A flag of dcgm-exporter that begins like a negation.
        (["--no-hostname"], {"dcgm.hostname_label": False, "dialect": ("dcgm",)}),
        (["--gpu-idle-power", "17"], {"energy.empty_watts": 17.0, "energy.resident_watts": 17.0}),
        (["--enable-energy-estimation=false"], {"energy.policy": "measured"}),
        (["--no-enable-energy-estimation"], {"energy.policy": "measured"}),
    ],
)
def test_negated_flags_of_kingpin_and_flags_of_my_gpu_exporter(arguments: list[str], found: Any) -> None:
    assert settings(*arguments) == found


def test_only_booleans_can_be_negated() -> None:
    with pytest.raises(UsageError, match=r"unknown flag '?--no-log\.level"):
        settings("--no-log.level")
