"""Every dialect there is, by name."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.dialects.dcgm.collectors import DEFAULT
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.energy import EnergyDialect
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.dialects.process_session import Rows, process_dialect, session_dialect
from gpuledger.dialects.settings import DcgmSettings, DialectSettings, SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.model.errors import unknown
from gpuledger.model.node_state import Dialect


def dialects(
    settings: DialectSettings,
    version: str,
    dcgm: DcgmDialect | None = None,
    smi: SmiDialectSettings | None = None,
) -> dict[str, Dialect]:
    """All dialects under the user's settings, in the order of the default page.

    `dcgm` is the one made of the user's collectors file; without it there is the default one.
    """
    rows = Rows(settings)
    every: tuple[Dialect, ...] = (
        process_dialect(rows),
        session_dialect(rows),
        EnergyDialect(settings),
        NativeDialect(version),
        dcgm or DcgmDialect(DcgmSettings(), DEFAULT),
        SmiDialect(smi or SmiDialectSettings(), version),
    )
    return {dialect.name: dialect for dialect in every}


def known(names: Iterable[str], every: dict[str, Dialect]) -> tuple[str, ...]:
    """The names as given, without repeats.

    Raises UsageError with the nearest valid name.
    """
    for name in names:
        if name not in every:
            raise unknown("dialect", name, every)
    return tuple(dict.fromkeys(names))
