"""Whole trees of sysfs and procfs with AMD and Intel GPUs, altered: possible values, or one line."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drm_machine import DrmMachine, amd_client, metrics_table, xe_client
from fuzzing import bounded, check_line, check_snapshot, fuzzed, mutated
from gpuledger.model.errors import SourceUnavailable
from unit.sources.drm.support import DrmNode

AMD, XE = "0000:03:00.0", "0000:04:00.0"
WORDS = (b"-1", b"0x", b"/", b"..", b"drm-", b" KiB", b" ns", b":\t", b"1002:740f", b"0000:03:00.0", b"*")


def add_cards(machine: DrmMachine) -> None:
    """Two cards with the topology of one of them, and a process on both."""
    facts = {"unique_id": "1901ead3a2ecd4a6", "gpu_busy_percent": 7, "mem_info_vram_total": 1 << 30}
    machine.add_card(0, AMD, "1002:740f", **facts)
    machine.write("sys/class/drm/card0/device/gpu_metrics", metrics_table((1, 3), temperature_hotspot=50))
    machine.add_card(1, XE, "8086:e20b", "xe")
    machine.add_node(1, 4711, unique_id=0x1901EAD3A2ECD4A6, vendor_id=0x1002, device_id=0x740F)
    clients = {
        5: ("/dev/dri/renderD128", amd_client(AMD, 1, vram=1 << 20)),
        6: ("/dev/dri/renderD129", xe_client(XE, 2, total=1000)),
    }
    machine.add_process(7, clients)


def file_names() -> list[str]:
    with TemporaryDirectory() as folder:
        node = DrmNode(Path(folder))
        add_cards(node.machine)
        return sorted(str(file.relative_to(folder)) for file in Path(folder).rglob("*") if file.is_file())


FILES = file_names()
CHANGES = ("content", "content", "content", "gone", "empty", "folder", "loop")


def change(data: st.DataObject, file: Path) -> None:
    """Alter one file, or put something else in its place."""
    if not file.is_file():
        return
    how = data.draw(st.sampled_from(CHANGES))
    content = file.read_bytes()
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how == "loop":
        file.symlink_to(file.name)
    elif how != "gone":
        file.write_bytes(data.draw(mutated([content], *WORDS)) if how == "content" else b"")


@fuzzed
@given(data=st.data())
def test_no_altered_tree_raises_another_error(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        node = DrmNode(Path(folder))
        add_cards(node.machine)
        changed = data.draw(st.lists(st.sampled_from(FILES), max_size=4))
        with bounded():
            # The first of three readings is of the whole tree, or of the altered one.
            places = [] if data.draw(st.booleans()) else changed
            for names in (places, changed, ()):
                for name in names:
                    change(data, Path(folder, name))
                try:
                    check_snapshot(node.read())
                except SourceUnavailable as error:
                    check_line(error)


@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_a_start_of_too_many_digits_is_unknown(digits: int) -> None:
    with TemporaryDirectory() as folder:
        node = DrmNode(Path(folder))
        add_cards(node.machine)
        stat = Path(folder, "proc/7/stat")
        stat.write_text(stat.read_text().replace(" 5007 ", f" {'9' * digits} "))
        check_snapshot(node.read())


def test_the_tree_has_two_gpus_and_a_process() -> None:
    with TemporaryDirectory() as folder:
        node = DrmNode(Path(folder))
        add_cards(node.machine)
        found = node.read().readings
    assert [len(one.processes or ()) for one in found] == [1, 1]
    assert len(FILES) >= 15
