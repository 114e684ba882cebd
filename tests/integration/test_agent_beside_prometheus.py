"""`gpuledger agent` and Prometheus in agent mode scrape the same targets into one store: equal series."""

from __future__ import annotations

import json
import re
import ssl
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from certificates import Certificates
from running import PATIENCE, Program, free_port, get, victoria_metrics, wait_until
from scripted_target import OPEN, Answer, scripted

OURS, THEIRS = "gpuledger", "Prometheus"

PLAIN = """\
# HELP a_total All of "it".
# TYPE a_total counter
a_total{x="1",y="with \\\\ and \\" and \\n"} 1
a_total{x="2"} 2.5e3
# TYPE h histogram
h_bucket{le="1"} 1
h_bucket{le="+Inf"} 2
h_sum 3
h_count 2
nan NaN
inf +Inf
low -Inf
empty{x=""} 1
spaced   {  x = "1" , }    7
"""
OPENMETRICS = """\
# HELP a All.
# TYPE a counter
a_total{x="1"} 1.0 # {trace="t"} 0.5
a_created{x="1"} 1700000000.5
# TYPE g gauge
# TYPE w_bytes gauge
# UNIT w_bytes bytes
g 4
w_bytes 5
# EOF
"""
LABELED = 'a{job="mine",instance="inner",node="n1",exported_job="taken"} 1\nb{instance=""} 2\n'
RULES: list[dict[str, Any]] = [
    {"source_labels": ["__name__"], "regex": "low|inf", "action": "drop"},
    {
        "source_labels": ["__name__", "x"],
        "regex": "(a)_total;(.)",
        "target_label": "made",
        "replacement": "$1-$2",
    },
    {"source_labels": ["x"], "target_label": "bucket", "modulus": 13, "action": "hashmod"},
    {"regex": "(y)", "replacement": "copy_$1", "action": "labelmap"},
    {"regex": "y", "action": "labeldrop"},
    {"source_labels": ["__name__"], "regex": "a_total()", "target_label": "copy${1}_y", "replacement": ""},
    {"source_labels": ["x"], "regex": "(2)", "target_label": "${1}bad"},
    {
        "source_labels": ["__name__"],
        "regex": "(n).*",
        "target_label": "letters",
        "replacement": "$1x$$${1}y$",
    },
    {"source_labels": ["__name__"], "target_label": "shout", "action": "uppercase"},
    {"source_labels": ["shout"], "target_label": "whisper", "action": "lowercase"},
    {"source_labels": ["le"], "regex": r"\+Inf", "target_label": "le", "replacement": "most"},
    {"source_labels": ["job"], "target_label": "made", "action": "dropequal"},
]
TARGET_RULES: list[dict[str, Any]] = [
    {"source_labels": ["__address__"], "regex": "(.*):.*", "target_label": "host", "replacement": "$1"},
    {"target_label": "__metrics_path__", "replacement": "/moved"},
    {"source_labels": ["__address__"], "modulus": 1000, "target_label": "slot", "action": "hashmod"},
    {"source_labels": ["__param_which"], "target_label": "which"},
]

EVERY: list[dict[str, Any]] = [
    {"source_labels": ["__scrape_interval__"], "target_label": "every"},
    {"source_labels": ["__scrape_timeout__"], "target_label": "within"},
]

# VictoriaMetrics writes infinities that are not valid JSON.
_INFINITE = re.compile(r"(?<=[\[,])\+?(-?)[Ii]nf(?=[,\]])")

# Job: keys of the agent's endpoint (decision 002), keys of Prometheus's job.
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "open": ({}, {}),
    "relabeled": ({"metricRelabelConfigs": RULES}, {"metric_relabel_configs": RULES}),
    "found": (
        {"params": {"which": ["a", "b"]}},
        {"params": {"which": ["a", "b"]}, "relabel_configs": TARGET_RULES},
    ),
    "honored": ({"honorLabels": True}, {"honor_labels": True}),
    "moved": ({"honorLabels": False}, {}),
    "broken": ({}, {}),
    "severed": ({}, {}),
    "slow": ({}, {}),
    "failing": ({}, {}),
    "vanishing": ({}, {}),
    "limited": ({"sampleLimit": 3}, {"sample_limit": 3}),
    "encrypted": ({"scheme": "https"}, {"scheme": "https"}),
    "many labels": ({"labelLimit": 4}, {"label_limit": 4}),
    "long name": ({"labelNameLengthLimit": 8}, {"label_name_length_limit": 8}),
    "long value": ({"labelValueLengthLimit": 12}, {"label_value_length_limit": 12}),
    "large": ({"bodySizeLimit": "100B"}, {"body_size_limit": "100B"}),
    "empty": ({}, {}),
    "gone": ({}, {}),
    "with params": ({"params": {"collect[]": ["a", "b"]}}, {"params": {"collect[]": ["a", "b"]}}),
    "every": (
        {"interval": "1500ms", "timeout": "1s"},
        {"scrape_interval": "1500ms", "scrape_timeout": "1s", "relabel_configs": EVERY},
    ),
    "doubled": ({}, {}),
    "unnamed": (
        {"metricRelabelConfigs": [{"regex": "__name__", "action": "labeldrop"}]},
        {"metric_relabel_configs": [{"regex": "__name__", "action": "labeldrop"}]},
    ),
}
# Jobs with different pages in the second phase.
MOVING = ("broken", "severed", "slow", "failing", "vanishing")


class Script:
    def __init__(self) -> None:
        self.phase = 1

    def answer(self, path: str) -> Answer:
        name = path.strip("/")
        if name == "open":
            return Answer(OPENMETRICS, OPEN)
        if name == "doubled":
            return Answer('a 1\na{x="1",x="2"} 1\nb 1\n')
        if name == "empty":
            return Answer("")
        if name == "gone":
            return Answer(PLAIN, status=204 if self.phase == 2 else 200)
        if name in ("honored", "labeled"):
            return Answer(LABELED)
        if self.phase == 2 and name in MOVING:
            return {
                "broken": Answer("7&-\n" + PLAIN),
                "severed": Answer(PLAIN.partition("# TYPE h")[0] + "h_bucket{le="),
                "slow": Answer(PLAIN, delay=2.0),
                "failing": Answer("no", status=500),
                "vanishing": Answer('a_total{x="2"} 2.5e3\nnan NaN\n'),
            }[name]
        return Answer(PLAIN)


def path_of(job: str) -> str:
    return {"moved": "/labeled"}.get(job, f"/{job.replace(' ', '-')}")


def gpuledger_config(ports: dict[str, int], ca: Path, write: str) -> dict[str, Any]:
    targets = []
    for job, (endpoint, _) in JOBS.items():
        tls = {"tlsConfig": {"caFile": str(ca)}} if job == "encrypted" else {}
        address = f"127.0.0.1:{ports[job]}"
        targets.append(
            {
                "targetName": job,
                "type": "StaticEndpoints",
                "relabelConfigs": {"found": TARGET_RULES, "every": EVERY}.get(job, []),
                "endpoints": [
                    {"address": address, "path": path_of(job), "timeout": "900ms", **tls, **endpoint}
                ],
            }
        )
    return {
        "features": {"openAgent": {"globalInterval": "1s", "extraScrapeMetrics": True, "targets": targets}},
        "global": {"external_labels": {"agent": OURS, "x": "outer"}},
        "remote_write": [remote_write(write)],
    }


def remote_write(url: str) -> dict[str, Any]:
    return {
        "url": url,
        "queue_config": {"batch_send_deadline": "200ms"},
        "write_relabel_configs": [{"source_labels": ["__name__"], "regex": "h_sum", "action": "drop"}],
    }


def prometheus_config(ports: dict[str, int], ca: Path, write: str) -> dict[str, Any]:
    jobs = []
    for job, (_, more) in JOBS.items():
        tls = {"tls_config": {"ca_file": str(ca)}} if job == "encrypted" else {}
        targets = [{"targets": [f"127.0.0.1:{ports[job]}"]}]
        jobs.append({"job_name": job, "metrics_path": path_of(job), "static_configs": targets, **tls, **more})
    return {
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "900ms",
            "external_labels": {"agent": THEIRS, "x": "outer"},
        },
        "scrape_configs": jobs,
        "remote_write": [remote_write(write)],
    }


class Stored:
    """Stored series of each agent in VictoriaMetrics, with their values; repeated values are collapsed."""

    def __init__(self, url: str) -> None:
        self._url = url

    def of(self, agent: str) -> dict[str, list[float | None]]:
        answer = get(
            f"{self._url}/api/v1/export",
            params={"match[]": f'{{agent="{agent}"}}'},
            timeout=PATIENCE,
        )
        rows: dict[str, list[tuple[int, float | None]]] = defaultdict(list)
        for line in answer.text.splitlines():
            row = json.loads(_INFINITE.sub(r"\1Infinity", line))
            labels = {name: value for name, value in row["metric"].items() if name != "agent"}
            rows[json.dumps(labels, sort_keys=True)] += zip(row["timestamps"], row["values"], strict=True)
        found = {}
        for labels, samples in rows.items():
            values: list[float | None] = []
            for _, value in sorted(samples, key=lambda sample: sample[0]):
                if not values or values[-1] != value:
                    values.append(value)
            found[labels] = values
        return found


@pytest.fixture(scope="module")
def victoria() -> Iterator[str]:
    with victoria_metrics() as url:
        yield url


def test_prometheus_and_the_agent_write_the_same_series_and_values(victoria: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    script = Script()

    with scripted(script.answer) as target, scripted(script.answer, context) as encrypted:
        ports = {job: encrypted.port if job == "encrypted" else target.port for job in JOBS}
        write = f"{victoria}/api/v1/write"
        ours, theirs = tmp_path / "agent.yaml", tmp_path / "prometheus.yml"
        ours.write_text(yaml.safe_dump(gpuledger_config(ports, certificates.crt("ca"), write)))
        theirs.write_text(yaml.safe_dump(prometheus_config(ports, certificates.crt("ca"), write)))
        agent = Program(
            [
                *(sys.executable, "-m", "gpuledger", "agent", "--config", str(ours)),
                *("--queue-directory", str(tmp_path / "queue"), "--listen-address", "127.0.0.1:0"),
            ]
        )
        prometheus = Program(
            [
                *("prometheus", "--enable-feature=agent,extra-scrape-metrics", f"--config.file={theirs}"),
                f"--storage.agent.path={tmp_path / 'wal'}",
                f"--web.listen-address=127.0.0.1:{free_port()}",
            ]
        )

        def wait_for_scrapes(times: int = 3) -> None:
            paths = {"/moved" if job == "found" else path_of(job) for job in JOBS}
            before = target.requests + encrypted.requests

            def all_scraped() -> bool:
                now = target.requests + encrypted.requests
                return all(
                    now[path, agent] >= before[path, agent] + times
                    for path in paths
                    for agent in (OURS, THEIRS)
                )

            wait_until(all_scraped, f"{times} scrapes of all targets by both agents")

        stored = Stored(victoria)

        def differences() -> dict[str, Any]:
            mine, other = stored.of(OURS), stored.of(THEIRS)
            for found in (mine, other):
                for labels in found:
                    if '"scrape_duration_seconds"' in labels:
                        found[labels] = []
            return {
                labels: (mine.get(labels), other.get(labels))
                for labels in sorted({*mine, *other})
                if mine.get(labels) != other.get(labels)
            }

        def severed() -> set[str]:
            return {each for each in differences() if '"__name__": "a_total"' in each and '"severed"' in each}

        try:
            wait_for_scrapes()
            script.phase = 2
            wait_for_scrapes()
            script.phase = 3
            wait_for_scrapes()
            settled = time.monotonic() + PATIENCE
            while set(differences()) - severed() and time.monotonic() < settled:
                time.sleep(0.2)
            assert {each: both for each, both in differences().items() if each not in severed()} == {}
            # On a truncated page, Prometheus never ends the series before the break, contrary to its
            # documentation; the agent ends all of them.
            meant = [differences()[each] for each in sorted(severed())]
            assert meant == [([1.0, None, 1.0], [1.0]), ([2500.0, None, 2500.0], [2500.0])]
            mine = stored.of(OURS)
            assert len(mine) > 120
            # Staleness markers were compared: many series ended in the second phase and came back.
            assert sum(None in values[1:-1] for values in mine.values()) > 30
        finally:
            agent.stop()
            prometheus.stop()
