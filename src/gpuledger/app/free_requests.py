"""The request `free` of the control socket: which GPUs can be taken, and reservations of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from gpuledger.app.readers import Peer
from gpuledger.ledger.device_choice import (
    MIG_CHOICES,
    DeviceWish,
    NotEnoughDevices,
    misfit,
)
from gpuledger.ledger.reservations import CommandProcess
from gpuledger.model.access import Reader
from gpuledger.model.availability import DEFAULT_WINDOW, Availability, Candidate
from gpuledger.model.devices import Device, Instance
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import NodeState
from gpuledger.model.text import format_duration
from gpuledger.web.api.availability_json import availability_fields

if TYPE_CHECKING:
    from gpuledger.node.availability_board import AvailabilityBoard

log = logging.getLogger("gpuledger.free")

VERSION: Final = 1
# Seconds. A reservation that its user forgets must not keep a GPU from others for days.
LONGEST_RESERVATION: Final = 12 * 3600.0
_LONGEST_WINDOW: Final = 3600.0
_MOST_DEVICES: Final = 1024
# Characters. The time to read a pattern grows with the square of its length.
_LONGEST_MODEL: Final = 100
# Schedulers that hand out the GPUs of a machine, by the name of their owner index.
_SCHEDULERS: Final = {"pod_resources": "a kubelet", "slurm": "slurmd", "job_map": "a batch system"}
# Kinds of owners to whom only a scheduler allocates.
_SCHEDULED: Final = {"pod": "a kubelet", "slurm": "slurmd", "job": "a batch system"}


class FreeRequests:
    """Answers requests of users. Its methods are called by several threads at once.

    `state` returns the newest state of the node; `start_ticks` the start of a running process, None if it
    cannot be seen. `reader_of` says who a peer is, and raises GpuledgerError if that is not known: only who
    may read all rows sees the names of other users, and ends their reservations.
    """

    def __init__(
        self,
        board: AvailabilityBoard,
        node: str,
        state: Callable[[], NodeState],
        start_ticks: Callable[[int], int | None],
        reader_of: Callable[[Peer], Reader],
    ) -> None:
        self._board = board
        self._node = node
        self._state = state
        self._start_ticks = start_ticks
        self._reader_of = reader_of

    def answer(self, request: Mapping[str, Any], peer: Peer) -> Mapping[str, Any]:
        """The answer to a request; raises GpuledgerError for one that is refused or malformed.

        The key `act` is `list` (the default), `take` or `release`.
        """
        act, sees_all = str(request.get("act", "list")), self._reader_of(peer).reads_all
        if act == "release":
            return self._release(request, peer, sees_all=sees_all)
        if act not in ("list", "take"):
            raise GpuledgerError(f"unknown request '{act}': the running gpuledger may be another version")
        state = self._state()
        if state.snapshot is None:
            raise GpuledgerError(f"which GPUs are free is not known: {state.health.status}")
        scheduler = find_scheduler(state)
        if scheduler and not request.get("anyway"):
            raise GpuledgerError(refusal(scheduler))
        wish, refused = parse_wish(request), ""
        if act == "list":
            found = [one for one in self._board.candidates(wish.window) if not misfit(one, wish)]
        else:
            try:
                found = self._take(wish, request, peer)
            except NotEnoughDevices as error:
                # No failure of the program: with --wait the client tries again.
                found, refused = [], str(error)
        body = availability_json(self._node, state.unix, found, viewer=peer.uid, shows_names=sees_all)
        return {**body, "refused": refused} if refused else body

    def _take(self, wish: DeviceWish, request: Mapping[str, Any], peer: Peer) -> list[Candidate]:
        command, seconds = None, _number(request, "seconds", LONGEST_RESERVATION)
        if request.get("hold"):
            command = self._command_of(peer)
        elif not seconds > 0:
            raise GpuledgerError("a reservation takes some time: --reserve 5m")
        taken = self._board.take(wish, peer.uid, seconds, command)
        lasting = "until its command ends" if command is not None else f"for {format_duration(seconds)}"
        for one in taken:
            # A user can make many of them: not a line of the log for each.
            log.debug("GPU %s is reserved for uid %d %s", device_name(one.device), peer.uid, lasting)
        return taken

    def _command_of(self, peer: Peer) -> CommandProcess:
        ticks = self._start_ticks(peer.pid) if peer.pid > 0 else None
        if ticks is None:
            raise GpuledgerError(
                "the running gpuledger cannot see this process, so it would not know when the command ends "
                "(another PID namespace, or hidepid): use `gpuledger free --env --reserve 1h`, or start it "
                "in the PID namespace of the host"
            )
        return CommandProcess(peer.pid, ticks)

    def _release(self, request: Mapping[str, Any], peer: Peer, *, sees_all: bool) -> Mapping[str, Any]:
        given, everybody = request.get("devices", ()), bool(request.get("everybody"))
        devices = [str(one) for one in given] if isinstance(given, list) else []
        if everybody and not sees_all:
            raise GpuledgerError("only an administrator ends the reservations of other users")
        found = self._board.release(None if everybody else peer.uid, devices)
        return {"version": VERSION, "released": [one.device for one in found]}


def parse_wish(request: Mapping[str, Any]) -> DeviceWish:
    """The wish of a request. Raises GpuledgerError."""
    mig = str(request.get("mig", MIG_CHOICES[0]))
    if mig not in MIG_CHOICES:
        raise GpuledgerError(f"unknown kind of GPU '{mig}'; valid: {', '.join(MIG_CHOICES)}")
    model = str(request.get("model", ""))
    if len(model) > _LONGEST_MODEL:
        raise GpuledgerError(f"--model can have {_LONGEST_MODEL} characters at most")
    return DeviceWish(
        max(1, int(_number(request, "count", _MOST_DEVICES, 1))),
        int(_number(request, "memory", 1 << 60, 0)),
        model,
        mig,
        bool(request.get("display")),
        _number(request, "window", _LONGEST_WINDOW, DEFAULT_WINDOW),
    )


def _number(request: Mapping[str, Any], key: str, highest: float, default: float = 0.0) -> float:
    try:
        found = float(request.get(key, default))
    except (TypeError, ValueError, OverflowError):
        raise GpuledgerError(f"malformed request: {key} is not a number") from None
    if not isfinite(found) or not 0 <= found <= highest:
        what = {"seconds": "a reservation can last", "window": "--for can be"}.get(key, f"{key} can be")
        limit = format_duration(highest) if key in ("seconds", "window") else f"{highest:g}"
        raise GpuledgerError(f"{what} {limit} at most")
    return found


def find_scheduler(state: NodeState) -> str:
    """What hands out the GPUs of the node: a kubelet, slurmd or another batch system; empty for nothing."""
    for index in state.health.owner_indexes:
        if index.name in _SCHEDULERS:
            return _SCHEDULERS[index.name]
    allocations = state.snapshot.allocations if state.snapshot is not None else ()
    kinds = (one.workload.kind for one in allocations)
    return next((_SCHEDULED[kind] for kind in kinds if kind in _SCHEDULED), "")


def refusal(scheduler: str) -> str:
    """Why a scheduler's GPUs are not offered."""
    return (
        f"{scheduler} hands out the GPUs of this machine: ask for one there (kubectl, sbatch, srun); a GPU "
        "that is free now can be allocated in the next moment. To look or take one all the same: --anyway"
    )


def device_name(device: Device) -> str:
    """A Device for people: the index of the GPU, with `GI_CI` of an Instance."""
    instance = f"/{device.instance}" if device.instance else ""
    return f"{device.gpu.index}{instance}"


def availability_json(
    node: str,
    unix: float,
    candidates: Iterable[Candidate],
    *,
    viewer: int | None = None,
    shows_names: bool = True,
    has_reservations: bool = True,
) -> dict[str, Any]:
    """The JSON of Devices for the user `viewer`; without `shows_names`, other users have no name in it."""
    return {
        "version": VERSION,
        "node": node,
        "unix": unix,
        "reservations": has_reservations,
        "devices": [
            _device_json(one.device, one.availability, viewer, shows_names=shows_names) for one in candidates
        ],
    }


def _device_json(
    device: Device, found: Availability, viewer: int | None, *, shows_names: bool
) -> dict[str, Any]:
    is_mine = viewer is not None and found.reserved_uid == viewer
    return {
        "uuid": device.gpu.uuid,
        "gpu": str(device.gpu.index),
        "instance": device.instance,
        "device_uuid": device.uuid,
        "vendor": device.gpu.vendor,
        "name": device.gpu.name,
        "profile": device.profile if isinstance(device, Instance) else "",
        "memory_total_bytes": found.memory_total,
        **availability_fields(found),
        "reserved_by": found.reserved_by if is_mine or shows_names else "",
        "is_mine": is_mine,
    }
