"""Creates all dialects by name and checks dialect names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.energy import EnergyDialect
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.dialects.native.gpu_time import PriceOf, no_price
from gpuledger.dialects.process_session import ProcessRows, process_dialect, session_dialect
from gpuledger.dialects.settings import DcgmSettings, DialectSettings, SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.model.errors import unknown_name_error
from gpuledger.model.node_state import Dialect

# Dialects without counters: their families are current states, which separate runs can export.
ONCE_DIALECTS: Final = ("process", "session")


def create_dialects(
    settings: DialectSettings,
    version: str,
    dcgm: DcgmDialect | None = None,
    smi: SmiDialectSettings | None = None,
    price: PriceOf = no_price,
) -> dict[str, Dialect]:
    """Creates all dialects with the user's settings, in the order of the default page.

    `dcgm` is the one created from the user's collectors file; if None, the default collectors are used.
    `price` returns the price of a device's time.
    """
    rows = ProcessRows(settings)
    dialects: tuple[Dialect, ...] = (
        process_dialect(rows),
        session_dialect(rows),
        EnergyDialect(settings),
        NativeDialect(version, price),
        dcgm or DcgmDialect(DcgmSettings(), DEFAULT_COLLECTORS),
        SmiDialect(smi or SmiDialectSettings(), version),
    )
    return {dialect.name: dialect for dialect in dialects}


def check_dialect_names(names: Iterable[str], dialects: dict[str, Dialect]) -> tuple[str, ...]:
    """Returns the names without duplicates, in the given order.

    Raises UsageError for an unknown name, with the most similar valid one.
    """
    for name in names:
        if name not in dialects:
            raise unknown_name_error("dialect", name, dialects)
    return tuple(dict.fromkeys(names))
