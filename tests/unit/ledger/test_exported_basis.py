"""The exported GPU time follows `price.basis`: a GPU that is allocated and runs nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest

from builders import gpu
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from time_helpers import Has, Truth, pod


@pytest.mark.parametrize(("basis", "account"), [("allocation", "owner"), ("residence", "idle")])
def test_only_the_configured_basis_is_exported(basis: str, account: str) -> None:
    truth = Truth(gpu(0), has=[Has(pod("a"), Fraction(1))])
    ledger = Ledger(LedgerSettings(zero_hold=0.0), basis=basis)
    for at in range(0, 61, 5):
        state = ledger.post(truth.snapshot(float(at), at - 5.0))
    assert state.time.basis == basis
    assert {row.labels[2]: row.microseconds for row in state.time.rows if row.microseconds} == {
        account: 60_000_000
    }
