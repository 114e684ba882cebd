"""The text report of `-q`, which is read in addition to the CSV."""

from __future__ import annotations

from gpuledger.sources.smi.text_report import parse_text_report
from smi.recorded import fixture

CARDS, MIG = fixture("cards/report"), fixture("mig/report")


def test_a_report_lists_each_gpu_with_its_processes() -> None:
    output = parse_text_report(CARDS)
    assert (output.driver, output.cuda, output.attached_gpus) == ("550.54.15", "12.4", 2)
    assert [(block.bus, len(block.processes or ())) for block in output.blocks] == [
        ("00000000:01:00.0", 3),
        ("00000000:81:00.0", 1),
    ]
    process = (output.blocks[0].processes or [])[2]
    assert process == {
        "gpu_instance_id": "N/A",
        "compute_instance_id": "N/A",
        "process_id": "52002",
        "type": "C+G",
        "name": "render",
        "used_gpu_memory": "418 MiB",
    }


def test_processes_of_an_older_driver_have_no_instance_ids() -> None:
    old = "\n".join(line for line in CARDS.split("\n") if "instance ID" not in line)
    assert [len(block.processes or ()) for block in parse_text_report(old).blocks] == [3, 1]


def test_mig_devices_have_their_ids() -> None:
    (block,) = parse_text_report(MIG).blocks
    assert [(device["gpu_instance_id"], device["compute_instance_id"]) for device in block.mig_devices] == [
        ("1", "0"),
        ("1", "1"),
        ("13", "0"),
    ]
    ids = ("gpu_instance_id", "compute_instance_id", "process_id")
    assert [tuple(process[name] for name in ids) for process in block.processes or ()] == [
        ("1", "0", "7001"),
        ("1", "1", "7002"),
    ]


def test_a_mig_device_with_a_value_in_its_heading_is_read() -> None:
    lines = ["GPU 00000000:01:00.0", "    MIG Device : x", "        Index : 0", ""]
    (block,) = parse_text_report("\n".join(lines)).blocks
    assert block.mig_devices == [{"index": "0"}]


def test_processes_none_is_an_empty_list_and_other_text_is_no_list() -> None:
    head = "GPU 00000000:01:00.0\n    Processes                 : "
    assert parse_text_report(head + "None\n").blocks[0].processes == []
    (block,) = parse_text_report(head + "Insufficient Permissions\n").blocks
    assert (block.processes, block.process_list_message) == (None, "Insufficient Permissions")


def test_a_process_list_that_is_truncated_in_a_line_is_dropped() -> None:
    cut = parse_text_report(CARDS[: CARDS.rindex("1016")])
    assert cut.blocks[1].processes is None
    assert len(cut.blocks[0].processes or ()) == 3


def test_two_gpus_under_one_heading_are_both_dropped() -> None:
    output = parse_text_report(CARDS.replace("GPU 00000000:81:00.0\n", ""))
    assert output.blocks == []
    assert [problem.reason for problem in output.problems] == ["MANGLED"]


def test_two_process_lists_under_one_heading_are_both_dropped() -> None:
    twice = MIG + MIG[MIG.index("    Processes") :]
    assert [block.processes for block in parse_text_report(twice).blocks] == [None]
