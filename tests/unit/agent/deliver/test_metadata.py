"""HELP, TYPE and UNIT: the families of all targets, and their delivery with remote write 1.0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.agent.deliver.metadata import MetadataStore, TargetMetadata
from gpuledger.agent.deliver.settings import MetadataConfig
from gpuledger.exposition.remote_write import METRIC_TYPES, FamilyMetadata
from write_helpers import HandClock, ScriptedReceiver, only_state, receiving, run, sending, settings, until
from write_request import Metadata, metadata_of, unpacked

EXPECTED: dict[str, Metadata] = {"a": (1, "All.", ""), "b": (2, "", "bytes"), "c": (0, "", "")}
FAMILIES = [FamilyMetadata(family, *texts) for family, texts in EXPECTED.items()]


def sent(there: ScriptedReceiver) -> list[dict[str, Metadata]]:
    return [metadata_of(unpacked(post.body)) for post in there.posts]


@pytest.mark.parametrize(
    ("kind", "series", "known"),
    [
        ("counter", "f", True),
        ("counter", "f_total", True),
        ("counter", "f_created", True),
        ("counter", "f_sum", False),
        ("gauge", "f", True),
        ("gauge", "f_total", False),
        ("histogram", "f_bucket", True),
        ("histogram", "f_sum", True),
        ("histogram", "f_count", True),
        ("histogram", "f_total", False),
        ("summary", "f_count", True),
        ("summary", "f_bucket", False),
        ("gaugehistogram", "f_gsum", True),
        ("info", "f_info", True),
        ("stateset", "f", True),
        ("counter", "ff_total", False),
        ("counter", "_total", False),
    ],
)
def test_the_series_of_a_family(kind: str, series: str, known: bool) -> None:
    family = FamilyMetadata("f", METRIC_TYPES[kind])
    assert TargetMetadata([family]).of_series(series) == (family if known else None)


def test_equal_entries_are_sent_once_and_different_ones_of_a_family_each() -> None:
    store = MetadataStore()
    store.set(1, TargetMetadata(FAMILIES))
    store.set(2, TargetMetadata([*FAMILIES[:2], FamilyMetadata("a", 1, "Other.")]))
    assert store.families() == (*FAMILIES, FamilyMetadata("a", 1, "Other."))
    store.remove(2)
    store.remove(3)
    assert store.families() == tuple(FAMILIES)


def test_metadata_is_sent_in_parts_and_again_after_the_interval(tmp_path: Path) -> None:
    async def test() -> None:
        clock, there = HandClock(), ScriptedReceiver()
        config = MetadataConfig(send_interval=60.0, max_samples_per_send=2)
        async with receiving(there):
            one = settings(there.url, metadata=config)
            async with sending(tmp_path, one, clock=clock) as here:
                here.metadata.set(1, TargetMetadata(FAMILIES))
                await until(lambda: only_state(here).sent_metadata == 3, "the metadata")
                assert [len(part) for part in sent(there)] == [2, 1]
                assert {**sent(there)[0], **sent(there)[1]} == EXPECTED
                assert {post.version for post in there.posts} == {"1.0"}
                clock.now = 61.0
                await until(lambda: only_state(here).sent_metadata == 6, "the metadata again")

    run(test)


def test_refused_metadata_costs_no_samples_and_the_log_names_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        there = ScriptedReceiver(lambda post: "400 No metadata")
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            here.metadata.set(1, TargetMetadata(FAMILIES))
            await until(lambda: "HELP and TYPE were not accepted" in caplog.text, "the log line")
            state = only_state(here)
            assert not (state.failing or state.refusing or state.sent_metadata or state.last_error)

    run(test)
    assert "metadata_config: {send: false}" in caplog.text


@pytest.mark.parametrize("change", [{"metadata": MetadataConfig(send=False)}, {"protocol": "2.0"}])
def test_no_metadata_requests_if_disabled_or_with_2_0(tmp_path: Path, change: dict[str, object]) -> None:
    async def test() -> None:
        there, other = ScriptedReceiver(), ScriptedReceiver()
        async with receiving(there), receiving(other):
            quiet = replace(settings(there.url), **change)  # type: ignore[arg-type]
            async with sending(tmp_path, quiet, settings(other.url, "other")) as here:
                here.metadata.set(1, TargetMetadata(FAMILIES))
                await until(lambda: other.posts, "the other receiver's metadata")
                assert there.posts == []

    run(test)
