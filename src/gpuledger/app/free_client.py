"""Who answers `gpuledger free`: the running `serve`, or one reading of the driver in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuledger.app.control_socket import NoServeRunning, SocketForbidden, exchange
from gpuledger.app.free_requests import VERSION, parse_wish
from gpuledger.config.free import FreeSettings
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.ledger.device_choice import misfit
from gpuledger.model.availability import DOWN, FREE, IN_USE, UNKNOWN, Availability, Candidate
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.errors import GpuledgerError, SourceUnavailable

if TYPE_CHECKING:
    from gpuledger.terminal.fleet_picture import FleetGpu


class FreeAnswer(NamedTuple):
    """The JSON of an answer, and remarks for stderr on what it does not know."""

    body: Mapping[str, Any]
    remarks: Sequence[str] = ()


def wish_request(settings: FreeSettings) -> dict[str, Any]:
    """The wish as it is sent to the running gpuledger."""
    return {
        "do": "free",
        "count": settings.count,
        "memory": settings.memory,
        "model": settings.model,
        "mig": settings.mig,
        "display": settings.display,
        "window": settings.window,
        "anyway": settings.anyway,
    }


def list_devices(values: Mapping[str, Any], settings: FreeSettings, *, locally: bool) -> FreeAnswer:
    """All GPUs, from the running gpuledger or, `locally` or without one, from a reading of the driver."""
    request = wish_request(settings)
    if locally:
        return FreeAnswer(_read_here(values, request))
    try:
        return FreeAnswer(exchange(values, {**request, "act": "list"}))
    except (NoServeRunning, SocketForbidden) as error:
        try:
            found = _read_here(values, request)
        except SourceUnavailable as unread:
            raise GpuledgerError(f"{unread}. Also, {error}") from None
        remark = f"{error}. Shown is one reading of the driver, without reservations and without --for"
        return FreeAnswer(found, (remark,))


def take_devices(
    values: Mapping[str, Any],
    settings: FreeSettings,
    *,
    hold: bool,
    locally: bool,
    must_reserve: bool = False,
) -> FreeAnswer:
    """Reserve GPUs; with `hold`, until this process ends. The key `refused` says why there are too few.

    Without a running gpuledger there are no reservations: then `--anyway` takes GPUs from a reading, unless
    `must_reserve`: others can have reserved them before it stopped.
    """
    request = wish_request(settings)
    if not locally:
        try:
            taking = {"act": "take", "hold": hold, "seconds": settings.reserve}
            return FreeAnswer(exchange(values, {**request, **taking}))
        except (NoServeRunning, SocketForbidden) as error:
            if must_reserve:
                raise
            if not settings.anyway:
                raise GpuledgerError(
                    f"nothing is reserved: {error}. To take GPUs from one reading of the driver, which "
                    "another user can take in the same second: --anyway"
                ) from None
    remark = "nothing is reserved: these GPUs are from one reading of the driver, without gpuledger serve"
    return FreeAnswer(_read_here(values, request, choose=True), (remark,))


def list_fleet(access: ClientAccessSettings, url: str, settings: FreeSettings) -> FreeAnswer:
    """The GPUs of all nodes of a fleet that match, free ones first. A fleet reserves nothing.

    Raises UsageError as `NodeApiClient` does, and GpuledgerError with one line.
    """
    from gpuledger.app.fleet_api import FleetApiClient

    client = FleetApiClient(url, access)
    try:
        picture = client.fleet()
    finally:
        client.close()
    wish = parse_wish(wish_request(settings))
    rows = [_fleet_row(one) for one in picture.gpus if not misfit(_fleet_candidate(one), wish)]
    rows.sort(key=lambda row: row["availability"] != FREE)
    nodes = [{"node": one.name, "status": one.status} for one in picture.nodes]
    body = {"version": VERSION, "unix": picture.unix, "reservations": False, "nodes": nodes, "devices": rows}
    remarks = [f"{one.name}: {one.status}" for one in picture.nodes if one.status]
    return FreeAnswer(body, [*picture.list_errors, *remarks])


def _fleet_candidate(one: FleetGpu) -> Candidate:
    card = Gpu(one.uuid, 0, one.model)
    device = Instance(one.uuid, card, 0, 0, 0, one.profile) if one.instance else card
    return Candidate(device, Availability(_fleet_state(one), memory_free=_free_memory(one)))


def _fleet_state(one: FleetGpu) -> str:
    """The node's own judgment; of a node that is too old for one, what its state says."""
    if one.availability:
        return one.availability
    if one.free_now:
        return FREE
    return {"active": IN_USE, "held": IN_USE, "down": DOWN}.get(one.state, UNKNOWN)


def _free_memory(one: FleetGpu) -> int | None:
    if one.memory_total is None or one.memory_used is None:
        return None
    return one.memory_total - one.memory_used


def _fleet_row(one: FleetGpu) -> dict[str, Any]:
    return {
        "node": one.node,
        "uuid": one.uuid,
        "gpu": one.gpu,
        "instance": one.instance,
        "name": one.model,
        "profile": one.profile,
        "availability": _fleet_state(one),
        "availability_reason": one.availability_reason,
        "free_seconds": None,
        "memory_total_bytes": one.memory_total,
        "memory_free_bytes": _free_memory(one),
        "reserved_by": one.reserved_by,
        "reserved_until": None,
        "is_mine": False,
    }


def _read_here(
    values: Mapping[str, Any], request: Mapping[str, Any], *, choose: bool = False
) -> dict[str, Any]:
    # Imported lazily: a node takes long to assemble, and most machines have a running gpuledger.
    from gpuledger.app.free_reading import read_devices

    return read_devices(values, request, choose=choose)


def release_devices(values: Mapping[str, Any], devices: Sequence[str], *, everybody: bool) -> list[str]:
    """End own reservations (`everybody`: of all users), of these devices or of all; return their UUIDs."""
    request = {"do": "free", "act": "release", "devices": list(devices), "everybody": everybody}
    return [str(one) for one in exchange(values, request)["released"]]
