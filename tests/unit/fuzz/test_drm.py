"""Files of the kernel's GPU drivers, cut, changed and combined: fdinfo, gpu_metrics, KFD and pci.ids."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from fuzzing import corpus_files, file_name, fuzzed, memory_below, mutated_files
from gpuledger.model.text import decode_utf8
from gpuledger.sources.drm.fdinfo import parse_fdinfo
from gpuledger.sources.drm.gpu_metrics import UnreadableMetrics, parse_gpu_metrics
from gpuledger.sources.drm.kfd import KfdReader
from gpuledger.sources.drm.pci_names import pci_names

_MOST = 1 << 24
_LARGEST = 1 << 70


def check_fdinfo(raw: bytes) -> None:
    client = parse_fdinfo(decode_utf8(raw))
    if client is None:
        return
    amounts = [*client.engines.values(), *client.cycles.values(), *client.capacity.values()]
    assert all(0 <= amount < _LARGEST for amount in amounts)
    assert client.held_memory is None or client.held_memory >= 0


def check_metrics(raw: bytes) -> None:
    try:
        metrics = parse_gpu_metrics(raw)
    except UnreadableMetrics as error:
        assert "\n" not in str(error)
        return
    for name in metrics.fields:
        value = metrics.scalar(name)
        assert value is None or abs(value) < 1 << 64


def check_properties(raw: bytes) -> None:
    def read(path: str) -> bytes:
        return raw if path.endswith(("properties", "gpu_id")) else Path(path).read_bytes()

    with TemporaryDirectory() as folder:
        Path(folder, "class/kfd/kfd/topology/nodes/1/mem_banks/0").mkdir(parents=True)
        for node in KfdReader(folder, read).nodes():
            assert node.compute_units >= 0
            assert node.memory >= 0


def check_names(raw: bytes) -> None:
    wanted = [(0x1002, 0x73BF), (0x8086, 0xE20B)]
    with TemporaryDirectory() as folder:
        file = Path(folder, "pci.ids")
        file.write_bytes(raw)
        names = pci_names(wanted, [str(file)])
    assert names.keys() <= set(wanted)
    assert all("\n" not in name and len(name) < 200 for name in names.values())


CHECKS = {
    "drm-fdinfo": check_fdinfo,
    "gpu-metrics": check_metrics,
    "kfd-properties": check_properties,
    "pci-ids": check_names,
}
FILES = [(reader, path) for reader in CHECKS for path in corpus_files(reader)]


@pytest.mark.parametrize(("reader", "path"), FILES, ids=[file_name(path) for _, path in FILES])
def test_each_file_of_the_corpus_is_read(reader: str, path: Path) -> None:
    CHECKS[reader](path.read_bytes())


@fuzzed
@given(mutated_files("drm-fdinfo", b"drm-engine-gfx:\t", b"drm-cycles-rcs:", b" ns", b" KiB", "²".encode()))
def test_no_fdinfo_raises(raw: bytes) -> None:
    check_fdinfo(raw)


@fuzzed
@given(mutated_files("gpu-metrics", b"\x01\x09", b"\x01\x07", b"\xff\xff\xff\xff"))
def test_no_table_raises_another_error(raw: bytes) -> None:
    check_metrics(raw)


@fuzzed
@given(
    mutated_files("kfd-properties", b"simd_count ", b"simd_per_cu 0\n", b"location_id ", b"size_in_bytes ")
)
def test_no_properties_raise(raw: bytes) -> None:
    check_properties(raw)


@fuzzed
@given(mutated_files("pci-ids", b"1002", b"\t73bf", b"\t\t", b"C 03"))
def test_no_list_of_names_raises(raw: bytes) -> None:
    check_names(raw)


def test_memory_is_proportional_to_the_input() -> None:
    with memory_below(_MOST):
        check_fdinfo(b"drm-engine-gfx:\t" + b"9" * (1 << 20) + b"\n" + b"drm-memory-a: 1\n" * 10_000)
