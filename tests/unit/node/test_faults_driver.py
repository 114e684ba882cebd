"""Whatever a driver's call answers: no crash, no wrong number, health tells it, and no joule is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_rig import CODES, LISTS, FaultRig, calls_of_the_source
from gpuledger.sources.nvml.codes import INVALID_ARGUMENT, NOTHING_YET, UNSUPPORTED
from nvml.library import NvmlAccount

# Ticks until all is told again: the driver's start is tried after 1, 2 and 4 s, slow quantities every other.
MOST = 4
# Calls that are made where a newer one does not exist: as a symbol, or for the card.
OLD = {
    "nvmlInit_v2": "nvmlInitWithFlags",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksEventReasons",
}
INSTEAD = {
    # Asked of a card that was lost.
    "nvmlDeviceGetHandleByUUID": ("nvmlDeviceGetMigMode", 15),
    "nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo_v2", 3),
    "nvmlDeviceGetPciInfo_v2": ("nvmlDeviceGetPciInfo_v3", 13),
    "nvmlDeviceGetProcessUtilization": ("nvmlDeviceGetProcessesUtilizationInfo", 3),
    "nvmlDeviceGetTotalEnergyConsumption": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetTotalEccErrors": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetPowerManagementLimit": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetPowerManagementDefaultLimit": ("nvmlDeviceGetFieldValues", 3),
}


# No fault but an answer: a card cannot be cut, a slot is empty, there is no such list, nobody used an engine.
SAYS = {
    "nvmlDeviceGetMigMode": UNSUPPORTED,
    "nvmlDeviceGetMaxMigDeviceCount": UNSUPPORTED,
    "nvmlDeviceGetMigDeviceHandleByIndex": {2, 6},
    **{f"nvmlDeviceGet{kind}RunningProcesses_v3": {3, 13} for kind in LISTS},
    "nvmlDeviceGetProcessesUtilizationInfo": {6},
    "nvmlDeviceGetProcessUtilization": {6},
}


@pytest.mark.parametrize("call", calls_of_the_source())
def test_a_call_may_answer_any_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    rig = FaultRig(tmp_path, monkeypatch, without={OLD.get(call)})
    for code in CODES:
        for fresh in (True, False):
            rig.driver.answers = dict([INSTEAD[call]] if call in INSTEAD else []) | {call: code}
            if fresh:
                # Only a driver that was loaded anew is asked again, and only for new processes.
                rig.state.reload += call == "nvmlDeviceSetAccountingMode"
                rig.host.born[11] = code if call == "nvmlSystemGetProcessName" else 11
                rig.restart_driver()
            for tick in range(2):
                # Of a process that is new in the records these are read.
                account = NvmlAccount(9000 + 4 * code + 2 * fresh + tick, 1, running=True)
                rig.gpus[1].accounts[1:] = [account] if "Stats" in call else []
                rig.page()
                says = code in SAYS.get(call, ())
                rig.assert_nothing_wrong(*(("GPU-calm",) if says else ()))
                missing = () if says else rig.lacks()
                assert not missing or not rig.last.health.healthy or code in NOTHING_YET, (code, missing)
            rig.driver.answers.clear()
            if code in UNSUPPORTED or code == INVALID_ARGUMENT or call in INSTEAD:
                rig.page(601.0)
            # Told while all comes back, or after it: a set of events that is made anew has none from before.
            rig.state.events.append((1, code))
            told = rig.xids(rig.settle(MOST))
            if not told:
                rig.state.events.append((1, code))
                rig.page()
                told = rig.xids(1)
            assert told == [("GPU-whole", code)]
    assert call in rig.driver.asked
    booked = rig.end()
    # Each counter went on all the time, and whatever it counted since it moved first is in the books.
    assert set(rig.booked().values()) == {rig.counter - rig.opening}
    assert booked == 3 * (rig.counter - rig.opening)
    if call not in SAYS and call != "nvmlSystemGetProcessName":
        assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]
