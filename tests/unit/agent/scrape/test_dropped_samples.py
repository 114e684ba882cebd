"""Samples of a page that are not delivered, because they would harm others: of the future, of the report."""

from __future__ import annotations

import struct

import pytest

from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules
from gpuledger.agent.scrape.loop import ReceiverRouting
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings
from scraped_blocks import scraped
from scripted_target import Answer
from write_request import series_of

AT = 1_700_000_000_000
UP = {"__name__": "up", "instance": "i", "job": "t"}
RENAMED = RelabelRule(source_labels=("__name__",), regex="old", target_label="__name__", replacement="up")


@pytest.mark.parametrize(
    ("written", "content_type", "kept"),
    [
        (AT, "text/plain", True),
        (AT + 600_000, "text/plain", True),
        (AT + 600_001, "text/plain", False),
        (AT + 7_200_000, "text/plain", False),
        (AT * 1000, "text/plain", False),
        (2**63 - 1, "text/plain", False),
        (AT // 1000, "text/plain", True),
        (0, "text/plain", True),
        (f"{(AT + 599_000) / 1000}", "application/openmetrics-text", True),
        (f"{(AT + 601_000) / 1000}", "application/openmetrics-text", False),
    ],
)
def test_a_sample_of_the_far_future_is_dropped_and_counted(
    written: object, content_type: str, kept: bool
) -> None:
    page = f"a 1 {written}\nb 2\n" + ("# EOF\n" if "openmetrics" in content_type else "")
    accepted = scraped([Answer(page, content_type=content_type)])
    names = {dict(labels)["__name__"] for block in accepted.blocks for labels, _ in series_of(block.payload)}
    assert ("a" in names) is kept
    assert {"b", "up"} <= names
    assert accepted.totals.ahead == (0 if kept else 1)
    assert accepted.values(0)["up"] == 1.0


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (ScrapeSettings(interval=1.0, ahead_limit=0.0), True),
        (ScrapeSettings(interval=1.0, ahead_limit=7300.0), True),
        (ScrapeSettings(interval=1.0, ahead_limit=7100.0), False),
    ],
)
def test_the_limit_of_the_future_can_be_set(settings: ScrapeSettings, kept: bool) -> None:
    accepted = scraped([Answer(f"a 1 {AT + 7_200_000}\n")], settings)
    assert (accepted.totals.ahead == 0) is kept


def test_without_honored_timestamps_a_sample_of_the_future_has_the_time_of_the_scrape() -> None:
    accepted = scraped([Answer(f"a 1 {AT * 9}\n")], ScrapeSettings(interval=1.0, honor_timestamps=False))
    assert (accepted.values()["a"], accepted.totals.ahead) == (1.0, 0)


def test_samples_of_the_future_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    scraped([Answer(f"a 1 {AT * 2}\nb 1 {AT * 2}\n")] * 3)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "2 samples with timestamps more than 600 s in the future" in line


@pytest.mark.parametrize(
    ("lines", "values", "duplicates"),
    [
        ((f"a 1 {AT - 5}", f"a 2 {AT - 5}"), [1.0], 1),
        ((f"a 1 {AT - 5}", f"a 1 {AT - 5}"), [1.0], 1),
        ((f'a{{x="1",y="2"}} 1 {AT - 5}', "b 1", f'a{{y="2",x="1"}} 2 {AT - 5}'), [1.0], 1),
        ((f"a 1 {AT - 5}", f"a 2 {AT - 4}"), [1.0, 2.0], 0),
        # The page has duplicate lines without timestamps, too.
        (("c 1", "c 2", f"a 1 {AT - 5}", f"a 2 {AT - 5}"), [1.0], 2),
    ],
)
def test_of_two_samples_of_a_series_and_time_the_first_is_sent(
    lines: tuple[str, ...], values: list[float], duplicates: int
) -> None:
    accepted = scraped([Answer("\n".join((*lines, "")))] * 2)
    timed = [block for block in accepted.blocks if block.newest < AT]
    assert len(timed) == 2
    for block in timed:
        assert [struct.unpack("<d", value)[0] for _, ((value, _),) in series_of(block.payload)] == values
    assert accepted.totals.duplicates == 2 * duplicates


@pytest.mark.parametrize(
    ("line", "honor", "rules", "sent"),
    [
        ("up 0", None, (), 1),
        ("up 0 1600000000000", None, (), 1),
        ('up{job="t",instance="i"} 0', True, (), 1),
        # Without honor_labels, its labels are renamed: another series.
        ('up{job="t"} 0', False, (), 2),
        ('up{svc="db"} 0', None, (), 2),
        ("scrape_series_added 0", None, (), 1),
        ("scrape_timeout_seconds 9", None, (), 1),
        (
            "old 0",
            None,
            (
                RelabelRule(
                    source_labels=("__name__",), regex="old", target_label="__name__", replacement="up"
                ),
            ),
            1,
        ),
        ('up{svc="db"} 0', None, (RelabelRule(action="labeldrop", regex="svc"),), 1),
    ],
)
def test_a_series_of_the_report_is_sent_once_with_the_agents_value(
    line: str, honor: bool | None, rules: tuple[RelabelRule, ...], sent: int
) -> None:
    name = line.split("{", maxsplit=1)[0].split(" ", maxsplit=1)[0].replace("old", "up")
    settings = ScrapeSettings(interval=1.0, honor_labels=honor, metric_relabeling=RelabelRules(rules))
    # The second page has the same line, the third another value of it.
    pages = [f"{line}\nb 1\n"] * 2 + [f"{line.replace('0', '5', 1)}\nb 1\n"]
    accepted = scraped([Answer(page) for page in pages], settings)
    scrapes = [block for block in accepted.blocks if block.samples > 2]
    assert len(scrapes) == 3
    for block in scrapes:
        found = [
            value for labels, ((value, _),) in series_of(block.payload) if dict(labels)["__name__"] == name
        ]
        assert len(found) == sent
    is_reported = sent == 1 and name != "scrape_timeout_seconds"
    assert accepted.totals.duplicates == (3 if is_reported else 0)
    up = [value for labels, ((value, _),) in series_of(scrapes[0].payload) if dict(labels) == UP]
    assert up == [struct.pack("<d", 1.0)]


def test_a_receiver_with_other_rules_gets_a_series_of_the_report_once() -> None:
    routing = ReceiverRouting(
        WriteRelabeling(),
        frozenset({"plain"}),
        ((WriteRelabeling((), RelabelRules((RENAMED,))), frozenset({"other"})),),
    )
    plain, other = scraped([Answer("old 0\n")], routing=routing).blocks
    names = [dict(labels)["__name__"] for labels, _ in series_of(plain.payload)]
    assert {"up", "old"} <= {*names}
    found = [dict(labels)["__name__"] for labels, _ in series_of(other.payload)]
    assert (found.count("up"), found.count("old")) == (1, 0)


MERGING = RelabelRules((RelabelRule(action="labeldrop", regex="pod"),))


@pytest.mark.parametrize(("time", "duplicates"), [("", 1), (f" {AT - 5}", 1)])
def test_series_that_a_receivers_rules_make_equal_have_one_sample_and_no_marker(
    time: str, duplicates: int, caplog: pytest.LogCaptureFixture
) -> None:
    routing = ReceiverRouting(
        WriteRelabeling(),
        frozenset({"plain"}),
        ((WriteRelabeling((), MERGING), frozenset({"other"})),),
    )
    pages = [f'a{{pod="x"}} 1{time}\na{{pod="y"}} 2{time}\n', f'a{{pod="y"}} 3{time}\n']
    accepted = scraped([Answer(page) for page in pages], routing=routing)
    found = [
        value
        for block, receivers in zip(accepted.blocks, accepted.receivers, strict=True)
        for labels, ((value, _),) in series_of(block.payload)
        if receivers == {"other"} and dict(labels)["__name__"] == "a"
    ]
    # The end of one of them is not the end of the series.
    assert found == [struct.pack("<d", 1.0), struct.pack("<d", 3.0)]
    assert accepted.totals.duplicates == duplicates
    assert [record.getMessage()[:16] for record in caplog.records] == ["write relabeling"]
