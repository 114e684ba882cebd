"""Metrics pages in all formats, and the labels that a scrape adds."""

from __future__ import annotations

import gzip

import pytest

from gpuledger.migrate.page import Page, names_of, parse_page, with_target_labels
from gpuledger.model.errors import UsageError

TEXT = b"""# HELP a_total Things (in MiB).
# TYPE a_total counter
a_total{gpu="0",name="x \\"y\\""} 3 1700000000000
b NaN
"""
OPEN = b"""# TYPE a counter
# HELP a Things.
a_total{gpu="0"} 3 1700000000.5 # {trace="t"} 1
# EOF
"""


@pytest.mark.parametrize("content", [TEXT, gzip.compress(TEXT, mtime=0), TEXT.replace(b"\n", b"\r\n")])
def test_text_with_timestamps_also_compressed_and_of_windows(content: bytes) -> None:
    page = parse_page(content, "old")
    (row,) = page.series["a_total"]
    assert (row.labels, row.value) == ({"gpu": "0", "name": 'x "y"'}, 3.0)
    assert (page.type_of("a_total"), page.helps["a_total"]) == ("counter", "Things (in MiB).")
    assert page.notes == []


def test_openmetrics_with_exemplars_has_the_types_of_its_families() -> None:
    page = parse_page(OPEN, "old")
    assert page.series["a_total"][0].value == 3.0
    assert page.type_of("a_total") == "counter"


def test_lines_of_other_formats_are_skipped_with_one_note() -> None:
    page = parse_page(TEXT + b'{"quoted.name"} 1\nh {count:3,sum:1}\n', "old")
    assert set(page.series) == {"a_total", "b"}
    (note,) = page.notes
    assert note.startswith("old: 2 lines are skipped; line 5: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<html>\n", "old has no metrics (line 1: "),
        (b"", "expected a page such as /metrics"),
        (b"\x1f\x8bxx", "old is not valid gzip"),
        (
            b"interval: 5\nlimit: 3\n",
            "old has no metrics (line 1: 'interval:' is a key of YAML and no metric)",
        ),
        (
            b"groups:\n- name: a\n  rules:\nup 1\n",
            "old has 1 samples and 3 other lines (line 1: ",
        ),
        (b"# A page\n\nRead this:\n\n    $ curl it\n    gpu_temp 3\n", "old has 1 samples and 2 other lines"),
    ],
)
def test_what_is_no_page_is_an_error(content: bytes, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_page(content, "old")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("honor", "expected"),
    [
        (False, {"pod": "exporter-1", "exported_pod": "train", "job": "dcgm", "gpu": "0"}),
        (True, {"pod": "train", "job": "dcgm", "gpu": "0"}),
    ],
)
def test_target_labels_as_prometheus_adds_them(honor: bool, expected: dict[str, str]) -> None:
    page = parse_page(b'a{gpu="0",pod="train",empty=""} 1\n', "old")
    stored = with_target_labels(page, {"pod": "exporter-1", "job": "dcgm"}, honor_labels=honor)
    assert stored.series["a"][0].labels == expected


def test_an_exported_label_that_exists_already_is_renamed_again() -> None:
    page = parse_page(b'a{pod="x",exported_pod="y"} 1\n', "old")
    stored = with_target_labels(page, {"pod": "z"}, honor_labels=False)
    assert stored.series["a"][0].labels == {"pod": "z", "exported_pod": "y", "exported_exported_pod": "x"}


def test_metrics_of_the_program_itself_are_no_metrics_of_gpus() -> None:
    own = ["go_goroutines", "up", "promhttp_metric_handler_requests", "process_start_time_seconds"]
    own += ["process_cpu_seconds_total", "process_virtual_memory_max_bytes", "process_open_fds"]
    # Those of nvitop-exporter are of processes on GPUs.
    gpus = ["gpu_temp", "process_info", "process_cpu_percent", "process_rss_memory", "process_gpu_memory"]
    assert list(names_of(Page("old", {name: [] for name in own + gpus}))) == gpus


def test_the_end_of_openmetrics_and_unknown_types_are_no_news() -> None:
    page = parse_page(b"# TYPE a unknown\na 1\n# EOF\n", "x")
    assert (page.notes, page.type_of("a")) == ([], "")


def test_a_scrape_adds_up_with_the_labels_of_its_target() -> None:
    page = with_target_labels(parse_page(b"a 1\n", "x"), {"job": "j"}, honor_labels=False)
    assert [row.labels for row in page.series["up"]] == [{"job": "j"}]
