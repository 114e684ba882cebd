"""The vocabulary for new users: `gpuledger_*`, base units, attributes on info families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.dialects.native import devices, node, owners, processes, sessions
from gpuledger.dialects.native import sessions as energy
from gpuledger.model.family import Family, FamilySpec, single
from gpuledger.model.node_state import NodeState

PAUSED = FamilySpec(
    "gpuledger_paused",
    "gauge",
    "1 while gpuledger pause has let the driver go: device data is gone until it is resumed; absent where "
    "nobody can ask for a pause.",
    source="gpuledger pause and resume",
)
PAUSED_UNTIL = FamilySpec(
    "gpuledger_paused_until_timestamp_seconds",
    "gauge",
    "Unix time at which the pause ends by itself; absent when there is none.",
    unit="seconds",
    source="gpuledger pause and resume",
)
RELOADED = FamilySpec(
    "gpuledger_config_last_reload_success",
    "gauge",
    "1 when the settings could be used as they were read last; 0 keeps the last good ones, and the log and "
    "/health say why.",
    source="configuration",
)
RELOADED_AT = FamilySpec(
    "gpuledger_config_last_reload_success_timestamp_seconds",
    "gauge",
    "Unix time at which the settings in force were read.",
    unit="seconds",
    source="configuration",
)

SPECS = (PAUSED, PAUSED_UNTIL, RELOADED, RELOADED_AT)


def operation_families(page: NodeState) -> Iterator[Family]:
    """Families of one Page; empty where the program takes neither."""
    pause, reload = page.health.pause, page.health.reload
    yield single(PAUSED, None if pause is None else int(pause.paused))
    yield single(PAUSED_UNTIL, None if pause is None else pause.until)
    yield single(RELOADED, None if reload is None else int(reload.success))
    yield single(RELOADED_AT, None if reload is None else reload.last_success)


class NativeDialect:
    """Devices, processes and the node itself; joined by `uuid` and `mig_instance`."""

    name = "native"
    wants = devices.WANTS
    specs = (
        *devices.SPECS,
        *owners.SPECS,
        *processes.SPECS,
        *sessions.SPECS,
        *energy.ENERGY_SPECS,
        *node.SPECS,
        *SPECS,
    )

    def __init__(self, version: str) -> None:
        self._version = version

    def families(self, page: NodeState) -> Iterable[Family]:
        """The families of one Page."""
        yield from devices.device_families(page)
        yield from owners.owner_families(page)
        yield from processes.process_families(page)
        yield from sessions.session_families(page)
        yield from energy.energy_families(page)
        yield from node.node_families(page, self._version)
        yield from operation_families(page)
