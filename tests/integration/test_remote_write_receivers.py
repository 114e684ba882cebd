"""A real Prometheus and VictoriaMetrics store exactly the samples that remote write sends."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.agent.deliver.records import Block
from gpuledger.agent.deliver.settings import QueueConfig
from gpuledger.exposition.remote_write import (
    STALE,
    encode_label_fields,
    encode_series_prefix,
    encode_timestamp,
    encode_value,
)
from running import get, victoria_metrics, wait_until
from running import prometheus as started
from write_helpers import EAGER, sending, settings, until

TARGETS, NUMBERS = 5, 40


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    with started("global: {scrape_interval: 1m}", "--web.enable-remote-write-receiver") as real:
        yield real.url


@pytest.fixture(scope="module")
def victoria() -> Iterator[str]:
    with victoria_metrics() as url:
        yield url


def scrape(target: int, number: int, moment: int) -> Block:
    """One scrape of a target: a counter, a series with a Unicode label, and one that ends half-way."""
    name = [("instance", f"10.0.0.{target}:9400"), ("job", "gpu")]
    ended = STALE if number == NUMBERS // 2 else encode_value(-0.5 * number)
    series = [
        ([("__name__", "counted_total"), *name], encode_value(1e15 + number)),
        ([("__name__", "labeled"), ("text", 'ä "\\\n\U0001f600'), *name], encode_value(math.pi * number)),
    ]
    if number <= NUMBERS // 2:
        series.append(([("__name__", "ending"), *name], ended))
    tail = encode_timestamp(moment)
    entries = [encode_series_prefix(encode_label_fields(labels)) + value for labels, value in series]
    payload = tail.join(entries) + tail
    return Block(target, payload, len(series), moment, moment)


def send(directory: Path, url: str, moments: list[int], config: QueueConfig, protocol: str = "1.0") -> str:
    """Send the scrapes and return the protocol that was used in the end."""

    async def test() -> str:
        one = settings(url, queue_config=config, protocol=protocol)
        async with sending(directory, one) as here:
            for number, moment in enumerate(moments):
                for target in range(TARGETS):
                    here.accept(scrape(target, number, moment))
                await asyncio.sleep(0)
            await until(lambda: not here.state()[0].queued_blocks, "everything to be sent")
            state = here.state()[0]
            assert sum(state.dropped.values()) == 0, state.last_error
            assert set(state.requests) == {"2xx"}, state.last_error
            return state.protocol

    return asyncio.run(test())


def recent() -> list[int]:
    first = int(time.time() * 1000) - NUMBERS * 1000
    return [first + number * 1000 for number in range(NUMBERS)]


@pytest.mark.parametrize(("shards", "protocol"), [(1, "1.0"), (4, "auto")])
def test_prometheus_stores_every_sample_exactly(
    tmp_path: Path, prometheus: str, shards: int, protocol: str
) -> None:
    moments = recent()
    if shards > 1:
        # Newer timestamps than the first run, or Prometheus would reject them as out of order.
        wait_until(lambda: time.time() * 1000 > moments[0] + (NUMBERS + 2) * 1000, "the next seconds")
        moments = [int(time.time() * 1000) - 900 + number for number in range(NUMBERS)]
    config = QueueConfig(
        min_shards=shards, max_shards=shards, max_samples_per_send=50, batch_send_deadline=0.05
    )
    used = send(tmp_path, prometheus + "/api/v1/write", moments, config, protocol)
    release = get(prometheus + "/api/v1/status/buildinfo").json()["data"]["version"]
    # Since Prometheus 2.54.
    assert used == ("2.0" if protocol == "auto" and not release.startswith("2.42") else "1.0")

    def samples(name: str) -> dict[str, list[tuple[int, float]]]:
        answer = get(prometheus + "/api/v1/query", params={"query": f"{name}[5m]"}).json()
        return {
            one["metric"]["instance"]: [
                (round(at * 1000), float(value)) for at, value in one["values"] if round(at * 1000) in moments
            ]
            for one in answer["data"]["result"]
        }

    instances = [f"10.0.0.{target}:9400" for target in range(TARGETS)]
    counted = [(moment, 1e15 + number) for number, moment in enumerate(moments)]
    labeled = [(moment, math.pi * number) for number, moment in enumerate(moments)]
    assert samples("counted_total") == dict.fromkeys(instances, counted)
    assert samples('labeled{text="ä \\"\\\\\\n\U0001f600"}') == dict.fromkeys(instances, labeled)
    # A range query omits staleness markers; an instant query shows that the series has ended.
    ending = [(moment, -0.5 * number) for number, moment in enumerate(moments[: NUMBERS // 2])]
    assert samples("ending") == dict.fromkeys(instances, ending)
    assert instant(prometheus, "ending", moments[NUMBERS // 2 - 1]) == TARGETS
    assert instant(prometheus, "ending", moments[NUMBERS // 2]) == 0


def instant(url: str, query: str, moment: int) -> int:
    form = {"query": query, "time": f"{moment / 1000:.3f}"}
    answer = get(url + "/api/v1/query", params=form).json()
    return len(answer["data"]["result"])


def test_victoriametrics_stores_every_sample_exactly(tmp_path: Path, victoria: str) -> None:
    moments = recent()
    assert send(tmp_path, victoria + "/api/v1/write", moments, EAGER, "auto") == "1.0"

    def exported() -> dict[tuple[str, str], dict[int, float]]:
        form = {"match[]": '{job="gpu"}', "reduce_mem_usage": "1"}
        text = get(victoria + "/api/v1/export", params=form).text
        found = {}
        for line in text.splitlines():
            one = json.loads(line)
            name = one["metric"]["__name__"], one["metric"]["instance"]
            found[name] = dict(zip(one["timestamps"], one["values"], strict=True))
        return found

    def complete() -> dict[tuple[str, str], dict[int, float]] | None:
        found = exported()
        # New samples are visible to queries after a second.
        return found if sum(map(len, found.values())) >= TARGETS * (2 * NUMBERS + NUMBERS // 2) else None

    found = wait_until(complete, "VictoriaMetrics to show all samples")
    for target in range(TARGETS):
        instance = f"10.0.0.{target}:9400"
        counted = {moment: 1e15 + number for number, moment in enumerate(moments)}
        assert found["counted_total", instance] == counted
        ending = found["ending", instance]
        assert {at: value for at, value in ending.items() if value is not None} == {
            moment: -0.5 * number for number, moment in enumerate(moments[: NUMBERS // 2])
        }
