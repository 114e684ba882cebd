"""Receipts as text, Markdown and HTML: the same content, also with hostile names and absent values."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.receipt.advice import advise
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.markdown import receipt_markdown
from gpuledger.ledger.report.receipt.page import receipt_page
from gpuledger.ledger.report.receipt.presentation import show_receipt
from gpuledger.ledger.report.receipt.sentence import receipt_sentence
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.receipt.text import bar_line, receipt_text
from receipt_helpers import BEGIN, GIB, HOUR, amounts, gpu_row, host_row, receipt, unused_gpu

FORMS: dict[str, Callable[[ReceiptJson], str]] = {
    "text": receipt_text,
    "markdown": receipt_markdown,
    "html": receipt_page,
}


def made(**more: Any) -> ReceiptJson:
    """Job 4711 with two GPUs, of which it used one."""
    found = receipt(
        "n1",
        gpu_row(),
        unused_gpu(index="1"),
        **{
            "total": amounts(gpu_microseconds=7_200_000_000, cost="4.2100000000", time_cost="4.0000000000"),
            "processes": [
                {
                    "node": "n1",
                    "pid": 99,
                    "command": "python3",
                    "device": "GPU-n1-0",
                    "gpu": "0",
                    "instance": "",
                    "begins": BEGIN,
                    "ends": BEGIN + HOUR,
                    "running": False,
                }
            ],
            **more,
        },
    )
    found["advice"] = advise(found, AdviceSettings())
    return found


def unescaped(form: str, text: str) -> str:
    """The text of a form without its markup."""
    if form == "markdown":
        return re.sub(r"\\(.)", r"\1", text).replace("**", "")
    if form == "html":
        reader = TextReader()
        reader.feed(text)
        return " ".join("".join(reader.texts).split())
    return text


class TextReader(HTMLParser):
    """The text and the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(f"{data} ")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "expected",
    [
        "4711",
        "train",
        "dan",
        "n1",
        "2.00",
        "4.21 EUR",
        "0.700 kWh",
        "280 g",
        "H100 80GB HBM3",
        "40.0 GiB of 80.0 GiB",
        "50 %",
        "90 %",
        "2.00 of 8.00 core-hours (25 %)",
        "12.0 GiB",
        "GPU 1 was never used (1 of 2)",
        "1.00 GPU-hours, 2.00 EUR of GPU time",
        "pid 99 python3 on GPU 0",
    ],
)
def test_every_form_shows_it(form: str, expected: str) -> None:
    text = unescaped(form, FORMS[form](made()))
    assert expected in (" ".join(text.split()) if form == "text" else text)


@pytest.mark.parametrize("columns", [40, 60, 72, 80, 100, 109])
def test_every_line_fits_into_the_terminal(columns: int) -> None:
    text = receipt_text(made(), width=columns)
    assert max(map(len, text.splitlines())) <= max(columns, 60)


@pytest.mark.parametrize("columns", [60, 80, 100, None])
def test_a_narrow_terminal_gets_the_same_words(columns: int | None) -> None:
    words = set(receipt_text(made()).replace(",", "").split())
    assert words <= set(receipt_text(made(), width=columns).replace(",", "").split())


def test_in_80_columns_what_has_no_room_is_below_its_row() -> None:
    lines = receipt_text(made(), width=80).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("0    H100"))
    assert lines[first - 1 : first + 3] == [
        "GPU  model           GPU-hours  active  SM mean  SM peak     energy  cost EUR",
        "0    H100 80GB HBM3       1.00   100 %     50 %     90 %  0.700 kWh      2.21",
        "   memory 40.0 GiB of 80.0 GiB, throttled 0 %",
        "   \N{LOWER FIVE EIGHTHS BLOCK}",
    ]


@pytest.mark.parametrize("columns", [60, 80, None])
def test_names_stay_whole_in_a_narrow_terminal(columns: int | None) -> None:
    name = "a-very-long-name-of-a-pod-" * 5
    shown = made(who={"kind": "pod", "key": ["ml", name], "name": f"pod ml/{name}", "explain": "pod:x"})
    assert name in receipt_text(shown, width=columns)


def test_the_whole_text() -> None:
    assert receipt_text(made()) == (
        "job 4711 train of dan on n1\n"
        "2025-11-30 00:00 to 01:00 +0000 (1h), ended\n"
        "range 2025-11-30 00:00 to 01:01 +0000, GPU time by allocation, price list a1b2\n"
        "\n"
        "cost       4.21 EUR                        GPU time 4.00, energy 0.21\n"
        "GPU-hours  2.00                            1.00 allocated, 1.00 active, 0.00 idle\n"
        "energy     0.700 kWh                       measured\n"
        "CO2        280 g\n"
        "CPU        2.00 of 8.00 core-hours (25 %)  memory of the node at most 12.0 GiB of 64.0 GiB\n"
        "\n"
        "GPU  model           GPU-hours  active  SM mean  SM peak                memory  throttled     energy"
        "  cost EUR\n"
        "0    H100 80GB HBM3       1.00   100 %     50 %     90 %  40.0 GiB of 80.0 GiB        0 %  0.700 kWh"
        "      2.21\n"
        "   ▅\n"
        "1    H100 80GB HBM3       1.00     0 %        -        -                     -        0 %  0.700 kWh"
        "      2.21\n"
        "   ·\n"
        "   mean utilization, 1h a bar, from 2025-11-30 00:00; · none\n"
        "\n"
        "processes:\n"
        "  pid 99 python3 on GPU 0, 2025-11-30 00:00 to 01:00 +0000\n"
        "\n"
        "advice:\n"
        "1. GPU 1 was never used (1 of 2): request 1, or let the program use all of them.\n"
        "   - GPU 1: 1h, no process was there; no engine was busy in any second\n"
        "   saves 1.00 GPU-hours, 2.00 EUR of GPU time\n"
    )


def test_plain_text_is_ascii() -> None:
    assert receipt_text(made(), plain=True).isascii()


def test_bars_distinguish_nothing_little_unknown_and_absent() -> None:
    assert bar_line((0.0, 0.001, 0.5, 1.0, None, -1.0)) == "·▁▅█? "
    assert bar_line((0.0, 0.001, 0.5, 1.0, None, -1.0), plain=True) == "0.+@? "


def test_what_is_not_known_is_a_dash_and_an_unknown_column_is_left_out() -> None:
    unknown = dict.fromkeys(("memory_peak_bytes", "sm_mean", "sm_peak", "active_seconds"))
    bars = {"present": [3600], "active": [0], "unknown": [3600], "utilization": [None]}
    found = receipt("n1", gpu_row(**unknown, bars=bars, throttle_known_seconds=0.0), hosts=[])
    text = receipt_text(found)
    assert "memory" not in text
    assert "SM mean" not in text
    assert "throttled" not in text
    row = next(line for line in text.splitlines() if line.startswith("0 "))
    assert row.split()[5] == "-"
    assert "\n   ?\n" in text


def test_energy_that_was_not_measured_is_not_zero() -> None:
    unmeasured = {"millijoules": None, "measured_millijoules": None, "high_millijoules": None}
    text = receipt_text(receipt("n1", gpu_row(**unmeasured), total=amounts(**unmeasured)))
    assert re.search(r"energy +- +the GPUs were not measured", text)
    assert "kWh" not in text


def test_energy_of_some_gpus_is_marked() -> None:
    """Text and sentence; the cost too, if energy has a price."""
    unmeasured = {"millijoules": None, "measured_millijoules": None, "high_millijoules": None}
    for price, cost in (("0.2100000000", "2.21 EUR+"), (None, "2.21 EUR ")):
        total = amounts(high_millijoules=None, energy_cost=price)
        made = receipt("n1", gpu_row("n1", "0"), gpu_row("n1", "1", **unmeasured), total=total)
        text = receipt_text(made)
        assert re.search(r"energy +0\.700 kWh\+ +measured, without GPUs that were not measured", text)
        assert cost in text.replace("\n", " ")
        assert "0.700 kWh without GPUs that were not measured" in receipt_sentence(made)


def test_estimated_energy_has_its_bounds() -> None:
    total = amounts(measured_millijoules=1_800_000_000, high_millijoules=3_600_000_000)
    assert "at least 0.500 kWh, at most 1.000 kWh" in receipt_text(receipt(total=total))


def test_marks_say_what_an_amount_leaves_out() -> None:
    total = amounts(estimated_microseconds=1, unpriced_microseconds=1)
    text = receipt_text(receipt(total=total))
    assert "2.21 EUR+" in text
    assert "1.00~" in text


def test_without_advice_it_says_so() -> None:
    found = receipt()
    assert "no advice" in receipt_text(found)
    assert "None." in receipt_markdown(found)
    assert "None." in receipt_page(found)


def test_bars_of_nodes_that_do_not_fit_together_are_left_out() -> None:
    text = receipt_text(receipt(bars=None))
    assert "a bar" not in text
    assert "▅" not in text


def test_gpus_of_several_nodes_are_named_with_their_node() -> None:
    found = receipt("n1", gpu_row("n1"), gpu_row("n2"), nodes=["n1", "n2"])
    assert [line.split()[0] for line in receipt_text(found).splitlines() if "H100" in line] == [
        "n1:0",
        "n2:0",
    ]


def test_several_owners_are_rows_with_their_receipts() -> None:
    rows = [{**amounts(), "name": f"job {job}", "explain": f"owner:slurm/{job}", "gpus": 1} for job in (1, 2)]
    found = made(
        owner=None,
        owners=rows,
        who={"kind": "user", "key": ["dan"], "name": "user dan", "explain": "user:dan"},
    )
    for form, write in FORMS.items():
        text = unescaped(form, write(found))
        assert "owner:slurm/1" in text
        assert "core-hours" not in text
    page = receipt_page(found, link=lambda name: f"../r/{name}", home="../../")
    assert 'href="../r/owner:slurm/1"' in page
    assert 'href="../../"' in page


def test_a_page_without_links_needs_no_other() -> None:
    reader = TextReader()
    reader.feed(receipt_page(made()))
    for tag, attributes in reader.tags:
        assert tag not in ("script", "link", "img", "iframe", "a", "form")
        assert not {"src", "href", "style"} & set(attributes)
    assert "default-src 'none'" in str(reader.tags)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a|b**c**`d`",
    "[x](javascript:alert)",
    "\x1b[31mred\x1b[0m",
    "line\nbreak",
    "\u202egnp.exe",
    "# head",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_break_out(name: str) -> None:
    found = made()
    assert found["owner"] is not None
    found["owner"]["user"] = found["owner"]["job_name"] = name
    found["processes"][0]["command"] = found["gpus"][0]["model"] = name
    found["notes"] = [name]
    reference = made()
    reference["notes"] = ["plain"]
    shapes = []
    for one in (found, reference):
        reader = TextReader()
        reader.feed(receipt_page(one))
        shapes.append([tag for tag, _ in reader.tags])
    assert shapes[0] == shapes[1]
    for text in (receipt_text(found), receipt_markdown(found)):
        assert all(line.isprintable() for line in text.splitlines())
    assert receipt_text(found).count("\n") == receipt_text(reference).count("\n")
    # Every sign with a meaning is escaped.
    rows = [
        next(line for line in receipt_markdown(one).splitlines() if line.startswith("| 0 "))
        for one in (found, reference)
    ]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert not re.search(r"(?<!\\)[<`*\[]", rows[0])


@given(st.text(max_size=40))
def test_any_name_is_one_line_of_text(name: str) -> None:
    found = receipt()
    assert found["owner"] is not None
    found["owner"]["user"] = name
    assert receipt_text(found).count("\n") == receipt_text(receipt()).count("\n")
    assert receipt_page(found).isascii()


def test_a_task_of_an_array_is_not_taken_for_the_whole_array() -> None:
    found = receipt()
    assert found["owner"] is not None
    found["owner"] |= {"array_job": "4711", "array_task": "9", "partition": "gpu"}
    title = "job 4711 train of dan (task 9 of array 4711, partition gpu) on n1"
    assert receipt_text(found).startswith(title)


def test_the_cost_of_a_gpu_or_owner_without_a_price_is_marked() -> None:
    owner = {"name": "ml/a", "explain": "pod:ml/a", "gpus": 1}
    rows = (
        amounts(cost="0.0000000000", unpriced_microseconds=5),
        amounts(cost="1.0000000000", unpriced_millijoules=5),
        amounts(cost="2.0000000000", energy_cost=None, millijoules=None),
        amounts(cost="3.0000000000"),
        amounts(cost=None, unpriced_microseconds=5),
    )
    gpus = [gpu_row(index=str(number), **row) for number, row in enumerate(rows)]
    shown = show_receipt(receipt("n1", *gpus, owners=[{**row, **owner} for row in rows]))
    expected = ["0.00+", "1.00+", "2.00+", "3.00", "-"]
    assert [row[-1] for row in shown.gpus.rows] == expected
    assert shown.owners is not None
    assert [row[-2] for row in shown.owners.rows] == expected


def test_traffic_is_that_of_the_gpus_of_which_it_is_known() -> None:
    traffic = {"pcie_rx_bytes": 2 * GIB, "pcie_tx_bytes": GIB, "nvlink_rx_bytes": 3 * GIB}
    found = receipt("n1", gpu_row(**traffic), gpu_row(index="1", pcie_rx_bytes=GIB), gpu_row(index="2"))
    assert re.search(r"traffic +PCIe 3.0 GiB in, 1.0 GiB out +NVLink 3.0 GiB in\n", receipt_text(found))
    assert "traffic" not in receipt_text(receipt())


def test_memory_of_the_node_without_a_limit() -> None:
    found = receipt(hosts=[host_row(memory_limit_bytes=None, memory_peak_bytes=12 * GIB)])
    assert "memory of the node at most 12.0 GiB\n" in receipt_text(found)
