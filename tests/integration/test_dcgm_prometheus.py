"""Replaces dcgm-exporter: its environment variables and dashboard queries, with a real Prometheus."""

from __future__ import annotations

from running import prometheus, promtool_check, serving_prepared

CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: dcgm-exporter
    honor_labels: true
    static_configs: [{{targets: ["{target}"]}}]
"""

# The queries of the panels and variables of dcgm-exporter's dashboard.
OF = '{instance=~".+", gpu=~"0|1|2|3|4|5|6|7"}'
DASHBOARD = [
    f"DCGM_FI_DEV_GPU_TEMP{OF}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{OF})",
    f"DCGM_FI_DEV_POWER_USAGE{OF}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{OF})",
    f"DCGM_FI_DEV_SM_CLOCK{OF} * 1000000",
    f"DCGM_FI_DEV_GPU_UTIL{OF}",
    f"DCGM_FI_DEV_FB_USED{OF}",
    f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{OF}",
]

# The families and labels that document 002 lists.
FAMILIES = [
    *("DEV_SM_CLOCK", "DEV_MEM_CLOCK", "DEV_POWER_USAGE", "DEV_PSTATE", "DEV_GPU_TEMP", "DEV_GPU_UTIL"),
    *("PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES", "DEV_FB_TOTAL", "DEV_FB_FREE", "DEV_FB_USED"),
    *("DEV_FB_RESERVED", "DEV_FB_USED_PERCENT", "DEV_ECC_SBE_AGG_TOTAL", "DEV_ECC_DBE_AGG_TOTAL"),
    *("PROF_GR_ENGINE_ACTIVE", "PROF_SM_ACTIVE", "PROF_SM_OCCUPANCY", "PROF_PIPE_TENSOR_ACTIVE"),
    "PROF_DRAM_ACTIVE",
]
LABELS = [
    *("DRIVER_VERSION", "NVML_VERSION", "DEV_NAME", "DEV_SERIAL", "DEV_UUID", "DEV_COMPUTE_MODE"),
    *("DEV_PERSISTENCE_MODE", "DEV_VIRTUAL_MODE", "DEV_MIG_MODE", "DEV_MIG_MAX_SLICES"),
    *("DEV_MIG_GI_INFO", "DEV_MIG_CI_INFO"),
]
DOCUMENT = [
    *(f"DCGM_FI_{family}" for family in FAMILIES),
    *(f'DCGM_FI_DEV_FB_USED{{DCGM_FI_{label}!=""}}' for label in LABELS),
]

BEYOND = [
    "sum by (namespace, pod) (DCGM_FI_DEV_POWER_USAGE)",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[10s]) / 1000",
    'DCGM_FI_DEV_FB_USED{GPU_I_PROFILE!="", GPU_I_ID!="", pod!=""}',
    "count by (gpu) (DCGM_FI_DEV_POWER_USAGE) == 1",
]


def test_queries_of_the_dashboard_and_the_document_return_results() -> None:
    environment = {"DCGM_EXPORTER_KUBERNETES": "true", "DCGM_EXPORTER_INTERVAL": "1000"}
    with (
        serving_prepared("--source", "simulator", env=environment) as server,
        prometheus(CONFIG.format(target=f"127.0.0.1:{server.port}")) as real,
    ):
        real.wait_query("DCGM_FI_DEV_GPU_TEMP")
        for query in (*DASHBOARD, *DOCUMENT, *BEYOND):
            real.wait_query(query)
        assert real.query("count by (gpu) (DCGM_FI_DEV_POWER_USAGE) > 1") == []
        assert real.query('{job="dcgm-exporter", __name__!~"DCGM_.*|up|scrape_.*"}') == []


def test_promtool_complains_only_about_names_of_dcgm_exporter() -> None:
    with serving_prepared("--source", "simulator", "--dialect", "dcgm") as server:
        server.wait_ticks(2)
        page = server.get().text
    assert "DCGM_FI_DEV_GPU_TEMP" in page
    names = {
        "metric name should not include type 'counter'",
        "label names should be written in 'snake_case' not 'camelCase'",
        'counter metrics should have "_total" suffix',
    }
    assert {line.partition(" ")[2] for line in promtool_check(page)[1]} == names
