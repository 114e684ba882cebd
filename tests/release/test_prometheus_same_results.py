"""All queries of dashboards and rules give the same results on Prometheus 2.42 and 3.5, and on an old and a
new VictoriaMetrics (MetricsQL).

Prometheus 2.42 scrapes, evaluates the rules and sends every sample to the others: all four store the same.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from dashboards import (
    DASHBOARDS,
    EVERYTHING,
    FIXED,
    batch_node,
    panel_queries,
    substituted,
)
from release.monitoring import newer_programs
from running import assert_each, get, prometheus, serving, victoria_metrics, wait_for_each
from stack import EXPORTER, RULES, StackPrometheus, configuration

pytestmark = pytest.mark.group("same-results")

OTHERS = ("prometheus 3.5", "old victoria", "new victoria")
# Both evaluate and scrape in this interval.
TICK = 500
Result = Mapping[frozenset[tuple[str, str]], float]
DASHBOARD_QUERIES = {
    uid: [substituted(query.expression, {**FIXED, **EVERYTHING}) for query in panel_queries(uid)]
    for uid in DASHBOARDS
}
RULES_BY_FILE: dict[str, list[dict[str, Any]]] = {
    file.name: [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    for file in RULES
}
QUERIES = {
    **DASHBOARD_QUERIES,
    **{name: [rule["expr"] for rule in rules] for name, rules in RULES_BY_FILE.items()},
}
RECORDED = {
    rule["record"]: rule["expr"] for rules in RULES_BY_FILE.values() for rule in rules if "record" in rule
}
# Counters in a window: Prometheus extrapolates to the borders of the window, which MetricsQL does not.
WINDOW = re.compile(r"\b(?:rate|increase)\(")
# label_replace() of VictoriaMetrics 1.79 sets a missing label to a text of another label.
BROKEN_IN_OLD_VICTORIA = '"namespace", "(none)", "namespace", ""'


@dataclass(frozen=True)
class Stores:
    """Four servers with the same samples, and a moment at which no window begins or ends with a sample."""

    reference: str
    others: Mapping[str, str]
    moment: float

    def result(self, url: str, query: str) -> Result:
        form = {"query": query, "time": f"{self.moment:.3f}"}
        answer = get(url + "/api/v1/query", params=form).json()
        assert answer["status"] == "success", answer["error"]
        data = answer["data"]
        if data["resultType"] == "scalar":
            return {frozenset(): float(data["result"][1])}
        return {frozenset(row["metric"].items()): float(row["value"][1]) for row in data["result"]}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """A Kubernetes node, a workstation and a node with a batch job."""
    folder = tmp_path_factory.mktemp("stores")
    with ExitStack() as running:
        others = {"old victoria": running.enter_context(victoria_metrics())}
        with newer_programs():
            others["new victoria"] = running.enter_context(victoria_metrics())
            receiver = prometheus("global: {scrape_interval: 1m}", "--web.enable-remote-write-receiver")
            others["prometheus 3.5"] = running.enter_context(receiver).url
        batch, driver = batch_node(folder)
        fast = (*EXPORTER, "--interval", f"{TICK}ms", "--energy.zero-hold", "2s")
        nodes = [
            running.enter_context(serving("--source", "simulator", "--speed", "20", *fast)),
            # Another seed: no GPU of one node has the UUID of another's.
            running.enter_context(serving("--source", "simulator:workstation", "--seed", "7", *fast)),
            running.enter_context(serving(*batch, *fast, env=driver)),
        ]
        targets = [f"127.0.0.1:{node.port}" for node in nodes]
        config = sending(configuration(folder, targets, f"{TICK}ms"), [*others.values()])
        reference = StackPrometheus(folder, config)
        running.callback(reference.stop)
        reference.wait_query("min(count_over_time(gpuledger_ticks_total[5m])) > 60")
        moment = between_samples(reference)
        wait_for_each(others.values(), lambda url: has_samples(url, len(nodes), moment))
        yield Stores(reference.url, others, moment)


def sending(config: str, receivers: Sequence[str]) -> str:
    """The configuration with these receivers of remote write, and without labels that only they would get."""
    made = yaml.safe_load(config)
    del made["global"]["external_labels"]
    queue = {"batch_send_deadline": "100ms"}
    made["remote_write"] = [{"url": f"{url}/api/v1/write", "queue_config": queue} for url in receivers]
    return str(yaml.safe_dump(made))


def has_samples(url: str, nodes: int, moment: float) -> None:
    """Fails until the server has newer samples than the moment of all nodes, and so all older ones."""
    answer = get(url + "/api/v1/query", params={"query": f"timestamp(up) > {moment + 1}"}).json()
    assert len(answer["data"]["result"]) == nodes


def between_samples(real: StackPrometheus) -> float:
    """A recent moment as far as possible from all scrapes and evaluations, which have the same offset in each
    interval. Prometheus 3 excludes a sample at the beginning of a window, and Prometheus 2 includes it.
    """
    rows: list[Any] = [
        row for name in ("up", "ALERTS", *RECORDED) for row in real.query(f"timestamp({name})")
    ]
    offsets = {round(float(row["value"][1]) * 1000) % TICK for row in rows}

    def distance(at: int) -> int:
        return min(min((at - one) % TICK, (one - at) % TICK) for one in offsets)

    now = int(time.time() * 1000)
    return (now - now % TICK + max(range(TICK), key=distance) - TICK) / 1000


def test_the_newer_programs_are_newer() -> None:
    def version() -> str:
        return subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True).stdout

    with newer_programs():
        assert version().startswith("prometheus, version 3.5.")
    assert version().startswith("prometheus, version 2.42.")


@pytest.mark.parametrize("source", QUERIES)
def test_prometheus_3_returns_the_same(stores: Stores, source: str) -> None:
    """Within 2 % for windows: Prometheus 3 extrapolates a counter differently if it begins in the window."""

    def is_same(query: str) -> None:
        expected = stores.result(stores.reference, query)
        found = stores.result(stores.others["prometheus 3.5"], query)
        within = 0.02 if WINDOW.search(query) else 1e-9
        assert found == pytest.approx(expected, rel=within)

    assert_each(QUERIES[source], is_same)


@pytest.mark.parametrize("victoria", ["old victoria", "new victoria"])
@pytest.mark.parametrize("source", QUERIES)
def test_victoria_metrics_returns_the_same_series(stores: Stores, source: str, victoria: str) -> None:
    def is_same(query: str) -> None:
        expected = stores.result(stores.reference, query)
        found = stores.result(stores.others[victoria], query)
        if victoria == "old victoria" and BROKEN_IN_OLD_VICTORIA in query:
            assert len(found) == len(expected)
        elif WINDOW.search(query):
            # MetricsQL also has a result for a series that has only one sample in the window.
            assert found.keys() >= expected.keys()
        else:
            assert found.keys() == expected.keys()

    assert_each(QUERIES[source], is_same)


@pytest.mark.parametrize("victoria", ["old victoria", "new victoria"])
@pytest.mark.parametrize("source", QUERIES)
def test_victoria_metrics_returns_the_same_values_without_windows(
    stores: Stores, source: str, victoria: str
) -> None:
    def is_same(query: str) -> None:
        expected = stores.result(stores.reference, query)
        assert stores.result(stores.others[victoria], query) == pytest.approx(expected, rel=1e-4)

    assert_each([query for query in QUERIES[source] if not WINDOW.search(query)], is_same)


@pytest.mark.parametrize("victoria", ["old victoria", "new victoria"])
@pytest.mark.parametrize(
    "record",
    [
        "gpuledger:owner_held:ratio1h",
        "gpuledger:namespace_power:watts5m",
        "gpuledger:namespace_gpus:mean5m",
    ],
)
def test_a_recorded_mean_is_of_its_whole_window_in_victoria_metrics(
    stores: Stores, record: str, victoria: str
) -> None:
    """Most of both windows is before the first sample. What is missing there counts as zero in both."""
    expected = sum(stores.result(stores.reference, RECORDED[record]).values())
    found = sum(stores.result(stores.others[victoria], RECORDED[record]).values())
    assert found == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("victoria", ["old victoria", "new victoria"])
def test_old_ecc_errors_are_not_new_ones_in_victoria_metrics(stores: Stores, victoria: str) -> None:
    """The counter of the board's lifetime begins with more than zero. MetricsQL's increase() counts that."""
    (query,) = (query for query in QUERIES["hardware.yml"] if "ecc_errors" in query)
    counter = 'gpuledger_device_ecc_errors_total{type="corrected"}'
    url = stores.others[victoria]
    assert max(stores.result(url, f"increase({counter}[1h])").values()) > 0
    assert stores.result(url, query.replace('"uncorrected"', '"corrected"')) == {}


@pytest.mark.parametrize("newer", [False, True], ids=["old", "new"])
def test_vmalert_accepts_the_rules(newer: bool) -> None:
    rules = [f"-rule={file}" for file in RULES]
    with ExitStack() as running:
        if newer:
            running.enter_context(newer_programs())
        done = subprocess.run(["vmalert", "-dryRun", *rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_promtool_of_prometheus_3_accepts_the_rules() -> None:
    with newer_programs():
        done = subprocess.run(
            ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
