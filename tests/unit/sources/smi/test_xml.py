"""`-q -x`: all schemas give the same quantities, and malformed documents lose only their bad parts."""

from __future__ import annotations

import pytest

from gpuledger.model import quantities as q
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import FIXTURES, fixture, processes, read

CARDS = fixture("cards/xml")
FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"


@pytest.mark.parametrize("schema", ["v10", "v11", "v12", "v13"])
def test_every_schema_gives_the_same_values(schema: str) -> None:
    snapshot = read("cards", xml=fixture(f"xml/{schema}.xml"), pmon=None)
    (reading,) = snapshot.readings
    assert reading.device.uuid == f"GPU-dddddddd-0000-4000-8000-0000000000{schema[1:]}"
    # Only v13 has it.
    instant = {q.POWER_INSTANT: 61.02} if schema == "v13" else {}
    assert reading.values == instant | {
        q.MEMORY_TOTAL: 16130 * 2**20,
        q.MEMORY_USED: 1100 * 2**20,
        q.MEMORY_FREE: 15030 * 2**20,
        q.POWER: 54.17,
        q.POWER_LIMIT: 250.0,
        q.POWER_LIMIT_MANAGEMENT: 250.0,
        q.POWER_LIMIT_MAX: 300.0,
        q.TEMPERATURE: 40.0,
        q.PERFORMANCE_STATE: 0.0,
        q.ECC_CORRECTED: 7.0,
        q.ECC_UNCORRECTED: 0.0,
    }
    assert processes(snapshot) == {reading.device.uuid: [(301, "C", "a.out", 1089)]}
    assert snapshot.invalid == 0


def test_gpu_attributes_are_as_printed() -> None:
    device = read("cards").readings[0].device.gpu
    assert (device.uuid, device.index, device.minor, device.pci_bus_id) == (FIRST, 0, 3, "00000000:01:00.0")
    assert (device.name, device.architecture, device.vbios) == (
        "NVIDIA Example 24",
        "Ada Lovelace",
        "95.02.18.80.01",
    )
    assert device.serial is None


def test_power_of_a_module_is_not_the_power_of_the_gpu() -> None:
    (reading,) = read("cards", xml=fixture("xml/v12.xml")).readings
    assert reading.values[q.POWER] == 54.17


def test_an_unsupported_quantity_is_absent_and_reported_as_unsupported() -> None:
    reading = read("cards").readings[0]
    assert q.MEMORY_TEMPERATURE not in reading.values
    assert reading.supported["memory_temperature"] is False
    assert reading.supported["utilization"] is True
    assert "energy" not in reading.supported


def test_a_gpu_without_its_own_memory_has_unified_memory() -> None:
    text = fixture("xml/v13.xml")
    for cell in ("16130 MiB", "1100 MiB", "15030 MiB"):
        text = text.replace(f">{cell}<", ">N/A<", 1)
    (reading,) = read("cards", xml=text).readings
    assert reading.device.gpu.unified_memory
    assert q.MEMORY_TOTAL not in reading.values
    assert processes(read("cards", xml=text))[reading.device.uuid] == [(301, "C", "a.out", 1089)]


def test_a_truncated_document_keeps_the_gpus_before_the_cut() -> None:
    cut = CARDS[: CARDS.index("<serial>1650000000002")]
    snapshot = read("cards", xml=cut)
    assert [reading.device.uuid for reading in snapshot.readings] == [FIRST]
    assert snapshot.devices_failed
    assert [failure.reason for failure in snapshot.failures] == ["TRUNCATED"]


@pytest.mark.parametrize("position", range(0, len(CARDS), 97))
def test_a_gpu_in_a_truncated_document_is_complete_or_missing(position: int) -> None:
    blocks = parse_xml(CARDS[:position]).blocks
    complete = parse_xml(CARDS).blocks
    assert blocks == complete[: len(blocks)]


def test_a_malformed_gpu_does_not_affect_the_others() -> None:
    text = CARDS.replace("</utilization>", "<//utilization", 1)
    snapshot = read("cards", xml=text)
    assert [reading.device.uuid for reading in snapshot.readings] == [SECOND]
    assert snapshot.devices_failed


def test_a_missing_gpu_does_not_shift_the_index_of_the_next() -> None:
    snapshot = read("cards", xml=CARDS.replace("</utilization>", "<//utilization", 1))
    assert snapshot.readings[0].device.gpu.index == 1


def test_a_malformed_cell_does_not_affect_the_others() -> None:
    snapshot = read(
        "cards", xml=CARDS.replace("<power_draw>211.37 W</power_draw>", "<power_draw>211.37 W</pow")
    )
    first = snapshot.readings[0]
    assert q.POWER not in first.values
    assert set(read("cards").readings[0].values) - set(first.values) == {q.POWER}
    assert processes(snapshot) == processes(read("cards"))
    assert snapshot.invalid == 1


@pytest.mark.parametrize("cell", ["211.37 W 5", "2x1 W", "999999999 W", "211,37 W"])
def test_an_invalid_cell_is_absent_and_counted(cell: str) -> None:
    snapshot = read("cards", xml=CARDS.replace("211.37 W", cell))
    assert q.POWER not in snapshot.readings[0].values
    assert snapshot.invalid == 1


def test_a_duplicate_cell_is_dropped() -> None:
    text = CARDS.replace("<used>5321 MiB</used>", "<used>5321 MiB</used><used>7 MiB</used>")
    snapshot = read("cards", xml=text)
    assert q.MEMORY_USED not in snapshot.readings[0].values
    assert snapshot.invalid == 1


@pytest.mark.parametrize("name", ["/opt/run a, b & c", "a<b>c", "x && y; z", "&lol;", "a]]>b", "esc\x1b[0m"])
def test_an_unescaped_process_name_is_read(name: str) -> None:
    text = CARDS.replace("<process_name>render</process_name>", f"<process_name>{name}</process_name>")
    snapshot = read("cards", xml=text)
    names = {pid: name for pid, _, name, _ in processes(snapshot)[FIRST]}
    assert names[52002] == name.replace("\x1b", "\\x1b")
    assert len(names) == 3


@pytest.mark.parametrize("name", ["</gpu>", '<gpu id="00000000:01:00.0">', "</processes>", "<pid>1</pid>"])
def test_a_process_named_like_a_tag_does_not_break_the_document(name: str) -> None:
    text = CARDS.replace("<process_name>render</process_name>", f"<process_name>{name}</process_name>")
    snapshot = read("cards", xml=text)
    names = processes(snapshot)[FIRST]
    assert [pid for pid, *_ in names] == [1187, 52001, 52002]
    assert processes(snapshot)[SECOND] == processes(read("cards"))[SECOND]


def test_entities_are_never_expanded() -> None:
    bomb = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    text = CARDS.replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', bomb)
    output = parse_xml(text.replace("render", "&b;"))
    assert output.blocks == []
    assert [problem.reason for problem in output.problems] == ["ENTITIES"]


def test_extremely_deep_nesting_is_accepted() -> None:
    deep = '<gpu id="00000000:01:00.0">' + "<a>" * 20_000 + "</a>" * 20_000 + "</gpu>"
    assert len(parse_xml(deep).blocks) == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [("GPU is lost", "GPU_IS_LOST"), ("Unknown Error", "UNKNOWN"), ("GPU requires reset", "RESET_REQUIRED")],
)
def test_a_lost_gpu_does_not_affect_the_others(message: str, reason: str) -> None:
    start = CARDS.index("<fan_speed>41 %")
    block = CARDS[start : CARDS.index("<processes>")]
    down_block = block
    for cell in ("41 %", "P2", "24564 MiB", "5321 MiB", "18879 MiB", "63 %", "57 C", "211.37 W", "2520 MHz"):
        down_block = down_block.replace(f">{cell}<", f">{message}<")
    snapshot = read("cards", xml=CARDS.replace(block, down_block))
    lost, healthy = snapshot.readings
    assert (lost.up, lost.processes, lost.down_reason) == (False, None, reason)
    # Readable cells are kept, the others are absent.
    assert lost.values[q.POWER_LIMIT] == 450.0
    assert not {q.POWER, q.TEMPERATURE, q.MEMORY_USED, q.UTILIZATION} & set(lost.values)
    assert healthy.up and healthy.values[q.TEMPERATURE] == 31
    assert [(failure.part, failure.reason, failure.device) for failure in snapshot.failures] == [
        ("readings", reason, lost.device)
    ]
    assert not snapshot.devices_failed


def test_one_failed_sensor_is_not_a_lost_gpu() -> None:
    snapshot = read("cards", xml=CARDS.replace("<gpu_temp>57 C<", "<gpu_temp>Unknown Error<"))
    first = snapshot.readings[0]
    assert first.up and q.TEMPERATURE not in first.values
    assert [failure.reason for failure in snapshot.failures] == ["UNKNOWN"]


def test_a_missing_process_list_is_not_an_empty_list() -> None:
    text = fixture("xml/v13.xml")
    start, end = text.index("<processes>"), text.index("</processes>")
    missing = read("cards", xml=text[:start] + text[end + len("</processes>") :])
    assert missing.readings[0].processes is None
    error = read("cards", xml=text[: start + len("<processes>")] + "N/A" + text[end:])
    assert error.readings[0].processes is None
    empty = read("cards", xml=text[: start + len("<processes>")] + text[end:])
    assert empty.readings[0].processes == ()


def test_a_process_with_an_unreadable_pid_is_counted_and_the_others_are_kept() -> None:
    snapshot = read("cards", xml=CARDS.replace("<pid>52002</pid>", "<pid>5 2002</pid>"))
    assert [pid for pid, *_ in processes(snapshot)[FIRST]] == [1187, 52001]
    assert snapshot.invalid == 1
    assert [failure.reason for failure in snapshot.failures] == ["PID_UNREADABLE"]


def test_memory_that_the_driver_does_not_report_is_none_not_zero() -> None:
    text = CARDS.replace("418 MiB", "Not available in WDDM driver model")
    assert processes(read("cards", xml=text))[FIRST][2] == (52002, "C+G", "render", None)


def test_a_pid_in_two_rows_is_one_process() -> None:
    text = CARDS.replace("<pid>52002</pid>", "<pid>52001</pid>")
    assert processes(read("cards", xml=text))[FIRST][1] == (52001, "C+G", "/opt/run a, b & c", 4812)


def test_every_xml_fixture_is_used() -> None:
    assert sorted(path.stem for path in (FIXTURES / "xml").iterdir()) == ["v10", "v11", "v12", "v13"]
