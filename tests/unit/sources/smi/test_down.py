"""GPUs that are down under nvidia-smi: lost, in need of a reset, or without any readable value."""

from __future__ import annotations

import pytest

from builders import FakeClock, gpu
from gpuledger.host.commands import CommandResult
from gpuledger.model import quantities as q
from gpuledger.model.down_reasons import describe_down, down_remedy
from gpuledger.node.health import status_of
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.cell_values import absent_reason
from gpuledger.sources.smi.parsed_gpus import down_reason, parse_values
from gpuledger.sources.smi.parsed_output import GpuBlock
from smi.recorded import ALL, Recorded, fixture, read, source
from time_helpers import Books

XML = fixture("cards/xml")
FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"

LIVE = {"fb_memory_usage/total": "10 MiB", "temperature/gpu_temp": "40 C", "power_readings/power_draw": "1 W"}
BLOCKS: list[tuple[str, dict[str, str], str]] = [
    ("all cells are readable", LIVE, ""),
    ("one cell requires a reset", LIVE | {"utilization/gpu_util": "GPU requires reset"}, "RESET_REQUIRED"),
    ("one cell in brackets", LIVE | {"fan_speed": "[GPU Requires Reset]"}, "RESET_REQUIRED"),
    ("a longer form", LIVE | {"fan_speed": "GPU requires a reset."}, "RESET_REQUIRED"),
    ("one cell is lost", LIVE | {"fan_speed": "GPU is lost"}, "GPU_IS_LOST"),
    (
        "lost, in full",
        LIVE | {"fan_speed": "GPU is lost. Reboot the system to recover this GPU"},
        "GPU_IS_LOST",
    ),
    ("lost before reset", LIVE | {"a": "GPU requires reset", "b": "[GPU is lost]"}, "GPU_IS_LOST"),
    ("an action is no state", LIVE | {"gpu_recovery_action": "GPU Reset"}, ""),
    ("a name with the word", LIVE | {"product_name": "Lost Planet"}, ""),
    ("one sensor fails", LIVE | {"temperature/gpu_temp": "Unknown Error"}, ""),
    ("everything fails", dict.fromkeys(LIVE, "[Unknown Error]"), "UNKNOWN"),
    ("nothing may be read", dict.fromkeys(LIVE, "[Insufficient Permissions]"), "NO_PERMISSION"),
    ("a card without sensors", dict.fromkeys(LIVE, "N/A"), ""),
    ("off the bus, in one cell", LIVE | {"fan_speed": "GPU has fallen off the bus."}, "GPU_IS_LOST"),
    ("in brackets", LIVE | {"fan_speed": "[GPU has fallen off the bus]"}, "GPU_IS_LOST"),
    ("only power is readable", LIVE | dict.fromkeys([*LIVE][:2], "Unknown Error"), "UNKNOWN"),
    (
        "and nothing else may be",
        LIVE | dict.fromkeys([*LIVE][:2], "Insufficient Permissions"),
        "NO_PERMISSION",
    ),
    ("every call takes too long", dict.fromkeys(LIVE, "Timeout"), "TIMEOUT"),
    ("a phrase that is not known", dict.fromkeys(LIVE, "[Insufficient External Power]"), "UNKNOWN"),
    ("a card that has power alone", LIVE | dict.fromkeys([*LIVE][:2], "N/A"), ""),
    (
        "with a meter that fails",
        dict.fromkeys(LIVE, "N/A") | {"power_readings/power_draw": "[Unknown Error]"},
        "UNKNOWN",
    ),
]


@pytest.mark.parametrize(("what", "cells", "reason"), BLOCKS, ids=[row[0] for row in BLOCKS])
def test_the_reason_why_a_gpu_is_down(what: str, cells: dict[str, str], reason: str) -> None:
    assert down_reason(GpuBlock("", dict(cells))) == reason, what


@pytest.mark.parametrize("word", ["GPU requires reset", "GPU is lost"])
def test_readable_cells_of_a_gpu_that_is_down_are_kept(word: str) -> None:
    snapshot = read("cards", xml=XML.replace(">57 C<", f">{word}<").replace(">63 %<", f">{word}<"))
    first, second = snapshot.readings
    assert (first.up, first.processes) == (False, None)
    assert first.values[q.POWER] == 211.37
    assert not {q.TEMPERATURE, q.UTILIZATION} & set(first.values)
    assert second.up
    # One line names the GPU once, with the reason.
    words = describe_down(first.down_reason)
    assert status_of(snapshot) == f"readings: GPU 0 ({FIRST}) {words}"


NO_HANDLE = [
    ("Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.", "GPU_IS_LOST"),
    ("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error", "UNKNOWN"),
    ("Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error", "UNKNOWN"),
    (
        "Unable to determine the device handle for GPU0: 00000000:01:00.0: GPU requires reset",
        "RESET_REQUIRED",
    ),
    ("Unable to determine the device handle for GPU0: GPU is lost.  Reboot the system", "GPU_IS_LOST"),
    ("Unable to detect the device handle for GPU0000:01:00.0: Insufficient Permissions", "NO_PERMISSION"),
]


@pytest.mark.parametrize(("message", "reason"), NO_HANDLE)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_a_gpu_that_only_an_error_names_has_no_values_of_an_earlier_reading(
    message: str, reason: str, stream: str, counted: bool
) -> None:
    run = Recorded("cards")
    smi = source(run)
    wanted = frozenset({q.POWER})
    assert smi.read(wanted).readings[0].values
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    rest = XML[:start] + XML[end:]
    if not counted:
        rest = rest.replace("<attached_gpus>2<", "<attached_gpus>1<")
    error = f"{message}\n".encode()
    printed, errors = (error + rest.encode(), b"") if stream == "stdout" else (rest.encode(), error)
    run.instead["xml"] = CommandResult(printed, errors)
    for _ in range(2):
        (first, second) = smi.read(wanted).readings
        assert (first.up, first.down_reason, dict(first.values)) == (False, reason, {})
        assert second.up and second.device.gpu.index == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_gpu_that_was_lost_before_the_first_reading_makes_it_incomplete(count: int) -> None:
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    rest = (XML[:start] + XML[end:]).replace("<attached_gpus>2<", f"<attached_gpus>{count}<")
    snapshot = read("cards", xml=CommandResult(rest.encode(), NO_HANDLE[0][0].encode()))
    assert [reading.device.gpu.index for reading in snapshot.readings] == [1]
    assert snapshot.devices_failed
    assert [failure.reason for failure in snapshot.failures] == ["GPU_IS_LOST"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_gpu_that_vanishes_without_a_word_is_down_until_it_is_back(count: int) -> None:
    run = Recorded("cards")
    smi = source(run)
    assert all(reading.up for reading in smi.read(ALL).readings)
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    run.instead["xml"] = (XML[:start] + XML[end:]).replace("<attached_gpus>2<", f"<attached_gpus>{count}<")
    run.instead["listing"] = f"GPU 0: NVIDIA Example (UUID: {SECOND})\n"
    for _ in range(3):
        snapshot = smi.read(ALL)
        found = {reading.device.uuid: (reading.up, reading.down_reason) for reading in snapshot.readings}
        assert found == {FIRST: (False, "NOT_FOUND"), SECOND: (True, "")}
        assert snapshot.devices_failed
        assert "NOT_FOUND" in {failure.reason for failure in snapshot.failures}
    del run.instead["xml"], run.instead["listing"]
    snapshot = smi.read(ALL)
    assert [reading.up for reading in snapshot.readings] == [True, True]
    assert not snapshot.devices_failed


def test_a_gpu_that_vanishes_and_is_not_selected_is_no_failure() -> None:
    run = Recorded("cards")
    smi = source(run, SECOND)
    smi.read(ALL)
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    run.instead["xml"] = (XML[:start] + XML[end:]).replace("<attached_gpus>2<", "<attached_gpus>1<")
    snapshot = smi.read(ALL)
    assert [(reading.device.uuid, reading.up) for reading in snapshot.readings] == [(SECOND, True)]
    assert (snapshot.devices_failed, snapshot.failures) == (False, ())


@pytest.mark.parametrize("count", [1, 2])
def test_a_gpu_selected_by_index_remains_selected_when_it_is_renumbered(count: int) -> None:
    run = Recorded("cards")
    smi = source(run, "1")
    smi.read(ALL)
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    run.instead["xml"] = (XML[:start] + XML[end:]).replace("<attached_gpus>2<", f"<attached_gpus>{count}<")
    run.instead["listing"] = f"GPU 0: NVIDIA Example (UUID: {SECOND})\n"
    for _ in range(2):
        assert [reading.device.uuid for reading in smi.read(ALL).readings] == [SECOND]
        assert "which no GPU has" not in smi.selection.omission


def test_a_gpu_that_vanishes_costs_no_other_its_time() -> None:
    run, clock, books = Recorded("cards"), FakeClock(), Books()
    smi = source(run, clock=clock)
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    for second in range(200):
        if second == 20:
            run.instead["xml"] = XML[:start] + XML[end:]
            run.instead["listing"] = f"GPU 0: NVIDIA Example (UUID: {SECOND})\n"
        books.post(smi.read(ALL))
        clock.advance(1.0)
    assert books.seconds("residence", SECOND) == {"unknown": 199_000_000}
    assert books.seconds("residence", FIRST)["down"] > 0


def test_the_reason_of_a_lost_gpu_remains_when_later_reports_say_nothing() -> None:
    run = Recorded("cards")
    smi = source(run)
    smi.read(ALL)
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    without = XML[:start] + XML[end:]
    message = "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.\n"
    for output in (CommandResult((message + without).encode(), exit_code=15), without, without):
        run.instead["xml"] = output
        (lost,) = [reading for reading in smi.read(ALL).readings if not reading.up]
        assert (lost.device.uuid, lost.down_reason) == (FIRST, "GPU_IS_LOST")


def test_a_gpu_with_another_one_in_its_slot_was_replaced() -> None:
    run = Recorded("cards")
    smi = source(run)
    smi.read(ALL)
    run.instead["xml"] = XML.replace(FIRST, FIRST.replace("a", "b"))
    snapshot = smi.read(ALL)
    assert [reading.device.uuid for reading in snapshot.readings] == [FIRST.replace("a", "b"), SECOND]
    assert not snapshot.devices_failed


def test_gpus_that_a_cut_output_lacks_are_not_known_to_be_gone() -> None:
    run = Recorded("cards")
    smi = source(run)
    smi.read(ALL)
    cut = XML[: XML.index('\t<gpu id="00000000:81')]
    run.instead["xml"] = CommandResult(cut.encode(), exit_code=-9, timed_out=True)
    snapshot = smi.read(ALL)
    assert [reading.device.uuid for reading in snapshot.readings] == [FIRST]
    assert snapshot.devices_failed


@pytest.mark.parametrize(
    "reason", ["GPU_IS_LOST", "RESET_REQUIRED", "NOT_FOUND", "UNKNOWN", "NO_PERMISSION", "TIMEOUT"]
)
def test_each_reason_has_words_and_a_remedy(reason: str) -> None:
    assert describe_down(reason) and down_remedy(reason)
    assert "{" not in down_remedy(reason, "0000:65:00.0")


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("[GPU requires reset]", "RESET_REQUIRED"),
        ("Reset Required", "RESET_REQUIRED"),
        ("GPU has fallen off the bus", "GPU_IS_LOST"),
        ("Insufficient permissions (run as root)", "NO_PERMISSION"),
        ("GPU Reset", "OTHER"),
    ],
)
def test_words_in_place_of_a_value_have_a_reason(cell: str, reason: str) -> None:
    assert absent_reason(cell) == reason


DEPRECATED = "Requested functionality has been deprecated"
RESET, DRAIN = "gpu_reset_status/reset_required", "gpu_reset_status/drain_and_reset_recommended"


@pytest.mark.parametrize(
    ("what", "cells", "action"),
    [
        ("a reset", {RESET: "Yes", DRAIN: "No"}, 1),
        ("both", {RESET: "Yes", DRAIN: "Yes"}, 1),
        ("after a drain", {RESET: "No", DRAIN: "Yes"}, 4),
        ("nothing", {RESET: "No", DRAIN: "No"}, 0),
        ("one that is not supported", {RESET: "N/A", DRAIN: "Yes"}, 4),
        ("fields of the CSV", {"reset_status.reset_required": " yes "}, 1),
        ("a vGPU", {RESET: "N/A", DRAIN: "N/A"}, None),
        ("a driver before 535", {}, None),
        ("a driver from 565 on", {RESET: DEPRECATED, DRAIN: DEPRECATED, "gpu_recovery_action": "Reset"}, 1),
        ("none there", {RESET: DEPRECATED, DRAIN: DEPRECATED, "gpu_recovery_action": "None"}, 0),
        ("both kinds", {RESET: "No", DRAIN: "No", "gpu_recovery_action": "Drain P2P"}, 3),
    ],
)
def test_a_required_reset_is_a_recovery_action_whatever_the_driver_calls_it(
    what: str, cells: dict[str, str], action: int | None
) -> None:
    wanted = frozenset({q.RECOVERY_ACTION})
    values, supported = parse_values(gpu(), cells, wanted, SourceFindings())
    assert values.get(q.RECOVERY_ACTION) == action, what
    assert bool(supported.get("recovery_action")) == (action is not None), what
