"""A quantity, the call that reads it and what the catalogue says of it are of one mind."""

import re

import pytest

from gpuledger.dialects.native.devices import TOLD
from gpuledger.model.quantities import PROFILING, QUANTITIES
from gpuledger.sources.nvml import fields
from gpuledger.sources.nvml.fields import METRICS

# The call or field id that tells each quantity.
SOURCES = {
    **{quantity: group.call for group in fields.GROUPS for quantity in group.tells},
    **dict.fromkeys(fields.MEMORY, fields.MEMORY_CALL),
    **dict(zip(fields.CUT, ("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"), strict=True)),
    **{number.quantity: number.call for number in fields.NUMBERS},
    **{field.quantity: f"NVML field {field.field_id}" for field in fields.FIELDS},
    **{metric.quantity: fields.METRICS_CALL for metric in METRICS},
    fields.LINK_RATE: "NVML fields 138 and 139",
}


def mentions(text: str, source: str) -> bool:
    if found := re.fullmatch(r"NVML field (\d+)", source):
        return bool(re.search(rf"NVML fields? [\d, and]*\b{found[1]}\b", text))
    return bool(re.search(rf"\b{source}\b", text))


def test_every_quantity_has_one_source():
    assert {quantity.key for quantity in SOURCES} == set(QUANTITIES)


def test_profiling_is_what_gpm_tells_and_nothing_else():
    assert {metric.quantity for metric in METRICS} == PROFILING


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.quantity.key)
def test_the_native_dialect_names_the_call_that_is_made(told):
    assert mentions(told.spec.source, SOURCES[told.quantity])


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
