"""The vocabulary for new users: `gpuledger_*`, base units, attributes on info families."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.dialects.native import devices, energy, node, operation, owners, processes, sessions
from gpuledger.model.family import Family
from gpuledger.model.page import Page


class NativeDialect:
    """Devices, processes and the node itself; joined by `uuid` and `mig_instance`."""

    name = "native"
    wants = devices.WANTS
    specs = (
        *devices.SPECS,
        *owners.SPECS,
        *processes.SPECS,
        *sessions.SPECS,
        *energy.SPECS,
        *node.SPECS,
        *operation.SPECS,
    )

    def __init__(self, version: str) -> None:
        self._version = version

    def tell(self, page: Page) -> Iterable[Family]:
        """The families of one Page."""
        yield from devices.tell(page)
        yield from owners.tell(page)
        yield from processes.tell(page)
        yield from sessions.tell(page)
        yield from energy.tell(page)
        yield from node.tell(page, self._version)
        yield from operation.tell(page)
