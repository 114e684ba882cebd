"""Panels of throttling, errors and links of GPUs."""

from __future__ import annotations

from panels import GOOD_IS_ZERO, GREEN, ORANGE, Column, Panel, Query, series, table
from promql import deduplicated, growth, named_gpu, of_gpu, per_gpu, rise, total_by_value

GPU_LEGEND = "{{node}} GPU {{gpu}}"
# Without low_utilization: the GPU has little to do.
THROTTLE_REASONS = (
    "board_limit",
    "hardware_thermal",
    "power",
    "power_brake",
    "reliability",
    "software_thermal",
    "sync_boost",
    "thermal",
)
_GPU_COLUMNS = {"node": "Node", "gpu": "GPU", "name": "Model", "uuid": "UUID"}


def throttling() -> Panel:
    """Returns the panel of reduced clocks."""

    def rates(matcher: str) -> str:
        reduced = of_gpu("gpuledger_device_throttled_seconds_total", matcher)
        return deduplicated(f"rate({reduced}[$__rate_interval])", "uuid", "reason")

    return series(
        "Throttled GPUs by reason",
        "Number of GPUs with reduced clocks, by reason. A GPU that was throttled half of the time counts as "
        "0.5. The reasons software_thermal, hardware_thermal and power_brake overlap with the others.",
        [Query(total_by_value("reason", THROTTLE_REASONS, rates), "{{reason}}")],
        decimals=1,
        empty="No GPU reports throttled time",
    )


def per_xid(family: str) -> str:
    """Selects a family of Xids, each once per GPU."""
    return deduplicated(of_gpu(family), "uuid", "xid")


def errors() -> list[Panel]:
    """Returns the panels of Xids, ECC errors and remapped memory rows."""
    ecc = growth("ecc_errors", ("uuid", "type"))
    lifetime = deduplicated(of_gpu("gpuledger_device_ecc_errors_total"), "uuid", "type")
    xids = [
        Column(
            "Count",
            named_gpu(per_xid("gpuledger_device_xid_errors_total"), "name"),
            decimals=0,
            steps=((None, ORANGE),),
        ),
        Column(
            "Last",
            f"{named_gpu(per_xid('gpuledger_device_xid_last_timestamp_seconds'), 'name')} * 1000",
            "dateTimeAsIso",
        ),
    ]
    return [
        table(
            "Xid errors",
            "Errors of the driver by number, since gpuledger started. 13, 31 and 43 are mostly caused by "
            "applications; 48, 63, 64, 74, 79, 92, 94, 95, 119 and 120 by the GPU.",
            {"node": "Node", "gpu": "GPU", "name": "Model", "xid": "Xid", "uuid": "UUID"},
            xids,
            empty="No Xid error since gpuledger started",
            sort="Last",
            size=(12, 8),
        ),
        table(
            "ECC errors",
            "Errors in the time range and over the lifetime of the board. Corrected errors are harmless; "
            "check a board with uncorrected errors.",
            {"node": "Node", "gpu": "GPU", "name": "Model", "type": "Type", "uuid": "UUID"},
            [
                Column("In the time range", named_gpu(ecc, "name"), decimals=0),
                Column("Total", named_gpu(lifetime, "name"), decimals=0),
            ],
            empty="No GPU reports ECC errors",
            sort="Total",
            size=(12, 8),
        ),
        _remapped_rows(),
    ]


def _remapped_rows() -> Panel:
    def column(title: str, family: str, *matchers: str, bad: bool = True) -> Column:
        values = named_gpu(per_gpu(f"gpuledger_device_{family}", *matchers), "name")
        return Column(title, values, decimals=0, steps=GOOD_IS_ZERO if bad else None)

    return table(
        "Remapped memory rows",
        "Memory rows remapped over the lifetime of the board. Pending rows are remapped at the next reset; "
        "after a failed remapping, replace the board.",
        _GPU_COLUMNS,
        [
            column("Uncorrected", "remapped_rows_total", 'type="uncorrectable"'),
            column("Corrected", "remapped_rows_total", 'type="correctable"', bad=False),
            column("Pending reset", "row_remap_pending"),
            column("Failed", "row_remap_failed"),
        ],
        empty="No GPU reports remapped rows (Ampere and newer)",
        sort="Uncorrected",
        size=(24, 8),
    )


def _moved(link: str) -> list[Query]:
    moved = of_gpu(f"gpuledger_device_{link}_bytes_total")
    rate = deduplicated(f"rate({moved}[$__rate_interval])", "uuid", "direction")
    return [Query(named_gpu(rate), f"{GPU_LEGEND} {{{{direction}}}}")]


def links() -> list[Panel]:
    """Returns the panels of PCIe and NVLink."""
    replays = rise("pcie_replays", ("uuid",))
    return [
        series(
            "PCIe throughput",
            "Bytes per second seen from the GPU: transmit is sent by the GPU. The hardware counter can wrap.",
            _moved("pcie"),
            unit="Bps",
            decimals=1,
            empty="No GPU reports PCIe bytes",
        ),
        series(
            "NVLink throughput",
            "Bytes of payload per second over all links of the GPU, as seen from the GPU.",
            _moved("nvlink"),
            unit="Bps",
            decimals=1,
            empty="No GPU reports NVLink bytes",
        ),
        table(
            "PCIe replays",
            "Replays in the time range and since driver load. Many replays indicate a bad slot, riser or "
            "board.",
            _GPU_COLUMNS,
            [
                Column(
                    "In the time range",
                    named_gpu(replays, "name"),
                    decimals=0,
                    steps=((None, GREEN), (10, ORANGE)),
                ),
                Column(
                    "Total", named_gpu(per_gpu("gpuledger_device_pcie_replays_total"), "name"), decimals=0
                ),
            ],
            empty="No GPU reports PCIe replays",
            sort="In the time range",
            size=(12, 8),
        ),
    ]
