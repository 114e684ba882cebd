"""The tick over nvidia-smi: MIG, pids, indexes, failures, and what is asked how often."""

from __future__ import annotations

import pytest

from builders import FakeClock
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import NO_USAGE, Usage
from gpuledger.sources.smi.command import NotStarted, Ran
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FirstSight, Recorded, fixture, processes, read, source

FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"
MIG = "MIG-cccccccc-0000-5000-8000-00000000000"
XML = fixture("cards/xml")


def test_a_tick_tells_pids_as_printed_with_type_name_and_memory() -> None:
    assert processes(read("cards")) == {
        FIRST: [
            (1187, "G", "/usr/lib/xorg/Xorg", 73),
            (52001, "C", "/opt/run a, b & c", 4812),
            (52002, "C+G", "render", 418),
        ],
        SECOND: [(52001, "M+C", "/opt/run a, b & c", 1016)],
    }


def test_usage_is_pmons_by_index_and_pid() -> None:
    used = {(one.device.gpu.index, one.pid): one.usage for one in read("cards").processes}
    assert used[0, 52001] == Usage(sm=0.57, memory=0.29)
    assert used[0, 52002] == Usage(sm=0.06, memory=0.0, encoder=0.07)
    assert used[1, 52001] == NO_USAGE


def test_what_nvidia_smi_does_not_have_is_absent() -> None:
    for reading in read("cards").readings:
        assert reading.samples is None
        assert not {q.ENERGY, q.PCIE_TX, q.PCIE_RX} & set(reading.values)


def test_only_what_is_wanted_is_told() -> None:
    seen = source(Recorded("cards")).read(frozenset({q.POWER}))
    assert [dict(reading.values) for reading in seen.readings] == [{q.POWER: 211.37}, {q.POWER: 71.9}]


def test_ecc_counts_are_the_sums_over_the_cards_life() -> None:
    values = read("cards").readings[1].values
    assert (values[q.ECC_CORRECTED], values[q.ECC_UNCORRECTED]) == (17, 5)


def test_mig_instances_have_their_uuid_profile_sms_and_memory() -> None:
    seen = read("mig")
    told = [one.device for one in seen.readings if isinstance(one.device, Instance)]
    assert [(one.uuid, one.gi, one.ci, one.index, one.profile, one.sm_count) for one in told] == [
        (MIG + "1", 1, 0, 0, "2c.3g.20gb", 28),
        (MIG + "2", 1, 1, 1, "1c.3g.20gb", 14),
        (MIG + "3", 13, 0, 2, "1g.5gb", 14),
    ]
    assert seen.readings[3].values[q.MEMORY_TOTAL] == 4864 * 2**20
    assert all(reading.mig_enabled for reading in seen.readings)


def test_processes_sit_on_their_instance_and_not_on_the_gpu() -> None:
    seen = read("mig")
    assert processes(seen) == {
        "GPU-bbbbbbbb-0000-4000-8000-000000000001": [],
        MIG + "1": [(7001, "C", "python3", 1900)],
        MIG + "2": [(7002, "C", "python3", 1050)],
        MIG + "3": [],
    }
    assert len(list(seen.processes)) == 2


def test_a_pid_on_two_instances_is_two_processes() -> None:
    seen = read("mig", xml=fixture("mig/xml").replace("7002", "7001"))
    assert [(one.device.uuid, one.pid) for one in seen.processes] == [(MIG + "1", 7001), (MIG + "2", 7001)]


def test_pmon_is_not_asked_where_only_mig_is_busy() -> None:
    run = Recorded("mig")
    source(run).read(ALL)
    assert "pmon" not in run.questions


def test_the_list_is_asked_once_per_topology() -> None:
    run = Recorded("mig")
    smi = source(run)
    for _ in range(3):
        smi.read(ALL)
    assert run.questions.count("list") == 1
    run.instead["xml"] = fixture("mig/xml").replace("<gpu_instance_id>13<", "<gpu_instance_id>11<")
    smi.read(ALL)
    assert run.questions.count("list") == 2


def test_a_machine_without_mig_is_not_asked_for_the_list() -> None:
    run = Recorded("cards")
    source(run).read(ALL)
    assert run.questions == ["xml", "pmon"]


def test_an_answer_that_does_not_count_its_gpus_takes_their_indexes_from_the_list() -> None:
    lost = XML[: XML.index("\t<gpu id=")] + XML[XML.index('\t<gpu id="00000000:81') :]
    seen = read("cards", xml=lost.replace("\t<attached_gpus>2</attached_gpus>\n", ""))
    assert [(one.device.uuid, one.device.gpu.index) for one in seen.readings] == [(SECOND, 1)]


def test_an_instance_whose_uuid_is_nowhere_told_goes_by_its_place_and_says_so() -> None:
    clock, run = FakeClock(), Recorded("mig", list=None)
    smi = source(run, clock=clock)
    seen = smi.read(ALL)
    assert seen.readings[1].device.uuid == "GPU-bbbbbbbb-0000-4000-8000-000000000001/1/0"
    assert {failure.reason for failure in seen.failures} == {"MIG_UUID_UNKNOWN"}
    run.instead.clear()
    assert smi.read(ALL).readings[1].device.uuid.startswith("GPU-")
    clock.advance(60)
    assert smi.read(ALL).readings[1].device.uuid == MIG + "1"


def test_a_process_on_an_instance_that_is_not_told_is_a_failure() -> None:
    text = fixture("mig/xml")
    place = text.index("<processes>")
    seen = read(
        "mig", xml=text[:place] + text[place:].replace("<gpu_instance_id>1<", "<gpu_instance_id>5<", 1)
    )
    assert [failure.reason for failure in seen.failures] == ["INSTANCE_UNKNOWN"]
    assert [one.pid for one in seen.processes] == [7002]


@pytest.mark.parametrize("chosen", ["1", SECOND.upper(), "00000000:81:00.0"])
def test_devices_chooses(chosen: str) -> None:
    assert [reading.device.uuid for reading in read("cards", chosen).readings] == [SECOND]


def test_the_host_is_asked_once_a_tick_for_every_pid() -> None:
    host = FirstSight()
    smi = SmiSource(SmiSettings(), (), host, FakeClock(), Recorded("cards"))
    seen = smi.read(ALL)
    assert host.asked == [{1187, 52001, 52002}]
    assert all(one.host.start.unix == seen.unix for one in seen.processes)


def test_each_part_says_how_it_went() -> None:
    seen = read("cards", pmon=None)
    assert [(part.name, part.success) for part in seen.collected] == [
        ("devices", True),
        ("readings", True),
        ("processes", True),
        ("utilization", False),
    ]
    assert all(one.usage == NO_USAGE for one in seen.processes)


def test_a_pmon_that_cannot_tell_is_asked_again_after_a_minute() -> None:
    clock, run = FakeClock(), Recorded("cards", pmon=None)
    smi = source(run, clock=clock)
    smi.read(ALL)
    clock.advance(30)
    assert not smi.read(ALL).collected[3].success
    assert run.questions.count("pmon") == 1
    clock.advance(30)
    smi.read(ALL)
    assert run.questions.count("pmon") == 2


def test_a_lost_gpu_that_was_known_keeps_its_identity_and_its_instances() -> None:
    run = Recorded("mig")
    smi = source(run)
    before = [reading.device for reading in smi.read(ALL).readings]
    gone = "Unable to determine the device handle for gpu 0000:41:00.0: GPU is lost.\n"
    other = fixture("xml/v13.xml").replace("<attached_gpus>1", "<attached_gpus>2")
    run.instead["xml"] = Ran((gone + other).encode(), code=15)
    seen = smi.read(ALL)
    lost = [reading for reading in seen.readings if not reading.up]
    assert [reading.device for reading in lost] == before
    assert all(reading.processes is None for reading in lost)
    assert seen.devices_failed


def test_an_error_exit_with_all_its_data_is_told_and_loses_nothing() -> None:
    seen = read("cards", xml=Ran(XML.encode(), b"WARNING: infoROM is corrupted at gpu 0000:01:00.0\n", 14))
    assert processes(seen) == processes(read("cards"))
    assert not seen.devices_failed
    (failure,) = seen.failures
    assert failure.reason == "exit_14"
    assert "the infoROM is corrupted" in failure.detail


def test_a_time_limit_keeps_the_gpus_that_came_whole() -> None:
    cut = XML[: XML.index("NVIDIA Example 80")]
    seen = read("cards", xml=Ran(cut.encode(), code=-9, timed_out=True))
    assert [reading.device.uuid for reading in seen.readings] == [FIRST]
    assert seen.devices_failed
    assert "timeout" in [failure.reason for failure in seen.failures]


@pytest.mark.parametrize(
    ("outcome", "reason", "says"),
    [
        (NotStarted("FileNotFoundError", "x"), "command_not_found", "install the NVIDIA driver"),
        (NotStarted("stuck", "pid 7 was killed and has not ended"), "stuck", "hangs in the driver"),
        (NotStarted("PermissionError", "not allowed"), "command_not_started", "not allowed"),
        (Ran(b"NVIDIA-SMI has failed because ...", code=9), "exit_9", "driver is not loaded"),
        (Ran(b"", b"libnvidia-ml.so", 12), "exit_12", "NVML shared library"),
        (Ran(b"", b"bash: nvidia-smi: command not found", 127), "exit_127", "not found"),
        (Ran(b"", code=-9, timed_out=True), "timeout", "did not answer within 10 s"),
        (Ran(b"", b"", 255), "exit_255", "internal driver error"),
        (Ran(b"", code=0), "exit_0", "holds no GPU"),
    ],
)
def test_a_command_that_gives_nothing_is_one_line_with_the_remedy(
    outcome: Ran | NotStarted, reason: str, says: str
) -> None:
    instead = dict.fromkeys(("xml", "query_gpu", "query_compute_apps", "report"), outcome)
    with pytest.raises(SourceUnavailable) as caught:
        read("cards", **instead)
    assert caught.value.reason == reason
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_after_a_missing_driver_nothing_else_is_asked() -> None:
    run = Recorded("cards", xml=Ran(b"", code=9))
    with pytest.raises(SourceUnavailable):
        source(run).read(ALL)
    assert run.questions == ["xml"]


def test_the_same_uuid_twice_is_one_gpu_and_a_failure() -> None:
    seen = read("cards", xml=XML.replace(SECOND, FIRST))
    assert len(seen.readings) == 1
    assert seen.devices_failed
    assert [failure.reason for failure in seen.failures] == ["DUPLICATE_UUID"]


def test_the_source_names_itself_and_its_versions() -> None:
    smi = source(Recorded("cards"))
    assert smi.info.name == "smi"
    smi.read(ALL)
    assert (smi.info.driver_version, smi.info.cuda_version) == ("550.54.15", "12.4")
    assert not smi.info.simulated
    smi.close()
