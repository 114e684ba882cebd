"""The health of GPUs in the API: problems, throttling, Xids, and what the driver does not report."""

from __future__ import annotations

from builders import gpu, instance, node_state, reading, snapshot
from gpuledger.model import quantities as q
from gpuledger.model.session import LedgerState, ThrottleRow, XidRow
from gpuledger.web.api.gpu_health import health_fields, list_xids

CARD = gpu(0, pci_bus_id="00000000:18:00.0")
UNIX = 1_700_000_000.0
NARROW = {q.PCIE_WIDTH: 4, q.PCIE_WIDTH_MAX: 16}


def xid(number: int, code: int = 31, uuid: str = CARD.uuid, **more: object) -> XidRow:
    return XidRow(number, uuid, "", code, UNIX - 60, UNIX - 60 + number)._replace(**more)


def test_what_the_driver_does_not_report_is_null() -> None:
    found = health_fields(reading(CARD, values={}), LedgerState(), UNIX)
    assert (found["problems"], found["throttling"], found["xids"]) == ([], [], [])
    groups = [found[name] for name in ("ecc", "memory_repair", "pcie", "nvlink")]
    assert {value for group in groups for value in group.values()} == {None}


def test_a_count_of_zero_is_zero() -> None:
    values = {q.ECC_CORRECTED: 0, q.ROW_REMAP_PENDING: 0, q.NVLINKS_UP: 0b11, q.NVLINKS_DOWN: 0}
    found = health_fields(reading(CARD, values=values), LedgerState(), UNIX)
    assert (found["ecc"]["corrected"], found["ecc"]["uncorrected"]) == (0, None)
    assert (found["memory_repair"]["pending"], found["memory_repair"]["failed"]) == (False, None)
    assert (found["nvlink"]["up"], found["nvlink"]["down"]) == ([0, 1], [])


def test_a_problem_has_all_that_a_person_needs() -> None:
    (problem,) = health_fields(reading(CARD, values=NARROW), LedgerState(), UNIX)["problems"]
    assert (problem["kind"], problem["level"], problem["label"]) == (
        "pcie_width",
        "warning",
        "PCIe x4 of x16",
    )
    assert (problem["since"], problem["ratio"], problem["observed_seconds"]) == (None, None, None)
    assert problem["remedy"]


def test_throttling_says_its_share_of_the_observed_time() -> None:
    rows = (ThrottleRow("thermal", UNIX - 5, 30.0, 120.0, 0.9), ThrottleRow("power", None, 3.0, 120.0, 0.0))
    found = health_fields(reading(CARD, values={}), LedgerState(throttling={CARD.uuid: rows}), UNIX)
    assert [(row["reason"], row["active"], row["ratio"]) for row in found["throttling"]] == [
        ("thermal", True, 0.25),
        ("power", False, 0.025),
    ]
    (problem,) = found["problems"]
    assert (problem["kind"], problem["since"]) == ("thermal_throttling", UNIX - 5)
    assert (problem["ratio"], problem["observed_seconds"]) == (0.25, 120.0)


def test_the_newest_xids_of_the_gpu_are_listed_with_the_action() -> None:
    log = (*(xid(n) for n in range(1, 8)), xid(8, 79, pid=7, command="python"), xid(9, 31, "GPU-9"))
    found = health_fields(reading(CARD, values={}), LedgerState(xid_log=log), UNIX)["xids"]
    assert [one["xid"] for one in found] == [79, 31, 31, 31, 31]
    assert (found[0]["action"], found[0]["pid"], found[0]["command"]) == ("RESTART_BM", 7, "python")
    assert found[1]["pid"] is None and found[1]["advice"].startswith("restart the application")


def test_the_health_of_an_instance_is_that_of_its_gpu() -> None:
    ledger = LedgerState(xid_log=(xid(1, 79),), throttling={CARD.uuid: (ThrottleRow("thermal", 1, 1, 1, 1),)})
    found = health_fields(reading(instance(CARD, 1), values=NARROW), ledger, UNIX)
    assert (found["problems"], found["throttling"], found["xids"]) == ([], [], [])


def test_xids_can_be_selected_by_index_or_uuid_also_of_a_gpu_that_is_gone() -> None:
    state = node_state(snapshot(reading(CARD)), LedgerState(xid_log=(xid(1), xid(2, 79, "GPU-9"))))
    rows = list_xids(state, None)["xids"]
    assert [(row["gpu"], row["uuid"], row["xid"]) for row in rows] == [
        (None, "GPU-9", 79),
        ("0", CARD.uuid, 31),
    ]
    assert [row["xid"] for row in list_xids(state, "0")["xids"]] == [31]
    assert [row["xid"] for row in list_xids(state, "GPU-9")["xids"]] == [79]
    assert list_xids(state, "5")["xids"] == []
