"""A posting that raises: the accounts of each epoch still sum to the growth of its counter."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from builders import gpu, process, reading, snapshot
from gpuledger.ledger.energy import gpu_energy_ledger
from gpuledger.ledger.energy.energy_ledger import EnergyLedger
from gpuledger.ledger.energy.floor import Floors
from gpuledger.model import quantities as q

CARD = gpu(0, name="NVIDIA H100")
RESIDENT = process(CARD, 1)
J, WATTS = 1000, 60.0


def assert_balance(seed: int, *, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that stands still, is missing or begins again, pauses, and power that is missing."""
    chosen, apportion = Random(seed), gpu_energy_ledger.apportion

    def apportion_or_raise(*evidence: object, **rules: object) -> object:
        if fails and chosen.random() < 0.05:
            raise RuntimeError("a defect")
        return apportion(*evidence, **rules)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(gpu_energy_ledger, "apportion", apportion_or_raise)
    book, posted, step = EnergyLedger(Floors()), Counter[int](), chosen.choice((1, 5, 30))
    ended: dict[int, int] = {}
    at, began, boot, counter = 0, 0, 0, 0
    until = dict.fromkeys(("unmoved", "no counter", "no power", "no list"), 0)
    while at < 200 * step:
        for what, end in until.items():
            if chosen.random() < 0.02 and at > end + 61:
                until[what] = at + chosen.choice((1, 30, 61, 90, 200))
        if chosen.random() < 0.02:
            book.interrupt()
        if chosen.random() < 0.01:
            began, boot = at, boot + 1
        failing = {what for what, end in until.items() if at < end}
        counter = counter if "unmoved" in failing else round((at - began) * WATTS * J)
        values = {} if "no counter" in failing else {q.ENERGY: counter}
        values |= {} if "no power" in failing else {q.POWER: WATTS}
        listed = "no list" not in failing
        seen = reading(CARD, *([RESIDENT] if listed else []), failed=not listed, values=values)
        tick = replace(snapshot(seen, unix=1.7e9 + at), elapsed=float(at), boot_id=f"boot-{boot}")
        for one in book.post(tick):
            posted[one.epoch_number] += 0 if one.integrated else one.millijoules
        gpu_ledger = book.gpu_ledgers[CARD.uuid]
        now = gpu_ledger.counter
        grown = 0 if now.opening is None else now.booked - now.opening
        assert posted[now.epoch_number] == grown, at
        assert all(posted[epoch] == amount for epoch, amount in ended.items() if epoch != now.epoch_number), (
            at
        )
        ended[now.epoch_number] = grown if gpu_ledger.frozen else grown + now.tail
        at += step * chosen.choice((1, 1, 1, 2))


@pytest.mark.parametrize("seed", range(60))
def test_each_epoch_balances_whatever_fails(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_balance(seed, fails=False, monkeypatch=monkeypatch)


@pytest.mark.parametrize("seed", range(60))
def test_each_epoch_balances_after_a_posting_that_raises(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_balance(seed, fails=True, monkeypatch=monkeypatch)
