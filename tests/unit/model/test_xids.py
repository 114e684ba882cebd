"""The table of Xids: meaning and recommended action."""

import re
from pathlib import Path

import pytest

from gpuledger.model.xids import XID_ACTIONS, XIDS, find_xid, xid_advice

ROOT = Path(__file__).parents[3]
ACTIONS = {
    "IGNORE": (37, 43, 63, 92, 93, 121, 137, 141, 160),
    "RESTART_APP": (8, 13, 31, 32, 39, 68, 69, 80, 82, 94, 126, 139),
    "RESET_GPU": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158),
    "RESTART_BM": (79,),
    "RESTART_VM": (151,),
    "CHECK_MECHANICALS": (54,),
    "CHECK_UVM": (159,),
    "UPDATE_SWFW": (78,),
    "WORKFLOW_XID_45": (45,),
    "WORKFLOW_XID_48": (48,),
    "WORKFLOW_NVLINK_ERR": (74,),
    "WORKFLOW_NVLINK5_ERR": (144, 145, 146, 147, 148, 149, 150),
    "XID_154": (154,),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_xid_has_the_action_of_nvidias_catalog(action: str) -> None:
    assert {code: find_xid(code).action for code in ACTIONS[action]} == dict.fromkeys(ACTIONS[action], action)


def test_each_action_has_advice_and_each_xid_a_meaning() -> None:
    assert {xid.action for xid in XIDS.values()} <= XID_ACTIONS.keys()
    assert all(xid.meaning for xid in XIDS.values())


def test_an_unknown_xid_says_so() -> None:
    assert find_xid(9999).meaning == "an Xid that gpuledger does not know"
    assert find_xid(9999).action == "" and "Xid catalog" in xid_advice(9999)


def test_an_xid_without_an_action_in_the_catalog_is_explained_but_nothing_is_advised() -> None:
    found = {code: find_xid(code) for code in range(162, 171)}
    assert {xid.action for xid in found.values()} == {""}
    assert len({xid.meaning for xid in found.values()} - {find_xid(9999).meaning}) == len(found)


def test_the_alert_of_fatal_xids_fires_for_failures() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "hardware.yml").read_text()
    (fatal,) = re.findall(r"alert: GPUXidFatal\n.*\n.*xid=~\"([0-9|]+)\"", rules)
    failures = {code for code, xid in XIDS.items() if XID_ACTIONS[xid.action].level == "failure"}
    # 154 only announces a recovery action; 171 has an alert with contained errors.
    assert {int(code) for code in fatal.split("|")} == failures - {171} | {154}


def test_advice_names_the_gpu_if_it_is_known() -> None:
    assert "-i 00000000:18:00.0`" in xid_advice(95, "00000000:18:00.0")
    assert "-i BUS_ID`" in xid_advice(95)
