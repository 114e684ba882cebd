"""The applier writes the desired objects with as few requests as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.kubernetes.object_client import ApiRequest, ObjectClient, WriteRefused
from gpuledger.operator.apply import Applier, ApplyOutcome, ObjectRejected
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.kinds import MANAGED_BY, MONITOR, MONITOR_KIND
from gpuledger.operator.managed_objects import ManagedObjects
from operator_api import MemoryApi

Json = dict[str, Any]
MAIN = {
    "apiVersion": "gpuledger.dev/v1alpha1",
    "kind": "GpuMonitor",
    "metadata": {"name": "main", "uid": "m-1"},
}
PLACE = "/api/v1/namespaces/n"


def made(kind: str, name: str, uid: str = "m-1", **content: Any) -> Json:
    owner = {"apiVersion": MAIN["apiVersion"], "kind": "GpuMonitor", "name": "main", "uid": uid}
    labels = {MANAGED_BY: FIELD_MANAGER, MONITOR: "main", MONITOR_KIND: "GpuMonitor"}
    metadata = {"name": name, "namespace": "n", "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **content}


ACCOUNT = made("ServiceAccount", "a")
CONFIG = made("ConfigMap", "c", data={"k": "1"})


class Bench:
    """An applier and the server that it writes to."""

    def __init__(self, server: MemoryApi | None = None) -> None:
        self.server = server or MemoryApi()
        self.owned = ManagedObjects()
        self.applier = Applier(ObjectClient(self.server), self.owned, ["n"], OperatorCounts())

    def converge(self, *wanted: Json, seeds: Sequence[Json] = ()) -> ApplyOutcome:
        return asyncio.run(self.applier.converge("m-1", wanted, seeds))

    def delete_all_of(self) -> int:
        return asyncio.run(self.applier.delete_all_of(MAIN))

    def writes(self) -> list[str]:
        """The writes since the last call."""
        found = self.server.writes
        self.server.requests.clear()
        return found


def test_objects_are_created_in_the_given_order() -> None:
    bench = Bench()
    outcome = bench.converge(ACCOUNT, CONFIG)
    assert bench.writes() == [f"PATCH {PLACE}/serviceaccounts/a", f"PATCH {PLACE}/configmaps/c"]
    assert [key.name for key in outcome.changed] == ["a", "c"]


def test_unchanged_objects_need_no_request() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    assert bench.converge(ACCOUNT, CONFIG) == ApplyOutcome()
    assert bench.server.requests == []


def test_only_changed_objects_are_written() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    bench.converge(ACCOUNT, made("ConfigMap", "c", data={"k": "2"}))
    assert bench.writes() == [f"PATCH {PLACE}/configmaps/c"]


def test_unneeded_objects_are_deleted_last() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    outcome = bench.converge(ACCOUNT, made("ConfigMap", "other"))
    assert bench.writes() == [f"PATCH {PLACE}/configmaps/other", f"DELETE {PLACE}/configmaps/c"]
    assert [key.name for key in outcome.pruned] == ["c"]


def test_a_refused_object_prevents_all_changes() -> None:
    bench = Bench(MemoryApi(lambda body: "no such value" if (body.get("data") or {}).get("k") == "x" else ""))
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    with pytest.raises(ObjectRejected, match=r"ConfigMap n/c is refused .*no such value"):
        bench.converge(made("ServiceAccount", "new"), made("ConfigMap", "c", data={"k": "x"}))
    assert bench.writes() == []


def test_a_manual_change_is_repaired_without_a_dry_run() -> None:
    bench = Bench()
    bench.converge(CONFIG)
    edited = {**bench.server.objects[f"{PLACE}/configmaps/c"], "data": {"k": "mine"}}
    bench.server.put_object(f"{PLACE}/configmaps/c", edited)
    bench.owned.record_object(bench.server.objects[f"{PLACE}/configmaps/c"])
    bench.writes()
    outcome = bench.converge(CONFIG)
    assert [key.name for key in outcome.repaired] == ["c"]
    assert len(bench.server.requests) == 1
    assert bench.server.objects[f"{PLACE}/configmaps/c"]["data"] == {"k": "1"}


def test_an_object_of_another_client_is_not_taken_over() -> None:
    bench = Bench()
    theirs = {**CONFIG, "metadata": {"name": "c", "namespace": "n"}}
    bench.server.put_object(f"{PLACE}/configmaps/c", theirs)
    with pytest.raises(ObjectRejected, match="already exists"):
        bench.converge(CONFIG)
    assert bench.writes() == []


def test_an_object_of_another_monitor_is_not_taken_over() -> None:
    bench = Bench()
    bench.server.put_object(f"{PLACE}/configmaps/c", made("ConfigMap", "c", uid="m-0"))
    with pytest.raises(ObjectRejected, match="already exists"):
        bench.converge(CONFIG)


@pytest.mark.parametrize("lost", ["labels", "ownerReferences"])
def test_an_object_that_lost_its_labels_or_owner_is_still_ours(lost: str) -> None:
    bench = Bench()
    bare = made("ConfigMap", "c")
    bare["metadata"][lost] = {} if lost == "labels" else []
    bench.server.put_object(f"{PLACE}/configmaps/c", bare)
    bench.converge(CONFIG)
    assert bench.server.objects[f"{PLACE}/configmaps/c"]["metadata"][lost] == CONFIG["metadata"][lost]


def test_a_seed_is_created_once_and_never_changed() -> None:
    bench = Bench()
    bench.converge(seeds=[CONFIG])
    edited = {**bench.server.objects[f"{PLACE}/configmaps/c"], "data": {"k": "mine"}}
    bench.server.put_object(f"{PLACE}/configmaps/c", edited)
    bench.owned.record_object(bench.server.objects[f"{PLACE}/configmaps/c"])
    bench.writes()
    assert bench.converge(seeds=[CONFIG]) == ApplyOutcome()
    assert bench.server.requests == []


def test_a_seed_that_another_client_created_is_not_changed() -> None:
    bench = Bench()
    theirs = {**CONFIG, "metadata": {"name": "c", "namespace": "n"}}
    bench.server.put_object(f"{PLACE}/configmaps/c", theirs)
    assert bench.converge(seeds=[CONFIG]) == ApplyOutcome()
    bench.server.requests.clear()
    assert bench.converge(seeds=[CONFIG]) == ApplyOutcome()
    assert bench.server.requests == [], "the existing object is looked up only once"


class Immutable(MemoryApi):
    """A server that refuses changes of an object's data."""

    def _patch(self, request: Any, body: Json) -> tuple[int, Json]:
        there = self.objects.get(request.path)
        if there and there.get("data") != body.get("data"):
            return 422, {"reason": "Invalid", "message": "field is immutable"}
        return super()._patch(request, body)


def test_an_object_with_a_changed_immutable_field_is_recreated() -> None:
    bench = Bench(Immutable())
    bench.converge(CONFIG)
    uid = bench.server.objects[f"{PLACE}/configmaps/c"]["metadata"]["uid"]
    bench.writes()
    bench.converge(made("ConfigMap", "c", data={"k": "2"}))
    assert bench.writes() == [f"DELETE {PLACE}/configmaps/c", f"PATCH {PLACE}/configmaps/c"]
    recreated = bench.server.objects[f"{PLACE}/configmaps/c"]
    assert recreated["data"] == {"k": "2"}
    assert recreated["metadata"]["uid"] != uid


def test_deletion_removes_all_objects_of_one_monitor_only() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.server.put_object(f"{PLACE}/configmaps/other", made("ConfigMap", "other", uid="m-2"))
    # Created by an earlier operator process: this one does not know the object.
    bench.server.put_object(f"{PLACE}/services/s", made("Service", "s"))
    assert bench.delete_all_of() == 3
    assert list(bench.server.objects) == [f"{PLACE}/configmaps/other"]


POLICY = 'admission webhook "policy.example.com" denied the request: hostPID is not allowed'
RIGHTS = (
    'configmaps "c" is forbidden: User "operator" cannot patch resource "configmaps" in the namespace "n"'
)


class Guarded(MemoryApi):
    """A server with a webhook or authorizer that refuses every change of a ConfigMap."""

    def __init__(self, status: int, message: str, *, dry_alone: bool = False) -> None:
        super().__init__()
        self._answer = (status, {"kind": "Status", "reason": "Forbidden", "message": message})
        self._dry_alone = dry_alone

    def _patch(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        guarded = "dryRun" in request.query or not self._dry_alone
        if guarded and "/configmaps/" in request.path:
            return self._answer
        return super()._patch(request, body)


@pytest.mark.parametrize("status", [400, 403])
def test_an_object_that_a_policy_denies_is_rejected_before_any_change(status: int) -> None:
    bench = Bench(Guarded(status, POLICY))
    with pytest.raises(ObjectRejected, match="hostPID is not allowed") as refused:
        bench.converge(ACCOUNT, CONFIG)
    assert "reinstall the chart" not in str(refused.value)
    assert bench.writes() == []


def test_missing_permissions_of_the_operator_are_not_blamed_on_the_resource() -> None:
    bench = Bench(Guarded(403, RIGHTS))
    with pytest.raises(
        WriteRefused, match="reinstall the chart, which contains the operator's ClusterRole and Roles"
    ):
        bench.converge(ACCOUNT, CONFIG)


def test_objects_are_applied_if_a_webhook_does_not_support_dry_run() -> None:
    """Before Kubernetes 1.22, webhooks may lack support for dry runs."""
    message = 'admission webhook "old.example.com" does not support dry run'
    bench = Bench(Guarded(400, message, dry_alone=True))
    bench.converge(ACCOUNT, CONFIG)
    assert bench.writes() == [f"PATCH {PLACE}/serviceaccounts/a", f"PATCH {PLACE}/configmaps/c"]
