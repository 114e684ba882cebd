"""Creates all dialects by name and checks dialect names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuledger.dialects.energy import EnergyDialect
from gpuledger.dialects.process_session import ProcessRows, process_dialect, session_dialect
from gpuledger.dialects.settings import (
    AmdDialectSettings,
    DcgmSettings,
    DialectSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
)
from gpuledger.model.errors import unknown_name_error
from gpuledger.model.node_state import Dialect

if TYPE_CHECKING:
    from gpuledger.dialects.native.gpu_time import PriceOf
    from gpuledger.model.family import Family, FamilySpec
    from gpuledger.model.node_state import NodeState
    from gpuledger.model.quantities import Quantity

# In the order of the default page.
DIALECT_NAMES: Final = ("process", "session", "energy", "native", "dcgm", "smi", "amd")
# Dialects without counters: their families are current states, which separate runs can export.
ONCE_DIALECTS: Final = ("process", "session")


class DeferredDialect:
    """A dialect that `create` imports and creates when it is first used: most nodes never export it."""

    def __init__(self, name: str, create: Callable[[], Dialect]) -> None:
        self.name = name
        self._create = create

    @cached_property
    def created(self) -> Dialect:
        """The dialect itself."""
        return self._create()

    @property
    def specs(self) -> tuple[FamilySpec, ...]:
        """See `Dialect`."""
        return self.created.specs

    @property
    def required_quantities(self) -> frozenset[Quantity]:
        """See `Dialect`."""
        return self.created.required_quantities

    def families(self, state: NodeState) -> Iterable[Family]:
        """See `Dialect`."""
        return self.created.families(state)


def create_dialects(
    settings: DialectSettings,
    version: str,
    dcgm: Callable[[], Dialect] | None = None,
    smi: SmiDialectSettings | None = None,
    price: PriceOf | None = None,
    energy: EnergyDialectSettings | None = None,
    amd: AmdDialectSettings | None = None,
    hostname: str = "",
) -> dict[str, Dialect]:
    """Creates all dialects with the user's settings, in the order of the default page.

    `dcgm` creates the one with the user's collectors file; if None, the default collectors are used.
    `price` returns the price of a device's time. `hostname` is a label of the amd dialect.
    """

    def create_native() -> Dialect:
        from gpuledger.dialects.native.dialect import NativeDialect

        return NativeDialect(version, price)

    def create_smi() -> Dialect:
        from gpuledger.dialects.smi.dialect import SmiDialect

        return SmiDialect(smi or SmiDialectSettings(), version)

    def create_amd() -> Dialect:
        from gpuledger.dialects.amd import AmdDialect

        return AmdDialect(amd or AmdDialectSettings(), hostname)

    rows = ProcessRows(settings)
    dialects: tuple[Dialect, ...] = (
        process_dialect(rows),
        session_dialect(rows),
        EnergyDialect(settings, energy),
        DeferredDialect("native", create_native),
        DeferredDialect("dcgm", dcgm or _create_default_dcgm),
        DeferredDialect("smi", create_smi),
        DeferredDialect("amd", create_amd),
    )
    return {dialect.name: dialect for dialect in dialects}


def _create_default_dcgm() -> Dialect:
    from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
    from gpuledger.dialects.dcgm.dialect import DcgmDialect

    return DcgmDialect(DcgmSettings(), DEFAULT_COLLECTORS)


def check_dialect_names(names: Iterable[str], dialects: dict[str, Dialect]) -> tuple[str, ...]:
    """Returns the names without duplicates, in the given order.

    Raises UsageError for an unknown name, with the most similar valid one.
    """
    for name in names:
        if name not in dialects:
            raise unknown_name_error("dialect", name, dialects)
    return tuple(dict.fromkeys(names))
