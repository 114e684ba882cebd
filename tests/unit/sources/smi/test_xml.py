"""`-q -x`: one vocabulary over the schemas, and what a mangled document loses."""

from __future__ import annotations

import pytest

from gpuledger.model import quantities as q
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import FIXTURES, fixture, processes, read

CARDS = fixture("cards/xml")
FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"


@pytest.mark.parametrize("schema", ["v10", "v11", "v12", "v13"])
def test_each_schema_tells_the_same_card(schema: str) -> None:
    seen = read("cards", xml=fixture(f"xml/{schema}.xml"), pmon=None)
    (reading,) = seen.readings
    assert reading.device.uuid == f"GPU-dddddddd-0000-4000-8000-0000000000{schema[1:]}"
    assert reading.values == {
        q.MEMORY_TOTAL: 16130 * 2**20,
        q.MEMORY_USED: 1100 * 2**20,
        q.MEMORY_FREE: 15030 * 2**20,
        q.POWER: 54.17,
        q.POWER_LIMIT: 250.0,
        q.POWER_LIMIT_MAX: 300.0,
        q.TEMPERATURE: 40.0,
        q.PERFORMANCE_STATE: 0.0,
        q.ECC_CORRECTED: 7.0,
        q.ECC_UNCORRECTED: 0.0,
    }
    assert processes(seen) == {reading.device.uuid: [(301, "C", "a.out", 1089)]}
    assert seen.invalid == 0


def test_attributes_of_the_card_are_as_printed() -> None:
    card = read("cards").readings[0].device.gpu
    assert (card.uuid, card.index, card.minor, card.pci_bus_id) == (FIRST, 0, 3, "00000000:01:00.0")
    assert (card.name, card.architecture, card.vbios) == (
        "NVIDIA Example 24",
        "Ada Lovelace",
        "95.02.18.80.01",
    )
    assert card.serial is None


def test_columns_of_a_module_are_not_the_gpus() -> None:
    (reading,) = read("cards", xml=fixture("xml/v12.xml")).readings
    assert reading.values[q.POWER] == 54.17


def test_what_is_not_supported_is_absent_and_said_so() -> None:
    reading = read("cards").readings[0]
    assert q.MEMORY_TEMPERATURE not in reading.values
    assert reading.supported["memory_temperature"] is False
    assert reading.supported["utilization"] is True
    assert "energy" not in reading.supported


def test_a_card_without_memory_of_its_own_is_marked() -> None:
    text = fixture("xml/v13.xml")
    for told in ("16130 MiB", "1100 MiB", "15030 MiB"):
        text = text.replace(f">{told}<", ">N/A<", 1)
    (reading,) = read("cards", xml=text).readings
    assert reading.device.gpu.unified_memory
    assert q.MEMORY_TOTAL not in reading.values
    assert processes(read("cards", xml=text))[reading.device.uuid] == [(301, "C", "a.out", 1089)]


def test_a_document_that_is_cut_keeps_the_gpus_before_the_cut() -> None:
    cut = CARDS[: CARDS.index("<serial>1650000000002")]
    seen = read("cards", xml=cut)
    assert [reading.device.uuid for reading in seen.readings] == [FIRST]
    assert seen.devices_failed
    assert [failure.reason for failure in seen.failures] == ["TRUNCATED"]


@pytest.mark.parametrize("place", range(0, len(CARDS), 97))
def test_wherever_it_is_cut_a_gpu_is_told_whole_or_not_at_all(place: int) -> None:
    blocks = parse_xml(CARDS[:place]).blocks
    whole = parse_xml(CARDS).blocks
    assert blocks == whole[: len(blocks)]


def test_a_mangled_gpu_loses_only_itself() -> None:
    text = CARDS.replace("</utilization>", "<//utilization", 1)
    seen = read("cards", xml=text)
    assert [reading.device.uuid for reading in seen.readings] == [SECOND]
    assert seen.devices_failed


def test_a_gpu_lost_from_the_middle_does_not_move_the_index_of_the_next() -> None:
    seen = read("cards", xml=CARDS.replace("</utilization>", "<//utilization", 1))
    assert seen.readings[0].device.gpu.index == 1


def test_a_mangled_cell_loses_only_itself() -> None:
    seen = read("cards", xml=CARDS.replace("<power_draw>211.37 W</power_draw>", "<power_draw>211.37 W</pow"))
    first = seen.readings[0]
    assert q.POWER not in first.values
    assert set(read("cards").readings[0].values) - set(first.values) == {q.POWER}
    assert processes(seen) == processes(read("cards"))
    assert seen.invalid == 1


@pytest.mark.parametrize("cell", ["211.37 W 5", "2x1 W", "999999999 W", "211,37 W"])
def test_a_cell_that_is_not_believed_is_absent_and_counted(cell: str) -> None:
    seen = read("cards", xml=CARDS.replace("211.37 W", cell))
    assert q.POWER not in seen.readings[0].values
    assert seen.invalid == 1


def test_a_cell_that_is_told_twice_is_not_told() -> None:
    text = CARDS.replace("<used>5321 MiB</used>", "<used>5321 MiB</used><used>7 MiB</used>")
    seen = read("cards", xml=text)
    assert q.MEMORY_USED not in seen.readings[0].values
    assert seen.invalid == 1


@pytest.mark.parametrize("name", ["/opt/run a, b & c", "a<b>c", "x && y; z", "&lol;", "a]]>b", "esc\x1b[0m"])
def test_a_name_that_is_not_escaped_is_still_a_name(name: str) -> None:
    text = CARDS.replace("<process_name>render</process_name>", f"<process_name>{name}</process_name>")
    seen = read("cards", xml=text)
    told = {pid: told for pid, _, told, _ in processes(seen)[FIRST]}
    assert told[52002] == name.replace("\x1b", "\\x1b")
    assert len(told) == 3


@pytest.mark.parametrize("name", ["</gpu>", '<gpu id="00000000:01:00.0">', "</processes>", "<pid>1</pid>"])
def test_a_process_cannot_call_itself_a_tag(name: str) -> None:
    text = CARDS.replace("<process_name>render</process_name>", f"<process_name>{name}</process_name>")
    seen = read("cards", xml=text)
    told = processes(seen)[FIRST]
    assert [pid for pid, *_ in told] == [1187, 52001, 52002]
    assert processes(seen)[SECOND] == processes(read("cards"))[SECOND]


def test_entities_are_never_expanded() -> None:
    bomb = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    text = CARDS.replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', bomb)
    answer = parse_xml(text.replace("render", "&b;"))
    assert answer.blocks == []
    assert [trouble.reason for trouble in answer.troubles] == ["ENTITIES"]


def test_depth_without_end_is_taken() -> None:
    deep = '<gpu id="00000000:01:00.0">' + "<a>" * 20_000 + "</a>" * 20_000 + "</gpu>"
    assert len(parse_xml(deep).blocks) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [("GPU is lost", "GPU_IS_LOST"), ("Unknown Error", "UNKNOWN"), ("GPU requires reset", "RESET_REQUIRED")],
)
def test_a_lost_gpu_loses_only_itself(said: str, reason: str) -> None:
    start = CARDS.index("<fan_speed>41 %")
    block = CARDS[start : CARDS.index("<processes>")]
    ill = block
    for told in ("41 %", "P2", "24564 MiB", "5321 MiB", "18879 MiB", "63 %", "57 C", "211.37 W", "2520 MHz"):
        ill = ill.replace(f">{told}<", f">{said}<")
    seen = read("cards", xml=CARDS.replace(block, ill))
    lost, well = seen.readings
    assert (lost.up, lost.processes, dict(lost.values)) == (False, None, {})
    assert well.up and well.values[q.TEMPERATURE] == 31
    assert [(failure.part, failure.reason, failure.device) for failure in seen.failures] == [
        ("readings", reason, lost.device)
    ]
    assert not seen.devices_failed


def test_one_bad_sensor_is_not_a_lost_gpu() -> None:
    seen = read("cards", xml=CARDS.replace("<gpu_temp>57 C<", "<gpu_temp>Unknown Error<"))
    first = seen.readings[0]
    assert first.up and q.TEMPERATURE not in first.values
    assert [failure.reason for failure in seen.failures] == ["UNKNOWN"]


def test_a_list_that_was_not_told_is_not_an_empty_one() -> None:
    text = fixture("xml/v13.xml")
    start, end = text.index("<processes>"), text.index("</processes>")
    told = read("cards", xml=text[:start] + text[end + len("</processes>") :])
    assert told.readings[0].processes is None
    said = read("cards", xml=text[: start + len("<processes>")] + "N/A" + text[end:])
    assert said.readings[0].processes is None
    empty = read("cards", xml=text[: start + len("<processes>")] + text[end:])
    assert empty.readings[0].processes == ()


def test_a_process_without_a_readable_pid_is_counted_and_the_others_stay() -> None:
    seen = read("cards", xml=CARDS.replace("<pid>52002</pid>", "<pid>5 2002</pid>"))
    assert [pid for pid, *_ in processes(seen)[FIRST]] == [1187, 52001]
    assert seen.invalid == 1
    assert [failure.reason for failure in seen.failures] == ["PID_UNREADABLE"]


def test_memory_that_the_driver_does_not_say_is_unknown_not_zero() -> None:
    text = CARDS.replace("418 MiB", "Not available in WDDM driver model")
    assert processes(read("cards", xml=text))[FIRST][2] == (52002, "C+G", "render", None)


def test_a_pid_in_two_rows_is_one_process() -> None:
    text = CARDS.replace("<pid>52002</pid>", "<pid>52001</pid>")
    assert processes(read("cards", xml=text))[FIRST][1] == (52001, "C+G", "/opt/run a, b & c", 4812)


def test_the_fixtures_are_all_read() -> None:
    assert sorted(path.stem for path in (FIXTURES / "xml").iterdir()) == ["v10", "v11", "v12", "v13"]
