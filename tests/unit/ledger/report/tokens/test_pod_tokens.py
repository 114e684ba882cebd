"""Which model a pod serves, and what its tokens are in a disaggregated pair."""

from __future__ import annotations

import pytest

from gpuledger.ledger.report.fleet.inventory import Inventory, ScrapedPod
from gpuledger.ledger.report.token_counts import CountError
from gpuledger.ledger.report.tokens.pod_tokens import tokens_by_pod
from gpuledger.ledger.report.tokens.served_models import SEVERAL, ServedModels
from gpuledger.ledger.report.tokens.token_rises import TokenName, TokenRise
from gpuledger.ledger.report.tokens.token_sources import CACHED, INPUT, OUTPUT, REQUESTS, TRANSFERRED

MODEL, ROLE = "llm-d.ai/model", "llm-d.ai/role"
POD = ("s", "p")


def counter(kind: str = OUTPUT, model: str = "m", pod: str = "p") -> TokenName:
    return TokenName("s", pod, "8000", "vllm", kind, model, "")


def models(inventory: Inventory, *names: TokenName) -> ServedModels:
    found = ServedModels(inventory, MODEL, ROLE)
    found.learn(names)
    return found


def inventory(**pods: ScrapedPod) -> Inventory:
    found = Inventory(60.0)
    found.pods.update({("s", name): pod for name, pod in pods.items()})
    return found


OF_REPLICA_SET = ScrapedPod({"controller": "r", "controller_kind": "ReplicaSet"})
LABELLED = ScrapedPod(labels=((MODEL, "by-label"),))


@pytest.mark.parametrize(
    ("pods", "names", "expected"),
    [
        ({}, [counter()], "m"),
        ({}, [counter(), counter(model="n")], SEVERAL),
        ({}, [], ""),
        ({"p": LABELLED}, [], "by-label"),
        # Tokens win over labels: they are what was served.
        ({"p": LABELLED}, [counter()], "m"),
        # A replica that exports no tokens yet has the model of the others of its controller, if it is one.
        ({"p": OF_REPLICA_SET, "q": OF_REPLICA_SET}, [counter(pod="q")], "m"),
        (
            {"p": OF_REPLICA_SET, "q": OF_REPLICA_SET, "r": OF_REPLICA_SET},
            [counter(pod="q"), counter(pod="r", model="n")],
            "",
        ),
        ({"p": OF_REPLICA_SET, "q": ScrapedPod()}, [counter(pod="q")], ""),
    ],
)
def test_the_model_of_a_pod(pods: dict[str, ScrapedPod], names: list[TokenName], expected: str) -> None:
    assert models(inventory(**pods), *names).of_pod(POD) == expected


COUNTED = {INPUT: 1000.0, OUTPUT: 500.0, CACHED: 900.0, REQUESTS: 10.0, TRANSFERRED: 800.0}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("", {INPUT: 1000, OUTPUT: 500, CACHED: 900, REQUESTS: 10}),
        ("both", {INPUT: 1000, OUTPUT: 500, CACHED: 900, REQUESTS: 10}),
        ("prefill", {INPUT: 1000, OUTPUT: None, CACHED: 900, REQUESTS: None}),
        # 200 tokens of prompts were computed here.
        ("decode", {INPUT: 200, OUTPUT: 500, CACHED: None, REQUESTS: 10}),
    ],
)
def test_a_role_decides_which_tokens_count(role: str, expected: dict[str, int | None]) -> None:
    pods = inventory(p=ScrapedPod(labels=((ROLE, role),)))
    totals = {counter(kind): TokenRise(amount) for kind, amount in COUNTED.items()}
    found = tokens_by_pod(totals, models(pods, *totals))[POD, "m"]
    assert {kind: found.amount(kind) for kind in expected} == expected
    assert found.active
    assert found.doubled == (role not in ("prefill", "decode"))


def test_without_a_counter_of_transfers_a_decode_pod_counts_no_input() -> None:
    pods = inventory(p=ScrapedPod(labels=((ROLE, "decode"),)))
    totals = {counter(INPUT): TokenRise(1000.0), counter(OUTPUT): TokenRise(5.0)}
    assert tokens_by_pod(totals, models(pods, *totals))[POD, "m"].amount(INPUT) == 0


def test_the_errors_of_several_counters_add_up() -> None:
    second = counter()._replace(port="8001")
    totals = {counter(): TokenRise(10.0, 0.5, 7.0), second: TokenRise(20.0, 1.0)}
    found = tokens_by_pod(totals, models(inventory(), *totals))[POD, "m"]
    assert (found.amount(OUTPUT), found.error(OUTPUT)) == (30, CountError(over=2, under=7))


def test_input_without_what_another_server_computed_can_be_wrong_by_both() -> None:
    """A decode pod: too many transferred tokens make too few own ones."""
    pods = inventory(p=ScrapedPod(labels=((ROLE, "decode"),)))
    totals = {counter(INPUT): TokenRise(1000.0, 10, 3), counter(TRANSFERRED): TokenRise(800.0, 9, 2)}
    found = tokens_by_pod(totals, models(pods, *totals))[POD, "m"]
    assert (found.amount(INPUT), found.error(INPUT)) == (200, CountError(over=12, under=12))
