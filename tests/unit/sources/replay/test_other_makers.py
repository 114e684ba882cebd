"""Recordings of GPUs of AMD and Intel: what is kept, and in which form identifiers are masked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from builders import gpu, reading, snapshot
from gpuledger.model.devices import AMD, INTEL, Gpu, Instance
from gpuledger.model.snapshot import MeterRules
from gpuledger.sources.replay.masking import Masker
from unit.sources.replay.support import read, write

CARD = Gpu(
    "GPU-1901ead3a2ecd4a6",
    0,
    "AMD Instinct MI300X",
    "0000:63:00.0",
    vendor=AMD,
    nodes=("card0", "renderD128"),
)
PART = Instance(f"{CARD.uuid}/3", CARD, 3, 0, 3, "cpx_nps4", 38, ("renderD131", "amdgpu_xcp_3"))
ARC = Gpu("PCI-0000:03:00.0-8086:e20b", 1, "Intel Arc B580", "0000:03:00.0", vendor=INTEL)
RULES = MeterRules("card", starts_at_zero=False, basis="occupancy", listed=True)


def test_maker_names_and_rules_are_recorded(tmp_path: Path) -> None:
    before = snapshot(
        reading(CARD, rules=RULES), reading(PART, rules=RULES), reading(ARC, rules=RULES), reading(gpu(2))
    )
    (after,) = read(write(tmp_path / "r", [before]))
    assert after == before
    for old, new in zip(before.readings, after.readings, strict=True):
        assert (new.device.gpu.vendor, new.device.nodes, new.rules) == (
            old.device.gpu.vendor,
            old.device.nodes,
            old.rules,
        )


@pytest.mark.parametrize("device", [CARD, PART])
def test_a_unique_id_is_masked_in_its_form(device: Gpu | Instance) -> None:
    masked = Masker(b"k" * 32)(snapshot(reading(device, rules=RULES)))
    uuid = masked.readings[0].device.uuid
    assert uuid != device.uuid
    assert (len(uuid), uuid[:4], uuid[20:]) == (len(device.uuid), "GPU-", device.uuid[20:])
    # A partition is still one of its GPU.
    assert uuid.startswith(masked.readings[0].device.gpu.uuid)
    assert masked.readings[0].rules == RULES
    assert masked.readings[0].device.nodes == device.nodes


def test_an_address_identifies_no_machine_and_is_kept() -> None:
    masked = Masker(b"k" * 32)(snapshot(reading(ARC)))
    assert masked.readings[0].device.uuid == ARC.uuid


def test_the_machine_of_an_identity_is_masked_in_its_form() -> None:
    machine = "7a1f0c93b2de"
    masked = Masker(b"k" * 32)(snapshot(reading(replace(ARC, uuid=f"{ARC.uuid}-{machine}"))))
    uuid = masked.readings[0].device.uuid
    assert re.fullmatch(re.escape(ARC.uuid) + "-[0-9a-f]{12}", uuid)
    assert machine not in uuid


@pytest.mark.parametrize("uuid", ["GPU-1901ead3a2ecd4a", "GPU-1901EAD3A2ECD4A6", "GPU-zz"])
def test_another_form_is_masked_as_before(uuid: str) -> None:
    masked = Masker(b"k" * 32)(snapshot(reading(replace(CARD, uuid=uuid))))
    assert uuid not in masked.readings[0].device.uuid
    assert len(masked.readings[0].device.uuid) == len("GPU-") + 36
