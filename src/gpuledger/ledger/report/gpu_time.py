"""Entries of the time books: the part of a Gpu, and its time in one account, by both bases."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from gpuledger.model.session import ALLOCATION

if TYPE_CHECKING:
    from gpuledger.ledger.report.party import Party

# The command of an owner's row without a process.
NONE_RUNNING = "(none running)"


class GpuPart(NamedTuple):
    """A part of a whole Gpu, as it was known when its time was posted.

    `gpu` is the Gpu's uuid. `instance` (`GI_CI`) and `profile` are those of a MIG Instance; both are empty
    for a whole Gpu and for the multiprocessors that no Instance covers. `share` is the part of the Gpu.
    """

    gpu: str
    model: str = ""
    instance: str = ""
    profile: str = ""
    share: Fraction = Fraction(1)

    def __hash__(self) -> int:
        # Fractions are slow to hash.
        return hash((self.gpu, self.instance))


class GpuTime(NamedTuple):
    """Microseconds of whole Gpus in one account.

    `account` is owner, or one of the Gpu's own: idle, uncut, unattributed, unobserved, down. `party` is None
    for these. `is_estimate` marks time that rests on an allocation of unknown fraction.
    """

    part: GpuPart
    account: str
    party: Party | None
    is_estimate: bool
    allocation: int
    residence: int

    def microseconds(self, basis: str) -> int:
        """The amount by a basis."""
        return self.allocation if basis == ALLOCATION else self.residence
