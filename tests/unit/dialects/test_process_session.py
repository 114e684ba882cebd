"""The process and session dialects of documents 000 and 001, row by row."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import GIB, MIB, gpu, instance, node_state, process, reading, snapshot
from gpuledger.dialects.process_session import ProcessRows, process_dialect, session_dialect
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload

POD = Workload("pod", namespace="ml", pod="train-0", container="pytorch")

SamplesByFamily = Mapping[str, Mapping[tuple[str, ...], float]]


def samples_by_family(
    seen: Snapshot | None, settings: DialectSettings | None = None, most: int = 256
) -> SamplesByFamily:
    """Returns the samples of both dialects by family name."""
    rows = ProcessRows(settings or DialectSettings())
    state = Ledger(LedgerSettings(most)).post(seen) if seen else None
    shown: NodeState = node_state(seen, state)
    return {
        family.spec.name: family.samples
        for dialect in (process_dialect(rows), session_dialect(rows))
        for family in dialect.families(shown)
    }


def test_a_process_is_one_active_row_with_its_owner() -> None:
    card = gpu(1)
    families = samples_by_family(
        snapshot(reading(card, process(card, 12345, name="/usr/bin/python3", workload=POD)))
    )
    assert families["gpu_process_info"] == {
        ("1", "12345", "python3", "train-0", "ml", "pytorch", "active", "2048MiB"): 1
    }
    who = ("1", "12345", "python3", "train-0", "ml", "pytorch")
    assert families["gpu_process_utilization"] == {who: 50}
    assert families["gpu_process_memory_utilization"] == {who: 2.5}


def test_a_device_without_processes_is_one_idle_row_of_value_zero() -> None:
    families = samples_by_family(snapshot(reading(gpu(0))))
    idle = ("0", "none", "none", "none", "none", "none", "idle", "0MiB")
    assert families["gpu_process_info"] == {idle: 0}
    assert families["gpu_process_count"] == families["gpu_session_count"] == {("0",): 0}
    assert families["gpu_total_processes"] == families["gpu_total_sessions"] == {(): 0}


def test_counts_info_and_totals_agree() -> None:
    a, b = gpu(0), gpu(1)
    families = samples_by_family(snapshot(reading(a, process(a, 1), process(a, 2)), reading(b)))
    assert families["gpu_process_count"] == {("0",): 2, ("1",): 0}
    assert families["gpu_process_count"] == families["gpu_session_count"]
    assert sum(families["gpu_process_info"].values()) == families["gpu_total_processes"][()] == 2
    assert families["gpu_total_sessions"][()] == 2


def test_a_failed_list_has_no_count_and_no_idle_row_and_totals_are_absent() -> None:
    a, b = gpu(0), gpu(1)
    families = samples_by_family(snapshot(reading(a, process(a, 1)), reading(b, failed=True)))
    assert families["gpu_process_count"] == families["gpu_session_count"] == {("0",): 1}
    assert {row[0] for row in families["gpu_process_info"]} == {"0"}
    assert families["gpu_total_processes"] == families["gpu_total_sessions"] == {}


def test_an_incomplete_device_list_has_no_totals() -> None:
    families = samples_by_family(snapshot(reading(gpu(0)), devices_failed=True))
    assert families["gpu_total_processes"] == families["gpu_total_sessions"] == {}


def test_without_a_snapshot_there_are_no_samples() -> None:
    assert all(not samples for samples in samples_by_family(None).values())


@pytest.mark.parametrize(("form", "label"), [("gi-ci", "0_9_0"), ("device", "0_3_0")])
def test_an_instance_has_rows_and_its_gpu_has_none(form: str, label: str) -> None:
    card = gpu(0)
    cut = instance(card, gi=9, ci=0, index=3)
    families = samples_by_family(
        snapshot(reading(card), reading(cut, process(cut))), DialectSettings(mig_label=form)
    )
    assert families["gpu_process_count"] == {(label,): 1}
    assert {row[0] for row in families["gpu_process_info"]} == {label}


def test_a_mig_gpu_without_instances_is_an_idle_device() -> None:
    families = samples_by_family(snapshot(reading(gpu(0), mig_enabled=True)))
    assert families["gpu_process_count"] == {("0",): 0}


@pytest.mark.parametrize(
    ("types", "by_default", "with_graphics"),
    [("C", 1, 1), ("C+G", 1, 1), ("M", 1, 1), ("G", 0, 1)],
)
def test_process_types_that_are_counted(types: str, by_default: int, with_graphics: int) -> None:
    card = gpu(0)
    seen = snapshot(reading(card, process(card, types=types)))
    for graphics, expected in ((False, by_default), (True, with_graphics)):
        families = samples_by_family(seen, DialectSettings(graphics=graphics))
        assert families["gpu_process_count"] == families["gpu_session_count"] == {("0",): expected}
        assert sum(families["gpu_process_info"].values()) == expected


def test_unknown_memory_is_an_empty_label_without_a_percentage() -> None:
    card = gpu(0)
    families = samples_by_family(snapshot(reading(card, process(card, memory=None))))
    assert [row[-1] for row in families["gpu_process_info"]] == [""]
    assert families["gpu_process_memory_utilization"] == {}


def test_the_memory_percentage_is_absent_without_a_total() -> None:
    card = gpu(0)
    families = samples_by_family(snapshot(reading(card, process(card), values={})))
    assert families["gpu_process_memory_utilization"] == {}
    assert len(families["gpu_process_utilization"]) == 1


def test_unreadable_utilization_is_absent_not_zero() -> None:
    card = gpu(0)
    busy, unknown = process(card, 1, sm=0.0), process(card, 2, sm=None)
    rows = samples_by_family(snapshot(reading(card, busy, unknown)))["gpu_process_utilization"]
    assert {row[1]: value for row, value in rows.items()} == {"1": 0}


def test_whole_percents_are_exported_exactly() -> None:
    card = gpu(0)
    rows = [process(card, percent + 1, sm=percent / 100) for percent in range(101)]
    values = samples_by_family(snapshot(reading(card, *rows)))["gpu_process_utilization"].values()
    assert list(values) == list(range(101))


def test_settings_change_the_labels() -> None:
    card = gpu(1)
    settings = DialectSettings(node_name="n1", pid_label="gpu-prefixed", memory_label=False)
    families = samples_by_family(snapshot(reading(card, process(card, 12345, memory=5 * MIB))), settings)
    assert families["gpu_process_info"] == {("n1", "1", "gpu1_12345", "python3", "", "", "", "active"): 1}
    assert families["gpu_process_count"] == {("n1", "1"): 1}
    assert families["gpu_total_sessions"] == {("n1",): 1}


@pytest.mark.parametrize("memory_label", [True, False])
def test_every_row_has_a_value_for_each_label_of_its_family(memory_label: bool) -> None:
    rows = ProcessRows(DialectSettings(node_name="n1", memory_label=memory_label))
    seen = snapshot(reading(gpu(0), process(gpu(0), 1)), reading(gpu(1)))
    shown = node_state(seen, Ledger(LedgerSettings()).post(seen))
    for family in (*process_dialect(rows).families(shown), *session_dialect(rows).families(shown)):
        assert {len(labels) for labels in family.samples} == {len(family.spec.labels)}, family.spec.name


def test_processes_beyond_the_cap_are_only_counted() -> None:
    card = gpu(0)
    crowd = [process(card, pid, memory=pid * GIB) for pid in (1, 2, 3)]
    families = samples_by_family(snapshot(reading(card, *crowd)), most=2)
    assert {row[1] for row in families["gpu_process_info"]} == {"2", "3"}
    assert families["gpu_process_count"] == families["gpu_session_count"] == {("0",): 3}


COMMANDS = [
    ("/usr/bin/python3", "/usr/bin/python3.11", "python3", "python3"),
    ("", "/opt/my app/bin/train", "train", "train"),
    ("", "/opt/My -Tool/bin/pro g", "", "pro g"),
    ("", "", "kworker-like", "kworker-like"),
    ("/opt/chrome/chrome --type=gpu --token=/etc/secret", "/opt/chrome/chrome", "chrome", "chrome"),
    ("/usr/bin/app PASSWORD=hunter2 user@host", "", "", "app"),
    ("python3 /srv/x.py s3cr3t", "/usr/bin/python3.12", "python3", "python3.12"),
    ("python3 /srv/x.py s3cr3t", "", "python3", "python3"),
    ("/opt/My -Tool/bin/prog", "/opt/My -Tool/bin/prog", "prog", "prog"),
    (" ", "", "", ""),
    ("C:\\odd", "", "odd", "odd"),
    ("/trailing/", "/bin/real", "real", "real"),
]


@pytest.mark.parametrize(("name", "executable", "comm", "command"), COMMANDS)
def test_the_command_is_a_base_name_without_arguments(
    name: str, executable: str, comm: str, command: str
) -> None:
    from dataclasses import replace

    card = gpu(0)
    plain = process(card, name=name)
    made = replace(plain, host=replace(plain.host, executable=executable, comm=comm))
    assert made.command == command
