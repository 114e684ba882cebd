"""Advice: each rule with the evidence at and below its threshold, what it saves, and when it is silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from documentation import DOCS
from gpuledger.ledger.report.receipt.advice import RULES, advise
from gpuledger.ledger.report.receipt.content import ReceiptAdvice, ReceiptJson
from gpuledger.ledger.report.receipt.settings import RULE_NAMES, AdviceSettings
from gpuledger.model.settings import declared_settings
from receipt_helpers import BEGIN, GIB, HOUR, gpu_row, host_row, receipt, unused_gpu

SETTINGS = AdviceSettings()
MICRO = 1_000_000


def rules_of(made: ReceiptJson, settings: AdviceSettings = SETTINGS) -> list[str]:
    return [one["rule"] for one in advise(made, settings)]


def only(made: ReceiptJson, settings: AdviceSettings = SETTINGS) -> ReceiptAdvice:
    (found,) = advise(made, settings)
    return found


def long_gpu(**more: Any) -> Any:
    """A GPU for eight hours at 6 EUR, used for four of them; `more` says when it was idle."""
    found = {
        "gpu_microseconds": 8 * HOUR * MICRO,
        "time_cost": "6.0000000000",
        "present_seconds": 8 * HOUR,
        "allocated_seconds": 8.0 * HOUR,
        "resident_seconds": 8.0 * HOUR,
        "active_seconds": 4.0 * HOUR,
        "held_seconds": 4.0 * HOUR,
        "sm_known_seconds": 8.0 * HOUR,
        "wait_seconds": 0,
        "gap_seconds": 0,
        "tail_seconds": 0,
    }
    return gpu_row(**(found | more))


def small_gpu(**more: Any) -> Any:
    return gpu_row(**({"sm_mean": 0.08, "memory_peak_bytes": 4 * GIB} | more))


def waiting_gpu(**more: Any) -> Any:
    return gpu_row(**({"sm_mean": 0.25, "memory_mean_bytes": 38.0 * GIB} | more))


def busy_host(**more: Any) -> Any:
    return host_row(**({"cores": 8.0, "cpu_seconds": 0.9 * 8 * HOUR} | more))


def limited_host(**more: Any) -> Any:
    return host_row(
        **({"is_limited": True, "memory_peak_bytes": 20 * GIB, "memory_limit_bytes": 64 * GIB} | more)
    )


# Name, receipt, and the rules of its advice.
CASES: dict[str, tuple[Callable[[], ReceiptJson], list[str]]] = {
    "a GPU that works": (receipt, []),
    "one of two never used": (lambda: receipt("n1", gpu_row(), unused_gpu(index="1")), ["unused_gpu"]),
    "the only one never used": (lambda: receipt("n1", unused_gpu()), ["unused_gpu"]),
    "a process that never worked": (
        lambda: receipt("n1", unused_gpu(resident_seconds=3600.0, sm_peak=0.0)),
        ["unused_gpu"],
    ),
    "never used, as far as is known": (lambda: receipt("n1", unused_gpu(unknown_seconds=1.0)), []),
    "activity not known at all": (lambda: receipt("n1", unused_gpu(active_seconds=None)), []),
    "a sample contradicts": (lambda: receipt("n1", unused_gpu(sm_peak=0.01)), []),
    "never used, but nobody looked for two minutes": (
        lambda: receipt("n1", unused_gpu(unwatched_seconds=120.0)),
        [],
    ),
    "never used, but for a restart of gpuledger": (
        lambda: receipt("n1", unused_gpu(unwatched_seconds=30.0)),
        ["unused_gpu"],
    ),
    "a second of use is use": (lambda: receipt("n1", gpu_row(active_seconds=1.0)), []),
    "not yet used": (lambda: receipt("n1", unused_gpu(present_seconds=599)), []),
    "used first after 15 minutes": (lambda: receipt("n1", long_gpu(wait_seconds=900)), ["late_start"]),
    "used first after less": (lambda: receipt("n1", long_gpu(wait_seconds=899)), []),
    "first use not known": (lambda: receipt("n1", long_gpu(wait_seconds=None)), []),
    "idle for the last hour": (lambda: receipt("n1", long_gpu(tail_seconds=3600)), ["idle_since"]),
    "idle for less": (lambda: receipt("n1", long_gpu(tail_seconds=3599)), []),
    "last use not known": (lambda: receipt("n1", long_gpu(tail_seconds=None)), []),
    "a notebook": (lambda: receipt("n1", long_gpu(gap_seconds=4 * HOUR)), ["held_memory"]),
    "pauses of a program": (lambda: receipt("n1", long_gpu(gap_seconds=4 * HOUR - 1)), []),
    "an empty context": (
        lambda: receipt("n1", long_gpu(gap_seconds=4 * HOUR, memory_mean_bytes=0.5 * GIB)),
        [],
    ),
    "memory not known": (
        lambda: receipt("n1", long_gpu(gap_seconds=4 * HOUR, memory_mean_bytes=None)),
        [],
    ),
    "fits into a MIG profile": (lambda: receipt("n1", small_gpu()), ["smaller_gpu"]),
    "too busy for a smaller one": (lambda: receipt("n1", small_gpu(sm_mean=0.16)), []),
    "too much memory for a smaller one": (lambda: receipt("n1", small_gpu(memory_peak_bytes=70 * GIB)), []),
    "is an instance already": (lambda: receipt("n1", small_gpu(instance="1_0", profile="1g.10gb")), []),
    "utilization known for too little time": (lambda: receipt("n1", small_gpu(sm_known_seconds=1799.0)), []),
    "utilization not known": (lambda: receipt("n1", small_gpu(sm_mean=None)), []),
    "size of the memory not known": (lambda: receipt("n1", small_gpu(memory_bytes=None)), []),
    "memory known for a part of the time": (lambda: receipt("n1", small_gpu(usage_complete=False)), []),
    "shared with others": (lambda: receipt("n1", small_gpu(gpu_microseconds=HOUR * MICRO // 2)), []),
    "two small GPUs": (lambda: receipt("n1", small_gpu(), small_gpu(index="1")), []),
    "several owners": (lambda: receipt("n1", small_gpu(), owner=None), []),
    "fits onto a smaller card": (
        lambda: receipt("n1", small_gpu(model="NVIDIA L40S", memory_bytes=45 * GIB)),
        ["smaller_gpu"],
    ),
    "throttled by the power limit": (
        lambda: receipt("n1", gpu_row(throttled={"power": 360.0})),
        ["throttled"],
    ),
    "throttled for less": (lambda: receipt("n1", gpu_row(throttled={"power": 359.0})), []),
    "throttled by heat": (lambda: receipt("n1", gpu_row(throttled={"thermal": 3600.0})), ["throttled"]),
    "throttling known for too little time": (
        lambda: receipt("n1", gpu_row(throttled={"thermal": 200.0}, throttle_known_seconds=200.0)),
        [],
    ),
    "slower for another reason": (lambda: receipt("n1", gpu_row(throttled={"sync_boost": 3600.0})), []),
    "waits for input": (lambda: receipt("n1", waiting_gpu(), hosts=[busy_host()]), ["waiting_for_input"]),
    "low utilization, idle CPUs": (lambda: receipt("n1", waiting_gpu()), []),
    "low utilization, CPUs not known": (
        lambda: receipt("n1", waiting_gpu(), hosts=[busy_host(cpu_seconds=None)]),
        [],
    ),
    "more CPU time than it can have had": (
        lambda: receipt("n1", waiting_gpu(), hosts=[busy_host(cpu_seconds=2.0 * 8 * HOUR)]),
        [],
    ),
    "memory still grows": (
        lambda: receipt("n1", waiting_gpu(memory_mean_bytes=20.0 * GIB), hosts=[busy_host()]),
        [],
    ),
    "busy CPUs, busy GPU": (lambda: receipt("n1", gpu_row(), hosts=[busy_host()]), []),
    "CPUs of two jobs": (
        lambda: receipt("n1", waiting_gpu(), hosts=[busy_host(), busy_host(job="4712")]),
        [],
    ),
    "waits, and would fit into a profile": (
        lambda: receipt("n1", small_gpu(memory_mean_bytes=4.0 * GIB), hosts=[busy_host()]),
        ["waiting_for_input"],
    ),
    "memory of the node not used": (lambda: receipt(hosts=[limited_host()]), ["host_memory"]),
    "half of it used": (lambda: receipt(hosts=[limited_host(memory_peak_bytes=33 * GIB)]), []),
    "too little of it to matter": (
        lambda: receipt(hosts=[limited_host(memory_peak_bytes=GIB, memory_limit_bytes=16 * GIB)]),
        [],
    ),
    "no limit but the machine's": (lambda: receipt(hosts=[limited_host(is_limited=False)]), []),
    "peak not known": (lambda: receipt(hosts=[limited_host(memory_peak_bytes=None)]), []),
    "shorter than advice needs": (
        lambda: receipt("n1", unused_gpu(present_seconds=299), hosts=[limited_host(seconds=299.0)]),
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks_from_its_threshold_on_and_is_silent_without_evidence(name: str) -> None:
    make, expected = CASES[name]
    assert rules_of(make()) == expected


def test_every_rule_has_a_case_with_and_one_without_advice() -> None:
    assert set(RULES) == set(RULE_NAMES) == {rule for _, rules in CASES.values() for rule in rules}


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_a_rule_can_be_turned_off(rule: str) -> None:
    make = next(make for make, rules in CASES.values() if rules == [rule])
    assert rule not in rules_of(make(), replace(SETTINGS, without=(rule,)))


def test_without_the_rule_about_input_a_smaller_gpu_is_enough() -> None:
    made, _ = CASES["waits, and would fit into a profile"]
    assert rules_of(made(), replace(SETTINGS, without=("waiting_for_input",))) == ["smaller_gpu"]


@pytest.mark.parametrize(
    ("threshold", "case"),
    [
        ({"unused": 599.0}, "not yet used"),
        ({"late_start": 899.0}, "used first after less"),
        ({"idle_since": 3599.0}, "idle for less"),
        ({"smaller_gpu": 0.16}, "too busy for a smaller one"),
        ({"throttled": 0.09}, "throttled for less"),
        ({"host_memory": 0.6}, "half of it used"),
        ({"waiting": 0.5}, "busy CPUs, busy GPU"),
    ],
)
def test_thresholds_are_settings(threshold: dict[str, float], case: str) -> None:
    make, _ = CASES[case]
    made = make()
    if case == "too busy for a smaller one":
        # The smallest profile has a seventh of the SMs: two of them are needed.
        assert only(made, replace(SETTINGS, **threshold))["values"]["device"] == "MIG profile 2g.20gb"
    elif case == "busy CPUs, busy GPU":
        made["gpus"][0]["memory_mean_bytes"] = 40.0 * GIB
    assert len(rules_of(made, replace(SETTINGS, **threshold))) == 1


def test_a_never_used_gpu_saves_all_its_time() -> None:
    # One hour at 2 EUR each of GPUs 1 and 2.
    made = receipt("n1", gpu_row(), unused_gpu(index="1"), unused_gpu(index="2"))
    found = only(made)
    assert found["saving"] == {"gpu_microseconds": 2 * HOUR * MICRO, "cost": "4.0000000000", "kind": "exact"}
    assert found["gpus"] == ["1", "2"]
    assert found["text"] == (
        "GPUs 1 and 2 were never used (2 of 3): request 1, or let the program use all of them."
    )
    assert found["evidence"][0] == "GPU 1: 1h, no process was there; no engine was busy in any second"


def test_a_late_start_saves_the_wait() -> None:
    # 2 of 8 hours, of 6 EUR: 1.50.
    saving = only(receipt("n1", long_gpu(wait_seconds=2 * HOUR)))["saving"]
    assert saving == {"gpu_microseconds": 2 * HOUR * MICRO, "cost": "1.5000000000", "kind": "about"}


def test_an_idle_end_of_a_shared_gpu_saves_its_part() -> None:
    # A quarter of the GPU for eight hours is 2 GPU-hours at 1.50; idle for the last 4 of 8 hours: half of it.
    shared = long_gpu(gpu_microseconds=2 * HOUR * MICRO, time_cost="1.5000000000", tail_seconds=4 * HOUR)
    assert only(receipt("n1", shared))["saving"] == {
        "gpu_microseconds": HOUR * MICRO,
        "cost": "0.7500000000",
        "kind": "about",
    }


def test_a_profile_saves_the_multiprocessors_that_it_leaves() -> None:
    # Six sevenths of an hour at 2 EUR: 1.714285714285...
    saving = only(receipt("n1", small_gpu()))["saving"]
    assert saving == {"gpu_microseconds": 3_085_714_286, "cost": "1.7142857143", "kind": "about"}


def test_faster_input_saves_at_most_the_time_without_utilization() -> None:
    saving = only(receipt("n1", waiting_gpu(), hosts=[busy_host()]))["saving"]
    assert saving == {"gpu_microseconds": 2_700_000_000, "cost": "1.5000000000", "kind": "at_most"}


@pytest.mark.parametrize(
    "case", ["fits onto a smaller card", "throttled by heat", "memory of the node not used"]
)
def test_what_it_would_save_is_not_invented(case: str) -> None:
    make, _ = CASES[case]
    assert only(make())["saving"] is None


def test_without_a_price_the_hours_are_saved() -> None:
    saving = only(receipt("n1", unused_gpu(time_cost=None)))["saving"]
    assert saving is not None
    assert (saving["gpu_microseconds"], saving["cost"]) == (HOUR * MICRO, None)


def test_what_was_not_billed_is_not_saved() -> None:
    # By residence, a GPU without a process costs its owner nothing.
    assert only(receipt("n1", unused_gpu(gpu_microseconds=0, time_cost="0")))["saving"] is None


def test_instances_are_named_and_saved_by_their_part() -> None:
    # A third of the GPU for an hour.
    part = unused_gpu(
        index="3",
        instance="1_0",
        sm_share=1 / 3,
        gpu_microseconds=HOUR * MICRO // 3,
        time_cost="0.6666666667",
    )
    found = only(receipt("n1", gpu_row(), part))
    assert found["gpus"] == ["3/1_0"]
    assert found["saving"] is not None
    assert found["saving"]["cost"] == "0.6666666667"


def test_gpus_of_several_nodes_are_named_with_their_node() -> None:
    made = receipt("n1", gpu_row("n1"), unused_gpu("n2"), nodes=["n1", "n2"])
    assert only(made)["text"].startswith("GPU n2:0 was never used (1 of 2)")


def test_an_ended_job_was_idle_and_a_running_one_is() -> None:
    gpu = long_gpu(tail_seconds=2 * HOUR)
    assert "was idle for the last 2h" in only(receipt("n1", gpu))["text"]
    assert "has been idle for 2h" in only(receipt("n1", gpu, running=True))["text"]


def test_of_several_owners_no_number_of_gpus_is_recommended() -> None:
    made = receipt("n1", gpu_row(), unused_gpu(index="1"), owner=None)
    assert "request fewer GPUs" in only(made)["text"]


def test_advice_does_not_depend_on_the_advice_that_is_there() -> None:
    made = receipt("n1", unused_gpu())
    made["advice"] = advise(made, SETTINGS)
    assert advise(made, SETTINGS) == made["advice"]


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_the_docs_have_a_paragraph_with_the_threshold_of_each_rule(rule: str) -> None:
    page = (DOCS / "receipts.md").read_text(encoding="utf-8")
    paragraph = page.partition(f"### {rule}\n")[2].partition("\n### ")[0]
    (key,) = (item.key for _, item, _ in declared_settings(AdviceSettings) if f"rule {rule}:" in item.help)
    assert f"`{key}`" in paragraph


def test_gpus_one_after_the_other_are_not_too_many() -> None:
    """A pod that was restarted on another GPU requested one, and had two."""
    earlier = unused_gpu(index="1", begins=BEGIN - 2 * HOUR, ends=BEGIN)
    found = only(receipt("n1", gpu_row(), earlier))
    assert found["text"] == (
        "GPU 1 was never used (1 of 2): it had the others at other times: check that the program uses each "
        "GPU that it gets."
    )
    both = receipt("n1", gpu_row(), earlier, unused_gpu(index="2"))
    assert "request 1, or let the program" in only(both)["text"]
