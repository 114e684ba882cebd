"""Any driver call may return any error code: no crash, no wrong number, reported health, no lost energy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_rig import LISTS, FaultRig, codes_for, source_calls
from gpuledger.sources.nvml.codes import NOTHING_YET, UNSUPPORTED, Code
from nvml.library import NvmlAccount

# Ticks until everything is reported again: the driver's start is retried after 1, 2 and 4 s, slow quantities
# are read every other tick.
MOST = 4
# Calls that are used when a newer one is missing: as a symbol of the library, or on this GPU.
OLD = {
    "nvmlInit_v2": "nvmlInitWithFlags",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksEventReasons",
}
INSTEAD = {
    # Called for a GPU that was lost.
    "nvmlDeviceGetHandleByUUID": ("nvmlDeviceGetMigMode", 15),
    "nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo_v2", 3),
    "nvmlDeviceGetPciInfo_v2": ("nvmlDeviceGetPciInfo_v3", 13),
    "nvmlDeviceGetProcessUtilization": ("nvmlDeviceGetProcessesUtilizationInfo", 3),
    "nvmlDeviceGetTotalEnergyConsumption": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetTotalEccErrors": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetPowerManagementLimit": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetPowerManagementDefaultLimit": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetPowerManagementLimitConstraints": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetPcieReplayCounter": ("nvmlDeviceGetFieldValues", 3),
    "nvmlDeviceGetNvLinkState": ("nvmlDeviceGetFieldValues", 3),
}


# Codes that are answers, not failures: no MIG support, an empty slot, no such list, no engine was used.
SAYS = {
    "nvmlDeviceGetMigMode": UNSUPPORTED,
    "nvmlDeviceGetMaxMigDeviceCount": UNSUPPORTED,
    "nvmlDeviceGetMigDeviceHandleByIndex": {2, 6},
    **{f"nvmlDeviceGet{kind}RunningProcesses_v3": {3, 13} for kind in LISTS},
    "nvmlDeviceGetProcessesUtilizationInfo": {6},
    "nvmlDeviceGetProcessUtilization": {6},
}


@pytest.mark.parametrize("call", source_calls())
def test_a_call_may_return_any_error_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    rig = FaultRig(tmp_path, monkeypatch, without={OLD.get(call)})
    called, repeated = False, True
    for code in codes_for(call):
        # Once is enough with a driver that has started before, if only a start makes the call.
        for fresh in (True, False) if repeated else (True,):
            rig.driver.answers = dict([INSTEAD[call]] if call in INSTEAD else []) | {call: code}
            if fresh:
                # Only a reloaded driver is called again, and only for new processes.
                rig.state.reload += call == "nvmlDeviceSetAccountingMode"
                rig.host.born[11] = code if call == "nvmlSystemGetProcessName" else 11
                rig.restart_driver()
            for tick in range(2):
                # These calls are made only for processes that are new in the accounting records.
                account = NvmlAccount(9000 + 4 * code + 2 * fresh + tick, 1, running=True)
                rig.gpus[1].accounts[1:] = [account] if "Stats" in call else []
                rig.run_tick()
                says = code in SAYS.get(call, ())
                rig.assert_nothing_wrong(*(("GPU-calm",) if says else ()))
                missing = () if says else rig.find_unreported()
                assert not missing or not rig.last.health.healthy or code in NOTHING_YET, (code, missing)
            called |= call in rig.driver.called
            repeated = fresh or call in rig.driver.called
            rig.driver.answers.clear()
            rig.driver.called.clear()
            if code in UNSUPPORTED or code == Code.INVALID_ARGUMENT or call in INSTEAD:
                rig.run_tick(601.0)
            # Reported during or after the recovery: a new event set holds no earlier events.
            rig.state.events.append((1, code))
            xids = rig.xids(rig.settle(MOST))
            if not xids:
                rig.state.events.append((1, code))
                rig.run_tick()
                xids = rig.xids(1)
            assert xids == [("GPU-whole", code)]
    assert called
    booked = rig.end()
    # Each counter kept counting, and everything since its first change is in the ledger.
    assert set(rig.booked().values()) == {rig.counter - rig.opening}
    assert booked == 3 * (rig.counter - rig.opening)
    if call not in SAYS and call != "nvmlSystemGetProcessName":
        assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]
