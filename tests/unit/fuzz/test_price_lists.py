"""Price lists, teams and tables of token counters, altered: values, or an error of one line."""

from __future__ import annotations

import json
from datetime import UTC
from fractions import Fraction
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given

from fuzzing import bounded, check_line, counted_steps, fuzzed, mutated_values
from gpuledger.config.commands import ALL_GROUPS
from gpuledger.config.load import load_values
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.prices import PriceList, PriceUse
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.report.teams import find_team
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import build_settings
from gpuledger.model.workload import Workload

PARTS = (
    GpuPart("GPU-1", "NVIDIA H100"),
    GpuPart("GPU-1", "NVIDIA H100", "GPU-1/1/0", "1g.10gb", Fraction(1, 7)),
)
QUARTER = 1_795_860_000 // 900
OWNER = Workload("pod", "ml", "train-0", "main", user="ann")
DOCUMENTS = (
    {
        "price": {
            "currency": "EUR",
            "gpu_hour": [
                {"mig": "1g.*", "price": "0.40", "per": "instance", "from": "2026-01-01"},
                {"gpu": "*H100*", "node": "lab-*", "price": 2.5, "until": "2026-12-01T08:00+01:00"},
                {"price": 1},
            ],
            "kwh": [{"from": "2026-10-25T02:00", "price": "0.31"}, {"node": "a", "price": 0.2}],
            "idle": "spread",
        },
        "pue": [{"value": 1.2}],
        "co2": {"g_per_kwh": 380},
    },
    {
        "teams": [
            {"team": "vision", "namespace": "vision-*"},
            {"team": "nlp", "user": ["ann", "b*"], "node": "lab-1"},
            {"team": "rest", "namespace": "a*"},
        ]
    },
    {
        "tokens": {
            "sources": [{"engine": "mine", "input": "in_total", "output": ["out_total"], "model": "name"}],
            "gateways": [
                {"gateway": "litellm", "served": {"chat": "meta/Llama", "sql-*": "meta/Llama"}},
                {"gateway": "mine", "output": "out_total", "model": ["backend"], "team": ["group"]},
            ],
            "input_weight": 0.25,
        }
    },
)


def check_settings(document: Any) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "settings.yaml")
        # JSON is YAML.
        file.write_text(json.dumps(document), encoding="utf-8")
        try:
            values = load_values(ALL_GROUPS, {}, {}, file)
            prices = build_settings(Prices, values)
            listed = PriceList(prices, UTC)
        except GpuledgerError as error:
            check_line(error)
            return
    for part in PARTS:
        price = listed.gpu_hour(part, "lab-1", QUARTER)
        assert price is None or price >= 0
    assert listed.pue("lab-1", QUARTER) >= 1
    assert (listed.kwh("lab-1", QUARTER) or 0) >= 0
    assert listed.fingerprint == listed.fingerprint
    for line in (
        *listed.describe(),
        *listed.problems([PriceUse(part, "lab-1", QUARTER, QUARTER + 4) for part in PARTS]),
    ):
        assert "\n" not in line
    assert isinstance(find_team(build_settings(TeamSettings, values).teams, OWNER, "lab-1"), str)
    for gateway in build_settings(TokenSettings, values).gateways:
        labels = {"model": "chat", "backend": "chat", "group": "a"}
        assert gateway.served_model(labels, {"meta/Llama"}, {}) in ("", "meta/Llama")


def test_the_documents_are_valid() -> None:
    for document in DOCUMENTS:
        with TemporaryDirectory() as folder:
            file = Path(folder, "settings.yaml")
            file.write_text(json.dumps(document), encoding="utf-8")
            load_values(ALL_GROUPS, {}, {}, file)
        check_settings(document)


@fuzzed
@given(mutated_values(*DOCUMENTS))
@example({"price": {"gpu_hour": [{"price": "9" * 5000}]}})
@example({"price": {"kwh": [{"price": 1, "from": "2026-13-99"}]}})
def test_no_altered_list_raises_another_error(document: Any) -> None:
    with bounded():
        check_settings(document)


def test_an_entry_takes_no_more_steps_in_a_longer_list() -> None:
    # All have four digits, and none is used twice: patterns are compiled once.
    numbers = iter(range(1000, 10_000))

    def steps_for(count: int) -> int:
        entries = [{"gpu": f"*{one}*", "node": f"n{one}", "price": one} for one in islice(numbers, count)]
        with bounded(), counted_steps() as steps:
            check_settings({"price": {"gpu_hour": entries}})
        return steps[0]

    # What happens once in a process, such as imports, is in none of the compared numbers.
    steps_for(1)
    first, middle, last = map(steps_for, (1, 61, 121))
    # One call for each pair of entries would make the second sixty dearer by 1.6 %.
    assert last - middle <= 1.01 * (middle - first)
