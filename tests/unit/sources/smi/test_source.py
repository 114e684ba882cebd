"""One tick of the smi source: MIG, pids, indexes, failures, and the number of calls."""

from __future__ import annotations

import pytest

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import NO_USAGE, Usage
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FirstSeenHost, Recorded, fixture, processes, read, source

FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"
MIG = "MIG-cccccccc-0000-5000-8000-00000000000"
XML = fixture("cards/xml")


def test_a_tick_returns_pids_with_type_name_and_memory() -> None:
    assert processes(read("cards")) == {
        FIRST: [
            (1187, "G", "/usr/lib/xorg/Xorg", 73),
            (52001, "C", "/opt/run a, b & c", 4812),
            (52002, "C+G", "render", 418),
        ],
        SECOND: [(52001, "M+C", "/opt/run a, b & c", 1016)],
    }


def test_usage_comes_from_pmon_by_index_and_pid() -> None:
    used = {(process.device.gpu.index, process.pid): process.usage for process in read("cards").processes}
    assert used[0, 52001] == Usage(sm=0.57, memory=0.29)
    assert used[0, 52002] == Usage(sm=0.06, memory=0.0, encoder=0.07)
    assert used[1, 52001] == NO_USAGE


def test_values_that_nvidia_smi_does_not_have_are_absent() -> None:
    for reading in read("cards").readings:
        assert reading.samples is None
        assert not {q.ENERGY, q.PCIE_TX, q.PCIE_RX} & set(reading.values)


def test_only_wanted_quantities_are_returned() -> None:
    snapshot = source(Recorded("cards")).read(frozenset({q.POWER}))
    assert [dict(reading.values) for reading in snapshot.readings] == [{q.POWER: 211.37}, {q.POWER: 71.9}]


def test_ecc_counts_are_sums_over_the_lifetime_of_the_gpu() -> None:
    values = read("cards").readings[1].values
    assert (values[q.ECC_CORRECTED], values[q.ECC_UNCORRECTED]) == (17, 5)


def test_mig_instances_have_uuid_profile_sm_count_and_memory() -> None:
    snapshot = read("mig")
    instances = [reading.device for reading in snapshot.readings if isinstance(reading.device, Instance)]
    assert [(item.uuid, item.gi, item.ci, item.index, item.profile, item.sm_count) for item in instances] == [
        (MIG + "1", 1, 0, 0, "2c.3g.20gb", 28),
        (MIG + "2", 1, 1, 1, "1c.3g.20gb", 14),
        (MIG + "3", 13, 0, 2, "1g.5gb", 14),
    ]
    assert snapshot.readings[3].values[q.MEMORY_TOTAL] == 4864 * 2**20
    assert all(reading.mig_enabled for reading in snapshot.readings)


def test_processes_are_listed_on_their_instance_not_on_the_gpu() -> None:
    snapshot = read("mig")
    assert processes(snapshot) == {
        "GPU-bbbbbbbb-0000-4000-8000-000000000001": [],
        MIG + "1": [(7001, "C", "python3", 1900)],
        MIG + "2": [(7002, "C", "python3", 1050)],
        MIG + "3": [],
    }
    assert len(list(snapshot.processes)) == 2


def test_a_pid_on_two_instances_is_two_processes() -> None:
    snapshot = read("mig", xml=fixture("mig/xml").replace("7002", "7001"))
    assert [(process.device.uuid, process.pid) for process in snapshot.processes] == [
        (MIG + "1", 7001),
        (MIG + "2", 7001),
    ]


def test_pmon_is_not_called_if_only_mig_instances_have_processes() -> None:
    run = Recorded("mig")
    source(run).read(ALL)
    assert "pmon" not in run.queries


def test_the_listing_is_queried_once_per_topology() -> None:
    run = Recorded("mig")
    smi = source(run)
    for _ in range(3):
        smi.read(ALL)
    assert run.queries.count("list") == 1
    run.instead["xml"] = fixture("mig/xml").replace("<gpu_instance_id>13<", "<gpu_instance_id>11<")
    smi.read(ALL)
    assert run.queries.count("list") == 2


def test_the_listing_is_not_queried_without_mig() -> None:
    run = Recorded("cards")
    source(run).read(ALL)
    assert run.queries == ["xml", "pmon"]


def test_without_a_gpu_count_indexes_come_from_the_listing() -> None:
    lost = XML[: XML.index("\t<gpu id=")] + XML[XML.index('\t<gpu id="00000000:81') :]
    snapshot = read("cards", xml=lost.replace("\t<attached_gpus>2</attached_gpus>\n", ""))
    assert [(reading.device.uuid, reading.device.gpu.index) for reading in snapshot.readings] == [(SECOND, 1)]


def test_an_instance_without_uuid_is_identified_by_its_ids_with_a_failure() -> None:
    clock, run = FakeClock(), Recorded("mig", list=None)
    smi = source(run, clock=clock)
    snapshot = smi.read(ALL)
    assert snapshot.readings[1].device.uuid == "GPU-bbbbbbbb-0000-4000-8000-000000000001/1/0"
    assert {failure.reason for failure in snapshot.failures} == {"MIG_UUID_UNKNOWN"}
    run.instead.clear()
    assert smi.read(ALL).readings[1].device.uuid.startswith("GPU-")
    clock.advance(60)
    assert smi.read(ALL).readings[1].device.uuid == MIG + "1"


def test_a_process_on_an_unknown_instance_is_a_failure() -> None:
    text = fixture("mig/xml")
    start = text.index("<processes>")
    snapshot = read(
        "mig", xml=text[:start] + text[start:].replace("<gpu_instance_id>1<", "<gpu_instance_id>5<", 1)
    )
    assert [failure.reason for failure in snapshot.failures] == ["INSTANCE_UNKNOWN"]
    assert [process.pid for process in snapshot.processes] == [7002]


@pytest.mark.parametrize("selector", ["1", SECOND.upper(), "00000000:81:00.0"])
def test_devices_selects_gpus_by_index_uuid_or_bus_id(selector: str) -> None:
    assert [reading.device.uuid for reading in read("cards", selector).readings] == [SECOND]


def test_a_request_for_pcie_samples_is_answered_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    smi = source(Recorded("cards"))
    for wanted in (ALL, ALL | {q.PCIE_SAMPLES}, ALL | {q.PCIE_SAMPLES}):
        smi.read(wanted)
    (line,) = [record.message for record in caplog.records]
    assert "--smi.pcie-throughput has no effect" in line and "--source nvml" in line


def test_the_host_identifies_all_pids_once_per_tick() -> None:
    host = FirstSeenHost()
    smi = SmiSource(SmiSettings(), (), host, FakeClock(), Recorded("cards"))
    snapshot = smi.read(ALL)
    assert host.identified == [{1187, 52001, 52002}]
    assert all(process.host.start.unix == snapshot.unix for process in snapshot.processes)


def test_each_part_reports_its_success() -> None:
    snapshot = read("cards", pmon=None)
    assert [(part.name, part.success) for part in snapshot.collected] == [
        ("devices", True),
        ("readings", True),
        ("processes", True),
        ("utilization", False),
    ]
    assert all(process.usage == NO_USAGE for process in snapshot.processes)


def test_a_failed_pmon_is_retried_after_a_minute() -> None:
    clock, run = FakeClock(), Recorded("cards", pmon=None)
    smi = source(run, clock=clock)
    smi.read(ALL)
    clock.advance(30)
    assert not smi.read(ALL).collected[3].success
    assert run.queries.count("pmon") == 1
    clock.advance(30)
    smi.read(ALL)
    assert run.queries.count("pmon") == 2


def test_a_known_gpu_that_is_lost_keeps_its_identity_and_instances() -> None:
    run = Recorded("mig")
    smi = source(run)
    before = [reading.device for reading in smi.read(ALL).readings]
    gone = "Unable to determine the device handle for gpu 0000:41:00.0: GPU is lost.\n"
    other = fixture("xml/v13.xml").replace("<attached_gpus>1", "<attached_gpus>2")
    run.instead["xml"] = CommandResult((gone + other).encode(), exit_code=15)
    snapshot = smi.read(ALL)
    lost = [reading for reading in snapshot.readings if not reading.up]
    assert [reading.device for reading in lost] == before
    assert all(reading.processes is None for reading in lost)
    assert snapshot.devices_failed


def test_an_error_exit_with_complete_data_is_reported_and_loses_no_data() -> None:
    snapshot = read(
        "cards", xml=CommandResult(XML.encode(), b"WARNING: infoROM is corrupted at gpu 0000:01:00.0\n", 14)
    )
    assert processes(snapshot) == processes(read("cards"))
    assert not snapshot.devices_failed
    (failure,) = snapshot.failures
    assert failure.reason == "exit_14"
    assert "the infoROM is corrupted" in failure.detail


def test_a_timeout_keeps_the_gpus_with_complete_output() -> None:
    cut = XML[: XML.index("NVIDIA Example 80")]
    snapshot = read("cards", xml=CommandResult(cut.encode(), exit_code=-9, timed_out=True))
    assert [reading.device.uuid for reading in snapshot.readings] == [FIRST]
    assert snapshot.devices_failed
    assert "timeout" in [failure.reason for failure in snapshot.failures]


def not_started(reason: str, detail: str) -> CommandResult:
    return CommandResult(exit_code=-1, not_started=reason, detail=detail)


@pytest.mark.parametrize(
    ("outcome", "reason", "expected"),
    [
        (
            not_started("FileNotFoundError", "x"),
            "command_not_found",
            "install the NVIDIA driver",
        ),
        (
            not_started("stuck", "pid 7 was killed and has not ended"),
            "stuck",
            "hangs in the driver",
        ),
        (
            not_started("PermissionError", "not allowed"),
            "command_not_started",
            "not allowed",
        ),
        (CommandResult(b"NVIDIA-SMI has failed because ...", exit_code=9), "exit_9", "driver is not loaded"),
        (CommandResult(b"", b"libnvidia-ml.so", 12), "exit_12", "NVML shared library"),
        (CommandResult(b"", b"bash: nvidia-smi: command not found", 127), "exit_127", "not found"),
        (CommandResult(b"", exit_code=-9, timed_out=True), "timeout", "did not answer within 30 s"),
        (CommandResult(b"", b"", 255), "exit_255", "internal driver error"),
        (CommandResult(b"", exit_code=0), "exit_0", "contains no readable GPU"),
    ],
)
def test_a_failed_command_is_reported_in_one_line_with_the_remedy(
    outcome: CommandResult, reason: str, expected: str
) -> None:
    instead = dict.fromkeys(("xml", "query_gpu", "query_compute_apps", "report"), outcome)
    with pytest.raises(SourceUnavailable) as caught:
        read("cards", **instead)
    assert caught.value.reason == reason
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_after_a_missing_driver_no_other_query_is_run() -> None:
    run = Recorded("cards", xml=CommandResult(b"", exit_code=9))
    with pytest.raises(SourceUnavailable):
        source(run).read(ALL)
    assert run.queries == ["xml"]


def test_a_duplicate_uuid_is_one_gpu_and_a_failure() -> None:
    snapshot = read("cards", xml=XML.replace(SECOND, FIRST))
    assert len(snapshot.readings) == 1
    assert snapshot.devices_failed
    assert [failure.reason for failure in snapshot.failures] == ["DUPLICATE_UUID"]


def test_info_has_the_source_name_and_versions() -> None:
    smi = source(Recorded("cards"))
    assert smi.info.name == "smi"
    smi.read(ALL)
    assert (smi.info.driver_version, smi.info.cuda_version) == ("550.54.15", "12.4")
    assert not smi.info.simulated
    smi.close()
