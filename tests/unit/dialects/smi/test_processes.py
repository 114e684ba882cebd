"""Compute processes in the smi dialect: names, memory and number, per GPU and per MIG instance."""

from __future__ import annotations

from builders import GIB, gpu, instance, process, reading
from gpuledger.model import quantities as q
from gpuledger.model.session import LedgerState
from unit.dialects.smi.support import CARD, lines, state_of


def test_compute_processes_have_name_and_memory_and_their_number() -> None:
    seen = state_of(
        reading(
            CARD,
            process(CARD, 42, name="/usr/bin/python3", memory=2 * GIB),
            process(CARD, 43, name="", executable="/opt/run", types="M", memory=None),
            process(CARD, 44, name="/usr/lib/xorg/Xorg", types="G"),
        ),
        reading(gpu(1)),
    )
    series = {key: value for key, value in lines(seen).items() if "compute_app" in key}
    assert series == {
        'nvidia_smi_compute_app_info{pid="42",process_name="/usr/bin/python3",uuid="0"}': "1",
        'nvidia_smi_compute_app_info{pid="43",process_name="run",uuid="0"}': "1",
        'nvidia_smi_compute_app_used_memory_bytes{pid="42",process_name="/usr/bin/python3",uuid="0"}': str(
            2 * GIB
        ),
        'nvidia_smi_compute_apps{uuid="0"}': "2",
        'nvidia_smi_compute_apps{uuid="1"}': "0",
        # The memory of one process on the first GPU is not known.
        'nvidia_smi_compute_apps_used_memory_bytes{uuid="1"}': "0",
        "nvidia_smi_compute_apps_last_collect_success": "1",
    }


def test_the_memory_of_all_compute_processes_of_a_gpu_is_their_exact_sum() -> None:
    card = gpu(2, unified_memory=True)
    large = 2**60
    parts = [instance(gpu(1), gi, 0) for gi in (1, 2)]
    series = lines(
        state_of(
            reading(
                card,
                process(card, 1, memory=large + 1),
                process(card, 2, memory=large),
                process(card, 3, types="G", memory=5),
            ),
            reading(gpu(1)),
            *(reading(part, process(part, 4, memory=GIB)) for part in parts),
            reading(gpu(3), failed=True),
        )
    )
    name = "nvidia_smi_compute_apps_used_memory_bytes"
    assert {key: value for key, value in series.items() if key.startswith(name)} == {
        f'{name}{{uuid="2"}}': str(2 * large + 1),
        f'{name}{{uuid="1"}}': str(2 * GIB),
    }


def test_a_failed_process_list_has_no_count_and_no_success() -> None:
    series = lines(state_of(reading(CARD, failed=True), reading(gpu(1))))
    assert 'nvidia_smi_compute_apps{uuid="0"}' not in series
    assert series['nvidia_smi_compute_apps{uuid="1"}'] == "0"
    assert series["nvidia_smi_compute_apps_last_collect_success"] == "0"


def test_processes_beyond_the_cap_are_only_in_the_count() -> None:
    first, second = process(CARD, 1), process(CARD, 2)
    ledger = LedgerState(omitted={CARD.uuid: frozenset({second.key})})
    series = lines(state_of(reading(CARD, first, second), ledger=ledger))
    assert [key for key in series if key.startswith("nvidia_smi_compute_app_info")] == [
        'nvidia_smi_compute_app_info{pid="1",process_name="python3",uuid="0"}'
    ]
    assert series['nvidia_smi_compute_apps{uuid="0"}'] == "2"


def test_processes_can_be_disabled() -> None:
    assert not any(
        "compute_app" in key for key in lines(state_of(reading(CARD, process(CARD))), compute_apps=False)
    )


def test_under_mig_processes_and_memory_are_per_instance_and_counts_per_gpu() -> None:
    cut = gpu(2)
    first = instance(cut, 2, 0, profile="3g.40gb")
    twin = instance(cut, 9, 0, 1, profile="1c.2g.20gb")
    other = instance(cut, 9, 1, 2, profile="1c.2g.20gb")
    activity = {q.ENGINE_ACTIVITY: 0.5, q.SM_ACTIVITY: 0.25, q.SM_OCCUPANCY: 0.125, q.TENSOR_ACTIVITY: 0.0625}
    series = lines(
        state_of(
            reading(cut, mig_enabled=True, values={}),
            reading(
                first, process(first, 7), values={q.MEMORY_TOTAL: 40 * GIB, q.MEMORY_USED: GIB, **activity}
            ),
            reading(twin, process(twin, 8), values={q.MEMORY_TOTAL: 20 * GIB}),
            reading(other, process(other, 9), values={q.MEMORY_TOTAL: 20 * GIB}),
        )
    )
    where = 'gpu_instance_id="2",uuid="2"'
    assert series['nvidia_smi_compute_apps{uuid="2"}'] == "3"
    assert (
        series[
            'nvidia_smi_compute_app_info{compute_instance_id="1",gpu_instance_id="9",pid="9",process_name="python3",uuid="2"}'
        ]
        == "1"
    )
    assert (
        series[
            'nvidia_smi_mig_info{compute_instance_id="0",gpu_instance_id="2",mig_uuid="2-2-0",profile="3g.40gb",uuid="2"}'
        ]
        == "1"
    )
    assert {key: value for key, value in series.items() if "_mig_" in key and "mig_info" not in key} == {
        f"nvidia_smi_mig_memory_total_bytes{{{where}}}": str(40 * GIB),
        'nvidia_smi_mig_memory_total_bytes{gpu_instance_id="9",uuid="2"}': str(20 * GIB),
        f"nvidia_smi_mig_memory_used_bytes{{{where}}}": str(GIB),
        f"nvidia_smi_mig_graphics_activity_ratio{{{where}}}": "0.5",
        f"nvidia_smi_mig_sm_activity_ratio{{{where}}}": "0.25",
        f"nvidia_smi_mig_sm_occupancy_ratio{{{where}}}": "0.125",
        f"nvidia_smi_mig_tensor_activity_ratio{{{where}}}": "0.0625",
    }
