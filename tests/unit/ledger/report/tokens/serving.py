"""A day of a fleet that serves models: its report with tokens, and without."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

from gpuledger.ledger.report.fleet.fleet_report import FleetScope, fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.scraped import PeriodEnd
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tokens.served_models import ServedModels
from gpuledger.ledger.report.tokens.token_report import report_with_tokens
from gpuledger.ledger.report.tokens.token_rises import ScrapedTokens, TokenRises
from gpuledger.ledger.report.tokens.token_sources import (
    CACHED,
    DEFAULT_SOURCES,
    INPUT,
    OUTPUT,
    REQUESTS,
    TokenMetric,
)
from gpuledger.ledger.report.usage_report import Period, UsageReport
from unit.ledger.report.fleet.support import BEGIN, DAY, CounterLevels, own_time, spent
from unit.ledger.report.fleet.test_fleet_time import info, one_day

KINDS = (INPUT, CACHED, OUTPUT, REQUESTS)
# By pod and model: the tokens of a day by kind. One pod is on two GPUs, one on none, and one has no name.
SERVED: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("chat", "llama"): {INPUT: 3000, CACHED: 500, OUTPUT: 1000, REQUESTS: 4},
    ("small", "=qwen"): {INPUT: 70, OUTPUT: 7},
    ("lost", "llama"): {OUTPUT: 20},
    ("", "nobody"): {INPUT: 3, CACHED: 9},
}


def token_metric(kind: str) -> TokenMetric:
    return TokenMetric("vllm", kind, f"vllm:{kind}_total")


def server(pod: str, model: str) -> dict[str, str]:
    """The labels of a counter of a server; without a pod, those of a static target."""
    named = {"namespace": "serving", "pod": pod} if pod else {}
    return {"job": "e", "instance": f"{pod}:8000", "model_name": model, **named}


def counted(served: Mapping[tuple[str, str], Mapping[str, int]], offset: int) -> ScrapedTokens:
    """Counters that rise from 100 by these amounts, and have `offset` more in the last scrape."""
    answers = {}
    for kind in KINDS:
        levels = [(server(*pod), amounts[kind]) for pod, amounts in served.items() if kind in amounts]
        last = [(labels, 100.0 + amount + offset) for labels, amount in levels]
        least = [(labels, 100.0) for labels, _ in levels]
        answers[token_metric(kind)] = {"last": last, "least": last if offset else least, "alive": least}
    return ScrapedTokens(BEGIN, BEGIN + DAY, answers)


def served_tokens(served: Mapping[tuple[str, str], Mapping[str, int]] = SERVED) -> TokenRises:
    """The rises of the day. In the scrape after it, each counter has 2 more."""
    rises = TokenRises(DEFAULT_SOURCES)
    before = counted({pod: dict.fromkeys(amounts, 0) for pod, amounts in served.items()}, 0)
    rises.begin(before, before)
    rises.add(counted(served, 0), ())
    rises.end(counted(served, 2))
    return rises


def serving_reports(by: str = "served_model", prices: Prices = Prices()) -> tuple[UsageReport, UsageReport]:  # noqa: B008
    """The report of the day, and the same with tokens."""
    accounts: CounterLevels = [
        (spent("GPU-0", "train"), 0, DAY / 3),
        (own_time("GPU-0"), 0, DAY * 2 / 3),
        (spent("GPU-1", "chat", "b", namespace="serving"), 0, DAY),
        (spent("GPU-2", "chat", "b", namespace="serving"), 0, DAY / 7),
        (spent("GPU-2", "small", "b", namespace="serving"), 0, DAY * 6 / 7),
    ]
    gpus = {"GPU-0": "a", "GPU-1": "b", "GPU-2": "b"}
    infos = [info(uuid, node) for uuid, node in gpus.items()]
    fleet = one_day(accounts, dict.fromkeys(gpus, DAY), gpus, infos=infos).fleet
    fleet.end(None, PeriodEnd(), complete=True)
    models = ServedModels(fleet.inventory, "", "")
    rises = served_tokens()
    models.learn(rises.totals())
    scope = FleetScope(
        fleet_grouping(by, fleet.inventory, (), models.of_party),
        prices,
        UTC,
        Period(int(BEGIN), int(BEGIN + DAY), int(BEGIN), BEGIN + DAY),
        [ReportPart(int(BEGIN // 900), int((BEGIN + DAY) // 900), "")],
        "Prometheus at http://p",
    )
    found = fleet_report([fleet], scope)
    return found, report_with_tokens(found, [fleet], [rises], models)
