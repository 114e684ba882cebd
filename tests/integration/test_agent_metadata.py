"""The agent reads the same HELP, TYPE and UNIT as Prometheus sends for the same pages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.scrape.line_parser import OPENMETRICS, TEXT_FORMAT
from gpuledger.agent.scrape.page_cache import PageCache
from gpuledger.agent.scrape.series_labels import SeriesLabeler
from running import Program, free_port
from scripted_target import OPEN, Answer, scripted
from write_helpers import ScriptedReceiver, receiving, until
from write_request import Metadata, metadata_of, unpacked

TEXT = """\
# HELP a_total All of "it", with \\\\ and \\n and more.  \x20
# TYPE a_total counter
a_total 1
# TYPE b gauge
# some comment
#TYPE c counter
b 2
# TYPE d\tuntyped
# HELP e
e 3
#  HELP  f   padded
f 1
# TYPE h histogram
h_bucket{le="+Inf"} 1
h_sum 1
h_count 1
# TYPE s summary
s_sum 1
s_count 1
# HELP twice one
# HELP twice two
twice 1
"""
OPENED = """\
# TYPE size_bytes gauge
# UNIT size_bytes bytes
# HELP size_bytes A \\"size\\" with \\\\ and \\n.
size_bytes 1
# TYPE called counter
called_total 2
# TYPE state stateset
state{state="a"} 1
# TYPE built info
built_info 1
# TYPE gh gaugehistogram
gh_bucket{le="+Inf"} 1
# TYPE odd unknown
odd 1
# EOF
"""


def ours() -> dict[str, Metadata]:
    store = MetadataStore()
    for shard, (page, fmt) in enumerate(((TEXT, TEXT_FORMAT), (OPENED, OPENMETRICS))):
        found = PageCache(SeriesLabeler({})).read_page(page.encode(), fmt, honor=False).metadata
        assert found is not None
        store.set(shard, found)
    return {one.family: tuple(one[1:]) for one in store.families()}  # type: ignore[misc]


@pytest.mark.group("agent-metadata")
def test_metadata_is_that_of_prometheus(tmp_path: Path) -> None:
    theirs: dict[str, Metadata] = {}

    async def test(port: int) -> None:
        there = ScriptedReceiver()
        there.script = lambda post: theirs.update(metadata_of(unpacked(post.body))) or "204 No Content"
        async with receiving(there):
            write = {"url": there.url, "metadata_config": {"send_interval": "100ms"}}
            scrape = {
                "scrape_interval": "200ms",
                "scrape_timeout": "200ms",
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
            jobs = [scrape | {"job_name": path, "metrics_path": path} for path in ("/text", "/open")]
            file = tmp_path / "prometheus.yml"
            file.write_text(yaml.safe_dump({"scrape_configs": jobs, "remote_write": [write]}))
            program = Program(
                [
                    *("prometheus", "--enable-feature=agent", f"--config.file={file}"),
                    *(
                        f"--storage.agent.path={tmp_path}/wal",
                        f"--web.listen-address=127.0.0.1:{free_port()}",
                    ),
                ]
            )
            try:
                await until(lambda: {"a_total", "size_bytes"} <= theirs.keys(), "both pages' metadata")
            finally:
                await asyncio.to_thread(program.stop)

    answers = {"/text": Answer(TEXT), "/open": Answer(OPENED, OPEN)}
    with scripted(lambda path: answers[path]) as target:
        asyncio.run(test(target.port))
    assert ours() == theirs
