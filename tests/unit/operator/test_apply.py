"""What is wanted becomes what is, by as few writes as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gpuledger.kubernetes.access import MANAGER
from gpuledger.kubernetes.writing import Api, Question, Refused
from gpuledger.operator.apply import Applier, Outcome, Rejected
from gpuledger.operator.counts import Counts
from gpuledger.operator.kinds import MANAGED_BY, MONITOR, MONITOR_KIND
from gpuledger.operator.owned import Owned
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
    labels = {MANAGED_BY: MANAGER, MONITOR: "main", MONITOR_KIND: "GpuMonitor"}
    metadata = {"name": name, "namespace": "n", "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **content}


ACCOUNT = made("ServiceAccount", "a")
CONFIG = made("ConfigMap", "c", data={"k": "1"})


class Bench:
    """An applier, and the server that it writes to."""

    def __init__(self, server: MemoryApi | None = None) -> None:
        self.server = server or MemoryApi()
        self.owned = Owned()
        self.applier = Applier(Api(self.server), self.owned, ["n"], Counts())

    def converge(self, *wanted: Json, seeds: Sequence[Json] = ()) -> Outcome:
        return asyncio.run(self.applier.converge("m-1", wanted, seeds))

    def clean(self) -> int:
        return asyncio.run(self.applier.clean(MAIN))

    def writes(self) -> list[str]:
        """Since they were asked for last."""
        found = self.server.writes
        self.server.asked.clear()
        return found


def test_all_is_made_in_the_order_given() -> None:
    bench = Bench()
    outcome = bench.converge(ACCOUNT, CONFIG)
    assert bench.writes() == [f"PATCH {PLACE}/serviceaccounts/a", f"PATCH {PLACE}/configmaps/c"]
    assert [key.name for key in outcome.changed] == ["a", "c"]


def test_nothing_is_asked_where_nothing_changed() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    assert bench.converge(ACCOUNT, CONFIG) == Outcome()
    assert bench.server.asked == []


def test_only_what_changed_is_written() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    bench.converge(ACCOUNT, made("ConfigMap", "c", data={"k": "2"}))
    assert bench.writes() == [f"PATCH {PLACE}/configmaps/c"]


def test_what_is_not_wanted_any_more_goes_last() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    outcome = bench.converge(ACCOUNT, made("ConfigMap", "other"))
    assert bench.writes() == [f"PATCH {PLACE}/configmaps/other", f"DELETE {PLACE}/configmaps/c"]
    assert [key.name for key in outcome.pruned] == ["c"]


def test_what_is_refused_changes_nothing_at_all() -> None:
    bench = Bench(MemoryApi(lambda body: "no such value" if (body.get("data") or {}).get("k") == "x" else ""))
    bench.converge(ACCOUNT, CONFIG)
    bench.writes()
    with pytest.raises(Rejected, match=r"ConfigMap n/c is refused .*no such value"):
        bench.converge(made("ServiceAccount", "new"), made("ConfigMap", "c", data={"k": "x"}))
    assert bench.writes() == []


def test_a_hand_is_a_repair_which_was_tried_before() -> None:
    bench = Bench()
    bench.converge(CONFIG)
    edited = {**bench.server.objects[f"{PLACE}/configmaps/c"], "data": {"k": "mine"}}
    bench.server.keep(f"{PLACE}/configmaps/c", edited)
    bench.owned.take(bench.server.objects[f"{PLACE}/configmaps/c"])
    bench.writes()
    outcome = bench.converge(CONFIG)
    assert [key.name for key in outcome.repaired] == ["c"]
    assert len(bench.server.asked) == 1
    assert bench.server.objects[f"{PLACE}/configmaps/c"]["data"] == {"k": "1"}


def test_what_somebody_else_has_made_is_not_taken() -> None:
    bench = Bench()
    theirs = {**CONFIG, "metadata": {"name": "c", "namespace": "n"}}
    bench.server.keep(f"{PLACE}/configmaps/c", theirs)
    with pytest.raises(Rejected, match="is there already"):
        bench.converge(CONFIG)
    assert bench.writes() == []


def test_what_another_monitor_has_made_is_not_taken() -> None:
    bench = Bench()
    bench.server.keep(f"{PLACE}/configmaps/c", made("ConfigMap", "c", uid="m-0"))
    with pytest.raises(Rejected, match="is there already"):
        bench.converge(CONFIG)


@pytest.mark.parametrize("lost", ["labels", "ownerReferences"])
def test_what_a_hand_took_one_sign_from_is_ours_still(lost: str) -> None:
    bench = Bench()
    bare = made("ConfigMap", "c")
    bare["metadata"][lost] = {} if lost == "labels" else []
    bench.server.keep(f"{PLACE}/configmaps/c", bare)
    bench.converge(CONFIG)
    assert bench.server.objects[f"{PLACE}/configmaps/c"]["metadata"][lost] == CONFIG["metadata"][lost]


def test_a_seed_is_made_once_and_left_alone() -> None:
    bench = Bench()
    bench.converge(seeds=[CONFIG])
    edited = {**bench.server.objects[f"{PLACE}/configmaps/c"], "data": {"k": "mine"}}
    bench.server.keep(f"{PLACE}/configmaps/c", edited)
    bench.owned.take(bench.server.objects[f"{PLACE}/configmaps/c"])
    bench.writes()
    assert bench.converge(seeds=[CONFIG]) == Outcome()
    assert bench.server.asked == []


def test_a_seed_that_somebody_else_has_made_is_theirs() -> None:
    bench = Bench()
    theirs = {**CONFIG, "metadata": {"name": "c", "namespace": "n"}}
    bench.server.keep(f"{PLACE}/configmaps/c", theirs)
    assert bench.converge(seeds=[CONFIG]) == Outcome()
    bench.server.asked.clear()
    assert bench.converge(seeds=[CONFIG]) == Outcome()
    assert bench.server.asked == [], "asked once"


class Immutable(MemoryApi):
    """A server that changes no data of an object that is there."""

    def _patch(self, question: Any, body: Json) -> tuple[int, Json]:
        there = self.objects.get(question.path)
        if there and there.get("data") != body.get("data"):
            return 422, {"reason": "Invalid", "message": "field is immutable"}
        return super()._patch(question, body)


def test_what_cannot_be_changed_is_made_anew() -> None:
    bench = Bench(Immutable())
    bench.converge(CONFIG)
    uid = bench.server.objects[f"{PLACE}/configmaps/c"]["metadata"]["uid"]
    bench.writes()
    bench.converge(made("ConfigMap", "c", data={"k": "2"}))
    assert bench.writes() == [f"DELETE {PLACE}/configmaps/c", f"PATCH {PLACE}/configmaps/c"]
    made_anew = bench.server.objects[f"{PLACE}/configmaps/c"]
    assert made_anew["data"] == {"k": "2"}
    assert made_anew["metadata"]["uid"] != uid


def test_nothing_is_left_of_a_monitor_and_all_of_others() -> None:
    bench = Bench()
    bench.converge(ACCOUNT, CONFIG)
    bench.server.keep(f"{PLACE}/configmaps/other", made("ConfigMap", "other", uid="m-2"))
    # It was made by an operator that has died since: this one does not know it.
    bench.server.keep(f"{PLACE}/services/s", made("Service", "s"))
    assert bench.clean() == 3
    assert list(bench.server.objects) == [f"{PLACE}/configmaps/other"]


POLICY = 'admission webhook "policy.example.com" denied the request: hostPID is not allowed'
RIGHTS = (
    'configmaps "c" is forbidden: User "operator" cannot patch resource "configmaps" in the namespace "n"'
)


class Guarded(MemoryApi):
    """Something before the server refuses every change of a ConfigMap."""

    def __init__(self, status: int, message: str, *, dry_alone: bool = False) -> None:
        super().__init__()
        self._answer = (status, {"kind": "Status", "reason": "Forbidden", "message": message})
        self._dry_alone = dry_alone

    def _patch(self, question: Question, body: Json) -> tuple[int, Json]:
        guarded = "dryRun" in question.query or not self._dry_alone
        if guarded and "/configmaps/" in question.path:
            return self._answer
        return super()._patch(question, body)


@pytest.mark.parametrize("status", [400, 403])
def test_what_a_policy_of_the_cluster_denies_is_refused_before_anything_is_changed(status: int) -> None:
    bench = Bench(Guarded(status, POLICY))
    with pytest.raises(Rejected, match="hostPID is not allowed") as refused:
        bench.converge(ACCOUNT, CONFIG)
    assert "install it anew" not in str(refused.value)
    assert bench.writes() == []


def test_rights_that_the_operator_lacks_are_no_fault_of_the_resource() -> None:
    bench = Bench(Guarded(403, RIGHTS))
    with pytest.raises(
        Refused, match="the operator's ClusterRole and Roles are the chart's, install it anew"
    ):
        bench.converge(ACCOUNT, CONFIG)


def test_where_nothing_can_be_tried_it_is_done() -> None:
    """Webhooks of before Kubernetes 1.22 may not know what to do with a trial."""
    message = 'admission webhook "old.example.com" does not support dry run'
    bench = Bench(Guarded(400, message, dry_alone=True))
    bench.converge(ACCOUNT, CONFIG)
    assert bench.writes() == [f"PATCH {PLACE}/serviceaccounts/a", f"PATCH {PLACE}/configmaps/c"]
