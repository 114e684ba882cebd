"""What a running node does for the users of its machine: says who they are, and gives them free GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import environ
from typing import TYPE_CHECKING, Any

from gpuledger.app.control_socket import PRIVATE_MODE, SHARED_MODE
from gpuledger.app.readers import Peer, Readers
from gpuledger.app.user_requests import RequestHandler
from gpuledger.config.access import ALL, AccessSettings
from gpuledger.config.node import configured_node_name
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import open_users
from gpuledger.model.node_state import NodeState
from gpuledger.model.settings import build_settings
from gpuledger.model.source import Clock
from gpuledger.node.availability_board import AvailabilityBoard
from gpuledger.node.settings import NO_SOCKET, ControlSettings
from gpuledger.web.settings import WebSettings

if TYPE_CHECKING:
    from gpuledger.ledger.reservations import CommandProcess
    from gpuledger.ledger.store.store import Store


def open_readers(values: Mapping[str, Any]) -> Readers:
    """Who may read what, under these settings."""
    host = build_settings(HostSettings, values)
    users = open_users(host, values, environ)
    return Readers(build_settings(AccessSettings, values), users, host.procfs)


def socket_mode(values: Mapping[str, Any]) -> int:
    """The mode of the control socket: all users can connect if the settings give them rows to read."""
    return PRIVATE_MODE if build_settings(AccessSettings, values).mode == ALL else SHARED_MODE


def offers_devices(values: Mapping[str, Any]) -> bool:
    """Whether users can see which Devices can be taken: on the page, or over the control socket."""
    has_socket = build_settings(ControlSettings, values).socket != NO_SOCKET
    return has_socket or build_settings(WebSettings, values).page == "full"


def open_availability_board(
    procfs: ProcFs, user_name: Callable[[int], str], store: Store | None, clock: Clock
) -> AvailabilityBoard:
    """Which Devices can be taken, with the reservations that are stored beside the ledger on disk."""

    def runs(command: CommandProcess) -> bool:
        # Imported lazily: on most machines nobody reserves.
        from gpuledger.host.process_tree import ProcessTree

        return ProcessTree(procfs.root).running_since(command.pid) == command.ticks

    storage = None
    if store is not None and store.on_disk:
        from gpuledger.ledger.store.reservation_file import ReservationFile, reservation_path

        storage = ReservationFile(reservation_path(store.file), procfs.boot_id)
    return AvailabilityBoard(clock, user_name, runs, storage)


def free_handler(
    board: AvailabilityBoard,
    state: Callable[[], NodeState],
    readers: Callable[[], Readers],
    procfs: ProcFs,
    values: Mapping[str, Any],
) -> RequestHandler:
    """Answers `gpuledger free`; imported with the first request."""
    node = configured_node_name(values, environ)

    def answer(request: Mapping[str, Any], peer: Peer) -> Mapping[str, Any]:
        from gpuledger.app.free_requests import FreeRequests
        from gpuledger.host.process_tree import ProcessTree

        running_since = ProcessTree(procfs.root).running_since
        requests = FreeRequests(board, node, state, running_since, readers().reader_of_peer)
        return requests.answer(request, peer)

    return answer
