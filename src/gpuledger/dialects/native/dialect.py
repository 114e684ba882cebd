"""The native dialect: `gpuledger_*` families in base units, with attributes in info families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.dialects.native import devices, gpu_time, node, owners, processes, quantity_metrics
from gpuledger.dialects.native import ledger as sessions
from gpuledger.model.family import Family, declare_family, single_sample_family
from gpuledger.model.node_state import NodeState
from gpuledger.model.problem_quantities import PROBLEM_QUANTITIES

PAUSED = declare_family(
    "gpuledger_paused",
    "1 while the driver is released by gpuledger pause and device data is missing; absent if pausing is "
    "unavailable.",
    source="gpuledger pause and resume",
)
PAUSED_UNTIL = declare_family(
    "gpuledger_paused_until_timestamp_seconds",
    "Unix time at which the pause ends automatically; absent without a pause.",
    source="gpuledger pause and resume",
)
RELOADED = declare_family(
    "gpuledger_config_last_reload_success",
    "1 if the last reload of the settings succeeded, 0 if it failed and the previous settings are still in "
    "force; the log and /health have the reason.",
    source="configuration",
)
RELOADED_AT = declare_family(
    "gpuledger_config_last_reload_success_timestamp_seconds",
    "Unix time at which the settings in force were read.",
    source="configuration",
)

SPECS = (PAUSED, PAUSED_UNTIL, RELOADED, RELOADED_AT)


def operation_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of pause and reload; empty if the program supports neither."""
    pause, reload = state.health.pause, state.health.reload
    yield single_sample_family(PAUSED, None if pause is None else int(pause.paused))
    yield single_sample_family(PAUSED_UNTIL, None if pause is None else pause.until)
    yield single_sample_family(RELOADED, None if reload is None else int(reload.success))
    yield single_sample_family(RELOADED_AT, None if reload is None else reload.last_success)


class NativeDialect:
    """Families of devices, processes and the node, which join on `uuid` and `mig_instance`."""

    name = "native"
    required_quantities = quantity_metrics.REQUIRED_QUANTITIES | PROBLEM_QUANTITIES
    specs = (
        *devices.SPECS,
        *quantity_metrics.SPECS,
        *owners.SPECS,
        *processes.SPECS,
        *sessions.SPECS,
        *sessions.ENERGY_SPECS,
        *gpu_time.SPECS,
        *node.SPECS,
        *SPECS,
    )

    def __init__(self, version: str, price: gpu_time.PriceOf | None = None) -> None:
        """`price` returns the price of an hour of the whole GPU for a device; None without prices."""
        self._version = version
        self._price = price

    def families(self, state: NodeState) -> Iterable[Family]:
        """Yields all families of one NodeState."""
        yield from devices.device_families(state)
        if state.snapshot is not None:
            yield from quantity_metrics.quantity_families(state.snapshot)
        yield from owners.owner_families(state)
        yield from processes.process_families(state)
        yield from sessions.session_families(state)
        yield from sessions.energy_families(state)
        yield from gpu_time.time_families(state, self._price)
        yield from node.node_families(state, self._version)
        yield from operation_families(state)
