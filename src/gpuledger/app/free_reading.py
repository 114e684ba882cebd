"""Which Devices can be taken, from one reading of the driver: for machines without a running `serve`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import environ, getuid
from typing import Any, Final

from gpuledger.app.free_requests import availability_json, find_scheduler, parse_wish, refusal
from gpuledger.app.logs import silence_node_log
from gpuledger.app.node_assembly import assemble_parts
from gpuledger.app.node_parts import NodeParts
from gpuledger.config.node import configured_node_name
from gpuledger.ledger.device_choice import NotEnoughDevices, choose_devices, misfit
from gpuledger.ledger.device_conditions import CONDITION_QUANTITIES
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.node_state import NodeState
from gpuledger.node.availability_board import AvailabilityBoard

# Seconds between two readings: the activity of MIG instances is a mean between two.
_BETWEEN_READINGS: Final = 1.0


def read_devices(
    values: Mapping[str, Any], request: Mapping[str, Any], *, choose: bool = False
) -> dict[str, Any]:
    """The answer to a request from a reading of this process; with `choose`, of the chosen Devices only.

    Raises GpuledgerError, also where a scheduler decides.
    """
    with silence_node_log():
        parts = assemble_parts(values, {}, (), extra_quantities=CONDITION_QUANTITIES, keep_ledger=False)
        board = AvailabilityBoard(parts.clock, parts.host_context.users.name, lambda _: False)
        parts.owner_indexes.read_once()
        try:
            state = _settled_state(parts, board.update)
        finally:
            parts.stop()
    scheduler = find_scheduler(state)
    if scheduler and not request["anyway"]:
        raise GpuledgerError(refusal(scheduler))
    # One reading says nothing about the time before.
    wish = parse_wish({**request, "window": 0.0})
    found, refused = board.candidates(0.0), {}
    if not choose:
        found = [one for one in found if not misfit(one, wish)]
    else:
        try:
            found = choose_devices(found, wish)
        except NotEnoughDevices as error:
            found, refused = [], {"refused": str(error)}
    node = configured_node_name(values, environ)
    return {
        **availability_json(node, state.unix, found, viewer=getuid(), has_reservations=False),
        **refused,
    }


def _settled_state(parts: NodeParts, update: Callable[[NodeState], NodeState]) -> NodeState:
    state = update(parts.node.tick())
    if state.snapshot is not None and any(
        isinstance(one.device, Instance)
        and one.supported.get(q.ENGINE_ACTIVITY.key)
        and one.get(q.ENGINE_ACTIVITY) is None
        for one in state.snapshot.process_readings
    ):
        time.sleep(_BETWEEN_READINGS)
        state = update(parts.node.tick())
    if state.snapshot is None:
        raise SourceUnavailable(state.health.status)
    return state
