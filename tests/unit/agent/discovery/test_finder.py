"""From the objects of a cluster to targets: which are meant, at which port, under which labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpuledger.agent.discovery.discovery import Scale
from gpuledger.agent.discovery.finder import Cluster, Finder
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.discovery.sharding import Shard, parse_shard
from gpuledger.agent.relabel.rule import Relabelling, Rule, hashmod
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.kubernetes.object_watch import Object, Reader
from gpuledger.kubernetes.objects import (
    Expression,
    NamespaceSelector,
    PlainObject,
    Selector,
    read_endpoints,
    read_meta,
    read_plain,
    read_pod,
    read_service,
    read_slice,
)
from gpuledger.model.errors import UsageError

Json = dict[str, Any]


def made(read: Reader, namespace: str, name: str, body: Json, **metadata: Any) -> Any:
    told = {"metadata": {"namespace": namespace, "name": name, **metadata}, **body}
    meta = read_meta(told, annotations=True)
    assert meta is not None
    return read(told, meta)


def pod(
    name: str = "p",
    ip: str = "10.0.0.1",
    *ports: Json,
    namespace: str = "a",
    phase: str = "Running",
    **metadata: Any,
) -> Object:
    body = {
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i:1", "ports": list(ports)}]},
        "status": {"phase": phase, "podIP": ip, "hostIP": "192.0.2.1"},
    }
    found: Object = made(read_pod, namespace, name, body, **metadata)
    return found


def selection(port: str = "metrics", **more: Any) -> Selection:
    endpoint = EndpointSettings(port, "http", "/metrics", {}, ScrapeSettings(), more.pop("node", False))
    given: Json = {
        "name": "t",
        "kind": POD_MONITOR,
        "namespaces": NamespaceSelector(),
        "selector": Selector(),
        "endpoints": (endpoint,),
    }
    return Selection(**{**given, **more})


def find(one: Selection, *pods: Object, **cluster: Any) -> list[Target]:
    return Finder(one).find(Cluster(pods, **cluster))[0]


def addresses(targets: Iterable[Target]) -> list[str]:
    return [target.url.removeprefix("http://").removesuffix("/metrics") for target in targets]


EXPRESSIONS: list[tuple[str, tuple[str, ...], dict[str, str], bool]] = [
    ("In", ("x", "y"), {"k": "x"}, True),
    ("In", ("x",), {"k": "z"}, False),
    ("In", ("x",), {}, False),
    ("NotIn", ("x",), {"k": "z"}, True),
    ("NotIn", ("x",), {"k": "x"}, False),
    ("NotIn", ("x",), {}, True),
    ("Exists", (), {"k": ""}, True),
    ("Exists", (), {}, False),
    ("DoesNotExist", (), {}, True),
    ("DoesNotExist", (), {"k": ""}, False),
]


@pytest.mark.parametrize(("operator", "values", "labels", "meant"), EXPRESSIONS)
def test_an_expression_holds_for_these_labels_or_not(
    operator: str, values: tuple[str, ...], labels: dict[str, str], meant: bool
) -> None:
    assert Expression("k", operator, values).matches(labels) is meant


def test_all_labels_and_expressions_must_hold() -> None:
    both = Selector((("a", "1"), ("b", "2")), (Expression("c", "Exists"),))
    assert both.matches({"a": "1", "b": "2", "c": ""})
    assert not both.matches({"a": "1", "b": "2"})
    assert not both.matches({"a": "1", "c": ""})
    assert str(both) == "a=1,b=2,c"


TCP = {"name": "metrics", "containerPort": 9400}
UDP = {"name": "metrics", "containerPort": 9400, "protocol": "UDP"}
OTHER = {"name": "http", "containerPort": 80}
PORTS: list[tuple[str, list[Json], list[str]]] = [
    ("metrics", [OTHER, TCP], ["10.0.0.1:9400"]),
    ("9400", [OTHER, TCP], ["10.0.0.1:9400"]),
    ("9400", [], ["10.0.0.1:9400"]),
    ("9400", [OTHER], ["10.0.0.1:9400"]),
    ("metrics", [OTHER], []),
    ("metrics", [UDP], []),
    ("", [OTHER, TCP], ["10.0.0.1:80", "10.0.0.1:9400"]),
]


@pytest.mark.parametrize(("port", "declared", "found"), PORTS)
def test_a_port_is_found_by_name_among_the_declared_and_by_number_anywhere(
    port: str, declared: list[Json], found: list[str]
) -> None:
    assert addresses(find(selection(port), pod("p", "10.0.0.1", *declared))) == found


def test_a_pod_whose_labels_are_half_a_character_costs_itself_alone() -> None:
    rules = Relabelling([Rule("labelmap", regex="__meta_kubernetes_pod_annotation_(.+)")])
    pods = [pod("p", "10.0.0.1", TCP, annotations={"odd": "\ud800"}), pod("q", "10.0.0.2", TCP)]
    found, report = Finder(selection(rules=rules)).find(Cluster(pods))
    assert addresses(found) == ["10.0.0.2:9400"]
    assert report.reasons == ["pod a/p at 10.0.0.1:9400: the label odd would not be UTF-8"]


def test_an_ipv6_address_is_bracketed() -> None:
    assert addresses(find(selection(), pod("p", "fd00::1", TCP))) == ["[fd00::1]:9400"]


@pytest.mark.parametrize(
    ("phase", "ip", "why"),
    [
        ("Pending", "", "pod a/p is Pending, not Running"),
        ("Succeeded", "10.0.0.1", "pod a/p is Succeeded, not Running"),
        ("Running", "", "pod a/p has no IP address yet"),
    ],
)
def test_a_pod_that_is_not_scraped_has_a_reason(phase: str, ip: str, why: str) -> None:
    targets, report = Finder(selection()).find(Cluster([pod("p", ip, TCP, phase=phase)]))
    assert (targets, report.reasons) == ([], [why])
    assert report.verdict() == "nothing that has the labels is running with an address"


STEPS: list[tuple[Selection, str]] = [
    (selection(namespaces=NamespaceSelector(frozenset(), Selector())), "no namespace is selected"),
    (selection(selector=Selector((("no", "1"),))), "nothing in the selected namespaces has the labels"),
    (selection("other"), "nothing that is running has the port"),
    (selection(rules=Relabelling([Rule("drop", regex=".*")])), "relabelConfigs drop everything"),
]


@pytest.mark.parametrize(("one", "verdict"), STEPS, ids=[case[1] for case in STEPS])
def test_the_verdict_is_the_first_step_that_nothing_passed(one: Selection, verdict: str) -> None:
    assert Finder(one).find(Cluster([pod("p", "10.0.0.1", TCP)]))[1].verdict() == verdict


def test_namespaces_are_selected_by_their_labels_and_those_unknown_are_not() -> None:
    known = {"a": made(read_plain, "", "a", {}, labels={"team": "x"})}
    one = selection(namespaces=NamespaceSelector(None, Selector((("team", "x"),))))
    pods = [pod("p", "10.0.0.1", TCP), pod("q", "10.0.0.2", TCP, namespace="b")]
    assert addresses(find(one, *pods, namespaces=known)) == ["10.0.0.1:9400"]


def test_every_meta_label_of_a_pod_can_be_told() -> None:
    rules = Relabelling([Rule("labelmap", regex="__meta_kubernetes_(.+)")])
    owner = {"controller": True, "kind": "DaemonSet", "name": "d"}
    one = pod(
        "p", "10.0.0.1", TCP, uid="u", labels={"x/y": "1"}, annotations={"z": "2"}, ownerReferences=[owner]
    )
    node = made(read_plain, "", "n1", {}, labels={"zone": "z"})
    assert isinstance(node, PlainObject)
    (target,) = find(selection(rules=rules, node=True), one, nodes={"n1": node})
    assert dict(target.labels) == {
        "job": "t",
        "instance": "10.0.0.1:9400",
        "node": "n1",
        "namespace": "a",
        "node_name": "n1",
        "node_label_zone": "z",
        "node_labelpresent_zone": "true",
        "pod_name": "p",
        "pod_ip": "10.0.0.1",
        "pod_ready": "unknown",
        "pod_phase": "Running",
        "pod_node_name": "n1",
        "pod_host_ip": "192.0.2.1",
        "pod_uid": "u",
        "pod_controller_kind": "DaemonSet",
        "pod_controller_name": "d",
        "pod_label_x_y": "1",
        "pod_labelpresent_x_y": "true",
        "pod_annotation_z": "2",
        "pod_annotationpresent_z": "true",
        "pod_container_name": "c",
        "pod_container_image": "i:1",
        "pod_container_init": "false",
        "pod_container_port_name": "metrics",
        "pod_container_port_number": "9400",
        "pod_container_port_protocol": "TCP",
    }


def test_the_job_is_the_value_of_the_job_label_where_there_is_one() -> None:
    pods = [pod("p", "10.0.0.1", TCP, labels={"app": "mine"}), pod("q", "10.0.0.2", TCP)]
    jobs = [dict(target.labels)["job"] for target in find(selection(job_label="app"), *pods)]
    assert jobs == ["mine", "t"]


def test_what_did_not_change_is_the_same_target_the_next_time() -> None:
    finder = Finder(selection())
    pods = [pod("p", "10.0.0.1", TCP), pod("q", "10.0.0.2", TCP)]
    first, _ = finder.find(Cluster(pods))
    second, _ = finder.find(Cluster([pods[0], pod("q", "10.0.0.3", TCP)]))
    assert second[0] is first[0]
    assert addresses(second) == ["10.0.0.1:9400", "10.0.0.3:9400"]


SERVICE = made(read_service, "a", "s", {"spec": {"ports": [{"name": "web", "port": 80, "targetPort": "m"}]}})
SLICE = {
    "addressType": "IPv4",
    "ports": [{"name": "web", "port": 9400}, {"name": "udp", "port": 9, "protocol": "UDP"}],
    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}, "nodeName": "n1"}],
}
SUBSETS = [
    {"notReadyAddresses": [{"ip": "10.0.0.1", "nodeName": "n1"}], "ports": [{"name": "web", "port": 9400}]}
]


@pytest.mark.parametrize("port", ["web", "80", "m", ""])
@pytest.mark.parametrize("old", [False, True], ids=["EndpointSlice", "Endpoints"])
def test_a_services_port_leads_to_what_is_behind_it_ready_or_not(port: str, old: bool) -> None:
    labels = {"kubernetes.io/service-name": "s"}
    behind = (
        made(read_endpoints, "a", "s", {"subsets": SUBSETS})
        if old
        else made(read_slice, "a", "s-1", SLICE, labels=labels)
    )
    one = selection(port, kind=SERVICE_MONITOR, node=True)
    (target,) = Finder(one).find(Cluster(services=[SERVICE], slices=[behind]))[0]
    assert (addresses([target]), dict(target.labels)["node"]) == (["10.0.0.1:9400"], "n1")


def test_every_target_is_of_exactly_one_shard_as_prometheus_hashes_it() -> None:
    targets = [find(selection(), pod("p", f"10.0.0.{number}", TCP))[0] for number in range(50)]
    for count in (1, 2, 3, 7):
        owners = [[index for index in range(count) if Shard(index, count).has(one)] for one in targets]
        assert all(len(shards) == 1 for shards in owners)
    # The figure that Prometheus 2.42 computes for this address.
    assert hashmod("10.0.0.1:9400", 1000) == int.from_bytes(bytes.fromhex(MD5)[8:], "big") % 1000


# printf 10.0.0.1:9400 | md5sum
MD5 = "ccac9b37bb40d1b3987c1cdd1784237b"


@pytest.mark.parametrize("written", ["3/3", "a/b", "1", "0/0", "-1/2"])
def test_a_shard_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="shard"):
        parse_shard(written)


def test_by_itself_a_shard_is_that_of_the_pods_stateful_set() -> None:
    settings = ClusterSettings()
    assert settings.own_shard({}) == Shard(0, 1)
    assert settings.own_shard({"POD_NAME": "a-b-2", "POD_NAMESPACE": "n"}) == Scale("n", "a-b", 2)
    with pytest.raises(UsageError, match="is not a StatefulSet's"):
        settings.own_shard({"POD_NAME": "agent-x7k2q", "POD_NAMESPACE": "n"})
