"""DRM fdinfo: published clients value for value, and the forms of drm-usage-stats.rst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drm_machine import amd_client, file_bytes, load_dump, xe_client
from gpuledger.sources.drm.fdinfo import parse_fdinfo

EXPECTED = load_dump("fdinfo")["expected"]
MIB = 1 << 20


@pytest.mark.parametrize("name", ["i915-chromeos.txt", "xe-kernel-doc.txt"])
def test_every_value_of_a_published_client_is_read(name: str) -> None:
    client = parse_fdinfo(file_bytes(load_dump("fdinfo")["files"][name]).decode())
    expected = EXPECTED[name]
    assert client is not None
    assert (client.driver, client.address, client.client_id) == (
        expected["driver"],
        expected["pdev"],
        expected["client_id"],
    )
    assert client.engines == expected["engines_ns"]
    assert client.cycles == expected["cycles"]
    assert client.total_cycles == expected["total_cycles"]
    assert client.capacity == expected["capacity"]
    assert client.memory == expected["memory_bytes"]


# The clients of which only the values may be published, written from their expected values.
@pytest.mark.parametrize(
    "name", ["amdgpu-new-keys.txt", "amdgpu-old-keys.txt", "i915-kernel-doc.txt", "i915-manpage.txt"]
)
def test_a_client_written_from_its_values_is_read_back(name: str) -> None:
    given_ = EXPECTED[name]
    lines = [f"drm-driver:\t{given_['driver']}", f"drm-client-id: {given_['client_id']}"]
    lines += [f"drm-pdev:\t{given_['pdev']}"]
    lines += [f"drm-engine-{engine}:\t{amount} ns" for engine, amount in given_["engines_ns"].items()]
    lines += [f"drm-engine-capacity-{engine}:\t{count}" for engine, count in given_["capacity"].items()]
    for region, kinds in given_["memory_bytes"].items():
        lines += [f"drm-{kind}-{region}:\t{amount // 1024} KiB" for kind, amount in kinds.items()]
    client = parse_fdinfo("\n".join(lines))
    assert client is not None
    assert client.engines == given_["engines_ns"]
    assert client.capacity == given_["capacity"]
    assert client.memory == given_["memory_bytes"]


def test_an_accelerator_is_no_gpu() -> None:
    assert (
        parse_fdinfo(file_bytes(load_dump("fdinfo")["files"]["amdxdna-npu-not-a-gpu.txt"]).decode()) is None
    )


@pytest.mark.parametrize(
    ("lines", "held"),
    [
        (["drm-memory-vram:\t2048 KiB"], 2 * MIB),
        (["drm-memory-vram: 2 MiB", "drm-resident-vram: 1 MiB", "drm-total-vram: 9 MiB"], MIB),
        (["drm-total-local0: 3 MiB"], 3 * MIB),
        (["drm-resident-vram0: 1 MiB", "drm-resident-vram1: 1 MiB", "drm-resident-gtt: 9 MiB"], 2 * MIB),
        (["drm-resident-vram0: 0", "drm-resident-gtt: 9 MiB"], 0),
        (["drm-resident-system0:\t4 MiB", "drm-resident-stolen-system0: 1 MiB"], 4 * MIB),
        (["drm-total-memory:\t102 MiB"], 102 * MIB),
        (["drm-memory-gtt: \t1 GiB"], 1 << 30),
        (["drm-memory-vram: 1 parsec"], None),
        ([], None),
    ],
)
def test_held_memory_is_resident_memory_of_the_card_else_of_the_machine(
    lines: list[str], held: int | None
) -> None:
    client = parse_fdinfo("\n".join(["drm-driver: xe", "drm-client-id: 1", "drm-pdev: 0000:03:00.0", *lines]))
    assert client is not None
    assert client.held_memory == held


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pos:\t0\nflags:\t02\n",
        "drm-driver: amdgpu\ndrm-pdev: 0000:03:00.0\n",
        "drm-driver: v3d\ndrm-client-id: 3\n",
        "drm-driver: amdgpu\ndrm-client-id: x\ndrm-pdev: 0000:03:00.0\n",
    ],
)
def test_a_file_without_driver_client_or_pci_address_is_no_client(text: str) -> None:
    assert parse_fdinfo(text) is None


def test_the_helpers_of_the_tests_write_what_the_parser_reads() -> None:
    amd = parse_fdinfo(amd_client("0000:03:00.0", 7, vram=4096, gfx=5, enc_1=6))
    xe = parse_fdinfo(xe_client("0000:04:00.0", 8, total=100, vram=8192, ccs=5))
    assert amd is not None
    assert xe is not None
    assert (amd.engines, amd.held_memory) == ({"gfx": 5, "enc_1": 6}, 4096)
    assert (xe.cycles, xe.total_cycles, xe.held_memory) == ({"ccs": 5}, {"ccs": 100}, 8192)


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    parse_fdinfo(text)
    parse_fdinfo(f"drm-driver: xe\ndrm-client-id: 1\ndrm-pdev: a\ndrm-{text}")
