"""One Event for each pod that had GPUs and ended: within the API's limits, and never a second one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock, gpu, snapshot
from gpuledger.app.pod_events import EndingPod, PodEvents, build_event
from gpuledger.kubernetes.api_client import ApiServerRefused, ApiServerUnreachable
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.pods.pod import Pod, Pods
from receipt_helpers import BEGIN, receipt

UID = "0a1b-train"


class Node:
    """A node with pods on its GPUs, and an API server that refuses an object that exists."""

    def __init__(self, file: Path | None = None) -> None:
        self.clock = FakeClock(BEGIN)
        self.file = file
        self.on_gpus: dict[str, Workload] = {}
        self.pods: Pods | None = Pods()
        self.receipt: ReceiptJson | None = receipt(begins=BEGIN, ends=BEGIN + 600)
        self.posted: list[tuple[str, Any]] = []
        self.refusal: GpuledgerError | None = None
        # Of the Events of single pods, by name.
        self.refusals: dict[str, GpuledgerError] = {}
        self.snapshot_is_known = True
        self.start()

    def start(self) -> None:
        """Start the program again."""
        self.events = PodEvents(
            "node-1",
            self.snapshot,
            lambda: self.pods,
            lambda _: self.receipt,
            self.create,
            self.clock,
            self.file,
        )

    def snapshot(self) -> Snapshot | None:
        if not self.snapshot_is_known:
            return None
        allocations = tuple(Allocation(gpu(), owner) for owner in self.on_gpus.values())
        return replace(snapshot(), allocations=allocations)

    def create(self, path: str, body: Mapping[str, object]) -> None:
        if self.refusal is not None:
            raise self.refusal
        metadata: Any = body["metadata"]
        regarding: Any = body["regarding"]
        if regarding["name"] in self.refusals:
            raise self.refusals[regarding["name"]]
        if metadata["name"] in [one["metadata"]["name"] for _, one in self.posted]:
            raise ApiServerRefused("409", 409)
        self.posted.append((path, body))

    def begin(self, uid: str = UID, name: str = "train-0", **facts: str) -> None:
        self.on_gpus[uid] = Workload("pod", "ml", name, "main", pod_uid=uid, **facts)
        self.set_pods(Pod(uid, "ml", name, "Running", created=self.clock.unix()))

    def end(self, uid: str = UID) -> None:
        """The pod succeeds, and is kept in the API."""
        owner = self.on_gpus.pop(uid)
        self.set_pods(Pod(uid, "ml", owner.pod, "Succeeded", finished=True, created=BEGIN))

    def set_pods(self, *changed: Pod) -> None:
        others = [pod for pod in self.pods or () if pod.uid not in {one.uid for one in changed}]
        self.pods = Pods([*others, *changed])

    def delete(self, uid: str = UID) -> None:
        """The pod is removed from the API."""
        self.on_gpus.pop(uid, None)
        self.pods = Pods([pod for pod in self.pods or () if pod.uid != uid])

    def run(self, seconds: float) -> None:
        """Passes for this long, one in five seconds; a failed one is tried again."""
        for _ in range(int(seconds // 5)):
            with suppress(GpuledgerError):
                self.events.run_pass()
            self.clock.advance(5)

    def live(self, uid: str = UID, name: str = "train-0") -> None:
        """A pod that begins, runs for ten minutes and ends."""
        self.begin(uid, name)
        self.run(600)
        self.end(uid)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pod_that_ended_has_one_event(node: Node) -> None:
    node.live()
    node.run(120)
    ((path, event),) = node.posted
    assert path == "/apis/events.k8s.io/v1/namespaces/ml/events"
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ml",
        "name": "train-0",
        "uid": UID,
    }
    assert event["note"].startswith("Had 1 GPU (NVIDIA H100 80GB HBM3) for 10m: ")


def test_a_pod_that_was_deleted_has_one_too(node: Node) -> None:
    node.begin()
    node.run(600)
    node.delete()
    node.run(120)
    assert len(node.posted) == 1


def test_the_job_that_created_the_pod_is_related(node: Node) -> None:
    node.begin(controller_kind="Job", controller="train")
    node.run(600)
    node.end()
    node.run(60)
    ((_, event),) = node.posted
    assert event["related"] == {"apiVersion": "batch/v1", "kind": "Job", "namespace": "ml", "name": "train"}


def test_a_pod_that_still_runs_has_none(node: Node) -> None:
    """Its container restarts, or its device plugin does: the GPU is free for a while."""
    node.begin()
    node.run(600)
    owner = node.on_gpus.pop(UID)
    node.run(120)
    node.on_gpus[UID] = owner
    node.run(120)
    assert node.posted == []


def test_pods_that_cannot_be_listed_are_not_taken_for_ended(node: Node) -> None:
    node.begin()
    node.run(600)
    known, node.pods = node.pods, None
    owner = node.on_gpus.pop(UID)
    node.run(600)
    assert node.posted == []
    node.pods, node.on_gpus[UID] = known, owner
    node.run(60)
    assert node.posted == []


def test_without_a_reading_nothing_has_ended(node: Node) -> None:
    node.begin()
    node.run(600)
    node.snapshot_is_known = False
    node.end()
    node.run(600)
    assert node.posted == []
    node.snapshot_is_known = True
    node.run(60)
    assert len(node.posted) == 1


def test_the_last_readings_are_waited_for(node: Node) -> None:
    node.live()
    node.run(10)
    assert node.posted == []
    node.run(10)
    assert len(node.posted) == 1


@pytest.mark.parametrize("minutes", [1, 60, 24 * 60])
def test_a_restart_posts_no_second_event(tmp_path: Path, minutes: int) -> None:
    """Also when the API server has forgotten the first one: the finished pod is listed for days."""
    node = Node(tmp_path / "events.json")
    node.live()
    node.run(60)
    node.clock.advance(60 * minutes)
    node.posted.clear()
    node.on_gpus[UID] = Workload("pod", "ml", "train-0", "main", pod_uid=UID)
    node.start()
    # The kubelet still lists its devices when the pods are not read yet.
    node.run(20)
    node.on_gpus.clear()
    node.run(120)
    assert node.posted == []


def test_a_pod_that_ended_during_a_restart_has_its_event(tmp_path: Path) -> None:
    node = Node(tmp_path / "events.json")
    node.begin()
    node.run(600)
    node.delete()
    node.clock.advance(300)
    node.start()
    node.run(60)
    assert len(node.posted) == 1


def test_of_two_replicas_one_posts() -> None:
    """As while a DaemonSet is updated: the API server refuses the second."""
    node = Node()
    node.begin()
    other = PodEvents(
        "node-1", node.snapshot, lambda: node.pods, lambda _: node.receipt, node.create, node.clock
    )
    for _ in range(30):
        node.run(5)
        other.run_pass()
    node.end()
    for _ in range(10):
        node.run(5)
        other.run_pass()
    assert len(node.posted) == 1


def test_a_successor_of_the_same_name_has_its_own_event(node: Node) -> None:
    node.live("uid-1")
    node.run(60)
    node.delete("uid-1")
    node.receipt = receipt(begins=BEGIN, ends=BEGIN + 1300)
    node.live("uid-2")
    node.run(60)
    assert len({event["metadata"]["name"] for _, event in node.posted}) == 2


@pytest.mark.parametrize("early", [None, receipt(begins=BEGIN, ends=BEGIN + 600, running=True)])
def test_a_receipt_that_is_not_complete_yet_is_waited_for(node: Node, early: ReceiptJson | None) -> None:
    complete, node.receipt = node.receipt, early
    node.live()
    node.run(40)
    assert node.posted == []
    node.receipt = complete
    node.run(10)
    assert len(node.posted) == 1


def test_a_receipt_that_never_ends_is_posted_all_the_same(node: Node) -> None:
    node.receipt = receipt(begins=BEGIN, ends=BEGIN + 600, running=True)
    node.live()
    node.run(90)
    assert len(node.posted) == 1


def test_a_pod_of_less_than_a_minute_has_none(node: Node) -> None:
    node.receipt = receipt(begins=BEGIN, ends=BEGIN + 59)
    node.live()
    node.run(60)
    assert node.posted == []


def test_a_pod_that_the_ledger_does_not_have_has_none(node: Node) -> None:
    node.receipt = None
    node.live()
    node.run(90)
    node.receipt = receipt(begins=BEGIN, ends=BEGIN + 600)
    node.run(60)
    assert node.posted == []


RETRIED = {
    "unreachable": ApiServerUnreachable("cannot be reached"),
    "an error of the server": ApiServerRefused("500", 500),
    "too many requests": ApiServerRefused("429", 429, 5.0),
    "no permission yet": ApiServerRefused("403", 403, message='User "x" cannot create resource "events"'),
}


@pytest.mark.parametrize("refusal", RETRIED.values(), ids=RETRIED)
def test_what_can_be_repaired_is_tried_again(node: Node, refusal: GpuledgerError) -> None:
    node.refusal = refusal
    node.live()
    node.run(300)
    node.refusal = None
    node.run(60)
    assert len(node.posted) == 1


OF_ONE = {
    "a quota": ApiServerRefused("403", 403, message="exceeded quota: events"),
    "a webhook that fails": ApiServerRefused("500", 500, message="failed calling webhook"),
    "no permission there": RETRIED["no permission yet"],
}


@pytest.mark.parametrize("refusal", OF_ONE.values(), ids=OF_ONE)
@pytest.mark.parametrize("refused", range(3))
def test_a_refusal_for_one_pod_delays_no_other(node: Node, refusal: GpuledgerError, refused: int) -> None:
    names = [f"train-{number}" for number in range(3)]
    node.refusals = {names[refused]: refusal}
    for name in names:
        node.begin(name, name)
    node.run(600)
    for name in names:
        node.end(name)
    node.run(60)
    assert {event["regarding"]["name"] for _, event in node.posted} == {*names} - {names[refused]}
    node.refusals = {}
    node.run(60)
    assert len(node.posted) == 3


def test_a_failure_is_reported(node: Node) -> None:
    node.live()
    node.run(10)
    node.refusal = ApiServerUnreachable("https://api cannot be reached")
    with pytest.raises(GpuledgerError, match="cannot be reached"):
        node.events.run_pass()


def test_after_an_hour_it_is_no_news(node: Node) -> None:
    node.refusal = ApiServerUnreachable("cannot be reached")
    node.live()
    node.run(3700)
    node.refusal = None
    node.run(60)
    assert node.posted == []


FINAL = {
    "the namespace is being deleted": ApiServerRefused(
        "403", 403, message="unable to create new content in namespace ml because it is being terminated"
    ),
    "the namespace is gone": ApiServerRefused("404", 404),
    "it is invalid": ApiServerRefused("422", 422),
    "another posted it": ApiServerRefused("409", 409),
}


@pytest.mark.parametrize("refusal", FINAL.values(), ids=FINAL)
def test_what_cannot_succeed_is_not_tried_again(node: Node, refusal: GpuledgerError) -> None:
    node.refusal = refusal
    node.live()
    node.run(60)
    node.refusal = None
    node.run(300)
    assert node.posted == []


def test_a_hundred_pods_at_once_do_not_flood_the_server(node: Node) -> None:
    for number in range(100):
        node.begin(f"uid-{number}", f"train-{number}")
    node.run(600)
    for number in range(100):
        node.end(f"uid-{number}")
    node.run(20)
    assert len(node.posted) <= 27
    node.run(1200)
    assert len(node.posted) == 100


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "followed": {"a": {}}, "done": {}}', "1"])
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "events.json"
    file.write_text(text)
    node = Node(file)
    node.live()
    node.run(60)
    assert len(node.posted) == 1
    assert json.loads(file.read_text())["version"] == 1


def test_a_file_that_cannot_be_written_costs_no_event(tmp_path: Path) -> None:
    node = Node(tmp_path / "missing" / "events.json")
    node.live()
    node.run(60)
    assert len(node.posted) == 1


def test_the_file_does_not_grow(tmp_path: Path) -> None:
    node = Node(tmp_path / "events.json")
    node.live()
    node.run(60)
    node.delete()
    node.clock.advance(8 * 86_400)
    node.run(10)
    assert json.loads((tmp_path / "events.json").read_text())["done"] == {}


words = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True)
names = st.lists(words, min_size=1, max_size=8).map(".".join).filter(lambda name: len(name) <= 253)


@given(names, st.text(max_size=200), st.lists(st.text(max_size=500), max_size=5))
def test_every_event_is_within_the_limits_of_the_api(name: str, node: str, advice: list[str]) -> None:
    """pkg/apis/core/validation/events.go of Kubernetes."""
    texts = [
        {"rule": "", "text": text, "evidence": [], "gpus": [], "values": {}, "saving": None}
        for text in advice
    ]
    pod = EndingPod("ml", name, BEGIN)
    event = build_event("uid", pod, receipt(advice=texts), node, BEGIN)
    assert len(event["note"].encode()) <= 1024
    assert 1 <= len(event["reportingInstance"]) <= 128
    assert all(1 <= len(event[key]) <= 128 for key in ("reason", "action"))
    made = event["metadata"]["name"]
    assert len(made) <= 253
    assert all(part and part[0].isalnum() and part[-1].isalnum() for part in made.split("."))
