"""The source that the native dialect documents for each quantity is the call that reads it."""

import re

import pytest

from gpuledger.dialects.native.quantity_metrics import QUANTITY_METRICS
from gpuledger.model.quantities import PCIE_LINK_BUSY, PROFILING, QUANTITIES
from gpuledger.sources.nvml import queries
from gpuledger.sources.nvml.queries import GPM_QUERIES

# The call or field id that reads each quantity.
SOURCES = {
    **{quantity: group.call for group in queries.STRUCT_QUERIES for quantity in group.quantities},
    **dict.fromkeys(queries.MEMORY_QUANTITIES, queries.MEMORY_CALL),
    **dict(
        zip(queries.MIG_QUANTITIES, ("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"), strict=True)
    ),
    **{number.quantity: number.call for number in queries.NUMBER_QUERIES},
    **{field.quantity: f"NVML field {field.field_id}" for field in queries.FIELD_QUERIES},
    **{metric.quantity: queries.GPM_METRICS_CALL for metric in GPM_QUERIES},
    queries.NVLINK_RATE: "NVML fields 138 and 139",
    **dict.fromkeys(queries.LINK_QUANTITIES, "NVML field 165"),
    PCIE_LINK_BUSY: "nvmlDeviceGetPerformanceState",
}


def mentions(text: str, source: str) -> bool:
    if found := re.fullmatch(r"NVML field (\d+)", source):
        return bool(re.search(rf"NVML fields? [\d, and]*\b{found[1]}\b", text))
    return bool(re.search(rf"\b{source}\b", text))


def test_every_quantity_has_exactly_one_source():
    assert {quantity.key for quantity in SOURCES} == set(QUANTITIES)


def test_profiling_quantities_are_exactly_those_of_gpm():
    assert {metric.quantity for metric in GPM_QUERIES} == PROFILING


@pytest.mark.parametrize("metric", QUANTITY_METRICS, ids=lambda metric: metric.quantity.key)
def test_the_native_dialect_documents_the_call_that_reads_each_quantity(metric):
    assert mentions(metric.spec.source, SOURCES[metric.quantity])


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("NVML field 8", "NVML field 83"),
        ("NVML fields 197 and 198", "NVML field 19"),
        ("nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetPowerManagementLimit"),
    ],
)
def test_a_longer_or_shorter_name_is_not_a_mention(text, source):
    assert not mentions(text, source)
