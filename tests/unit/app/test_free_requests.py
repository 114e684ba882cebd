"""Requests of users over the socket: what each one sees, gets and is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from builders import GIB, MIB, FakeClock, gpu, node_state, process, reading, snapshot
from gpuledger.app.free_requests import FreeRequests, find_scheduler
from gpuledger.app.readers import Peer
from gpuledger.model import quantities as q
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import Health, IndexHealth, NodeState
from gpuledger.model.workload import Allocation, Workload
from gpuledger.node.availability_board import AvailabilityBoard

GPUS = [gpu(index, name="NVIDIA L4") for index in range(3)]
EMPTY = {
    q.UTILIZATION: 0.0,
    q.MEMORY_TOTAL: 24.0 * GIB,
    q.MEMORY_USED: 1.0 * MIB,
    q.MEMORY_RESERVED: 1.0 * MIB,
}
ROOT, ANN, BOB = Peer(0, 0, 10), Peer(1000, 1000, 11), Peer(1001, 1001, 12)
NAMES = {0: "root", 1000: "ann", 1001: "bob"}


def reader_of(peer: Peer) -> Reader:
    if peer.uid == 0:
        return EVERYTHING
    return Reader(NAMES[peer.uid], frozenset({NAMES[peer.uid]}), peer.uid)


class Node:
    """A node with three GPUs, the last of which is in use, and its requests."""

    def __init__(self) -> None:
        self.board = AvailabilityBoard(FakeClock(), lambda uid: NAMES[uid], lambda _: True)
        readings = [reading(one, values=EMPTY) for one in GPUS[:2]]
        busy = replace(process(GPUS[2]), workload=Workload("user", user="carol"))
        self.state = node_state(snapshot(*readings, reading(GPUS[2], busy, values=EMPTY)))
        self.requests = FreeRequests(
            self.board, "lab-1", lambda: self.state, lambda pid: 5000 if pid == 11 else None, reader_of
        )
        self.tick()

    def tick(self) -> None:
        self.state = self.board.update(self.state)

    def ask(self, peer: Peer, act: str = "list", **request: object) -> Mapping[str, Any]:
        return self.requests.answer({"do": "free", "act": act, "window": 0, **request}, peer)


@pytest.fixture
def node() -> Node:
    return Node()


def states(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["availability"], one["reserved_by"]) for one in body["devices"]]


def test_everybody_sees_which_gpus_are_free_and_nobody_sees_who_has_the_others(node: Node) -> None:
    body = node.ask(ANN)
    assert states(body) == [("free", ""), ("free", ""), ("in_use", "")]
    assert body["devices"][2]["availability_reason"] == "it has processes"
    assert "carol" not in str(body)
    assert body["node"] == "lab-1"


def test_users_see_their_own_reservations_with_a_name(node: Node) -> None:
    node.ask(ANN, "take", seconds=60)
    node.tick()
    mine, theirs, administrators = (node.ask(peer)["devices"][0] for peer in (ANN, BOB, ROOT))
    assert (mine["reserved_by"], mine["is_mine"]) == ("ann", True)
    assert (theirs["reserved_by"], theirs["is_mine"]) == ("", False)
    assert (administrators["reserved_by"], administrators["is_mine"]) == ("ann", False)
    assert theirs["reserved_until"] == mine["reserved_until"] is not None
    assert "ann" not in str(node.ask(BOB))


def test_taking_returns_the_devices(node: Node) -> None:
    body = node.ask(ANN, "take", seconds=60, count=2)
    assert [one["device_uuid"] for one in body["devices"]] == ["GPU-0", "GPU-1"]
    assert "refused" not in body


def test_too_few_is_no_error_but_a_refusal(node: Node) -> None:
    body = node.ask(ANN, "take", seconds=60, count=3)
    assert body["refused"] == "2 of 3 GPUs can be taken: 1 in use"
    assert body["devices"] == []


def test_a_command_is_the_process_that_connected(node: Node) -> None:
    node.ask(ANN, "take", hold=True)
    (one,) = node.board.release(ANN.uid)
    assert (one.command, one.ends) == ((11, 5000), None)


@pytest.mark.parametrize("pid", [0, 12])
def test_a_command_that_cannot_be_seen_is_refused(node: Node, pid: int) -> None:
    with pytest.raises(GpuledgerError, match="cannot see this process"):
        node.ask(BOB._replace(pid=pid), "take", hold=True)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"act": "steal"}, "unknown request 'steal'"),
        ({"act": "take"}, "a reservation takes some time"),
        ({"act": "take", "seconds": 13 * 3600}, "a reservation can last 12h at most"),
        ({"act": "take", "seconds": "soon"}, "seconds is not a number"),
        ({"act": "take", "seconds": float("inf")}, "a reservation can last 12h at most"),
        ({"act": "list", "window": -1}, "--for can be 1h at most"),
        ({"act": "list", "mig": "some"}, "unknown kind of GPU 'some'; valid: any, only, never"),
        ({"act": "list", "memory": [1]}, "memory is not a number"),
        ({"act": "take", "seconds": 9, "model": "[" * 60_000}, "--model can have 100 characters at most"),
    ],
)
def test_malformed_requests(node: Node, request_: dict[str, object], message: str) -> None:
    with pytest.raises(GpuledgerError, match=message):
        node.ask(ANN, **request_)  # type: ignore[arg-type]


class TestRelease:
    """Users end their own reservations, administrators all."""

    def test_of_another_user(self, node: Node) -> None:
        node.ask(ANN, "take", seconds=60)
        assert node.ask(BOB, "release")["released"] == []
        assert node.ask(BOB, "release", devices=["GPU-0"])["released"] == []
        with pytest.raises(GpuledgerError, match="only an administrator"):
            node.ask(BOB, "release", everybody=True)
        assert node.ask(ROOT, "release")["released"] == []
        assert node.ask(ROOT, "release", everybody=True)["released"] == ["GPU-0"]

    def test_of_ones_own(self, node: Node) -> None:
        node.ask(ANN, "take", seconds=60, count=2)
        assert node.ask(ANN, "release", devices=["GPU-1"])["released"] == ["GPU-1"]
        assert node.ask(ANN, "release")["released"] == ["GPU-0"]


def allocated(state: NodeState, kind: str) -> NodeState:
    assert state.snapshot is not None
    given = (Allocation(GPUS[0], Workload(kind, job="7", pod="p")),)
    return replace(state, snapshot=replace(state.snapshot, allocations=given))


def indexed(state: NodeState, name: str) -> NodeState:
    return replace(state, health=Health(owner_indexes=(IndexHealth(name, success=False),)))


class TestSchedulers:
    """Where a scheduler decides, a free GPU would be a way around its queue."""

    def test_how_one_is_found(self, node: Node) -> None:
        assert find_scheduler(node.state) == ""
        assert find_scheduler(indexed(node.state, "docker")) == ""
        assert find_scheduler(indexed(node.state, "pod_resources")) == "a kubelet"
        assert find_scheduler(indexed(node.state, "slurm")) == "slurmd"
        assert find_scheduler(allocated(node.state, "slurm")) == "slurmd"
        assert find_scheduler(allocated(node.state, "pod")) == "a kubelet"

    @pytest.mark.parametrize("act", ["list", "take"])
    def test_it_refuses_and_names_the_way_around(self, node: Node, act: str) -> None:
        node.state = indexed(node.state, "slurm")
        with pytest.raises(GpuledgerError, match=r"slurmd hands out the GPUs .* --anyway"):
            node.ask(ANN, act, seconds=60)
        assert node.ask(ANN, act, seconds=60, anyway=True)["devices"]


def test_while_the_driver_cannot_be_read_the_reason_is_the_answer(node: Node) -> None:
    node.state = node_state(None, health=Health(status="paused until 12:00"))
    with pytest.raises(GpuledgerError, match="which GPUs are free is not known: paused until 12:00"):
        node.ask(ANN)
