"""The report of `-q`: the form for people, read beside the CSV."""

from __future__ import annotations

from gpuledger.sources.smi.report import parse_report
from smi.recorded import fixture

CARDS, MIG = fixture("cards/report"), fixture("mig/report")


def test_a_report_tells_each_gpu_with_its_processes() -> None:
    answer = parse_report(CARDS)
    assert (answer.driver, answer.cuda, answer.expected) == ("550.54.15", "12.4", 2)
    assert [(block.bus, len(block.rows or ())) for block in answer.blocks] == [
        ("00000000:01:00.0", 3),
        ("00000000:81:00.0", 1),
    ]
    row = (answer.blocks[0].rows or [])[2]
    assert (row.pid, row.type, row.name, row.memory, row.gi) == ("52002", "C+G", "render", "418 MiB", "N/A")


def test_a_report_of_an_older_driver_has_rows_without_instances() -> None:
    old = "\n".join(line for line in CARDS.split("\n") if "instance ID" not in line)
    assert [len(block.rows or ()) for block in parse_report(old).blocks] == [3, 1]


def test_mig_devices_come_with_their_ids() -> None:
    (block,) = parse_report(MIG).blocks
    assert [(part["gpu_instance_id"], part["compute_instance_id"]) for part in block.parts] == [
        ("1", "0"),
        ("1", "1"),
        ("13", "0"),
    ]
    assert [(row.gi, row.ci, row.pid) for row in block.rows or ()] == [("1", "0", "7001"), ("1", "1", "7002")]


def test_no_processes_is_an_empty_list_and_any_other_word_is_none() -> None:
    head = "GPU 00000000:01:00.0\n    Processes                 : "
    assert parse_report(head + "None\n").blocks[0].rows == []
    (block,) = parse_report(head + "Insufficient Permissions\n").blocks
    assert (block.rows, block.rows_said) == (None, "Insufficient Permissions")


def test_a_list_that_is_cut_in_a_line_is_not_told() -> None:
    cut = parse_report(CARDS[: CARDS.rindex("1016")])
    assert cut.blocks[1].rows is None
    assert len(cut.blocks[0].rows or ()) == 3


def test_two_gpus_under_one_heading_are_none() -> None:
    answer = parse_report(CARDS.replace("GPU 00000000:81:00.0\n", ""))
    assert answer.blocks == []
    assert [trouble.reason for trouble in answer.troubles] == ["MANGLED"]


def test_two_lists_under_one_heading_are_nobodys() -> None:
    twice = MIG + MIG[MIG.index("    Processes") :]
    assert [block.rows for block in parse_report(twice).blocks] == [None]
