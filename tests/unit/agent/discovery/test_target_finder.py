"""The target finder: which objects become targets, at which port, with which labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpuledger.agent.discovery.discovery import StatefulSetMember
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.discovery.sharding import Shard, parse_shard
from gpuledger.agent.discovery.target_finder import ClusterObjects, TargetFinder
from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules, hashmod
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.kubernetes.object_watch import KubernetesObject, ObjectParser
from gpuledger.kubernetes.objects import (
    LabeledObject,
    LabelExpression,
    LabelSelector,
    NamespaceSelector,
    parse_endpoint_slice,
    parse_endpoints,
    parse_labeled,
    parse_meta,
    parse_pod_object,
    parse_service,
)
from gpuledger.model.errors import UsageError

Json = dict[str, Any]


def parse_item(read: ObjectParser, namespace: str, name: str, body: Json, **metadata: Any) -> Any:
    item = {"metadata": {"namespace": namespace, "name": name, **metadata}, **body}
    meta = parse_meta(item, annotations=True)
    assert meta is not None
    return read(item, meta)


def pod(
    name: str = "p",
    ip: str = "10.0.0.1",
    *ports: Json,
    namespace: str = "a",
    phase: str = "Running",
    **metadata: Any,
) -> KubernetesObject:
    body = {
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i:1", "ports": list(ports)}]},
        "status": {"phase": phase, "podIP": ip, "hostIP": "192.0.2.1"},
    }
    found: KubernetesObject = parse_item(parse_pod_object, namespace, name, body, **metadata)
    return found


def selection(port: str = "metrics", **more: Any) -> Selection:
    endpoint = EndpointSettings(port, "http", "/metrics", {}, ScrapeSettings(), more.pop("node", False))
    given: Json = {
        "name": "t",
        "kind": POD_MONITOR,
        "namespaces": NamespaceSelector(),
        "selector": LabelSelector(),
        "endpoints": (endpoint,),
    }
    return Selection(**{**given, **more})


def find_targets(one: Selection, *pods: KubernetesObject, **cluster: Any) -> list[Target]:
    return TargetFinder(one).find_targets(ClusterObjects(pods, **cluster))[0]


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
def test_a_label_expression_matches_or_not(
    operator: str, values: tuple[str, ...], labels: dict[str, str], meant: bool
) -> None:
    assert LabelExpression("k", operator, values).matches(labels) is meant


def test_all_labels_and_expressions_must_match() -> None:
    both = LabelSelector((("a", "1"), ("b", "2")), (LabelExpression("c", "Exists"),))
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
def test_a_port_name_must_be_declared_and_a_port_number_need_not(
    port: str, declared: list[Json], found: list[str]
) -> None:
    assert addresses(find_targets(selection(port), pod("p", "10.0.0.1", *declared))) == found


def test_a_pod_with_invalid_unicode_in_a_label_affects_only_itself() -> None:
    rules = RelabelRules([RelabelRule("labelmap", regex="__meta_kubernetes_pod_annotation_(.+)")])
    pods = [pod("p", "10.0.0.1", TCP, annotations={"odd": "\ud800"}), pod("q", "10.0.0.2", TCP)]
    found, report = TargetFinder(selection(rules=rules)).find_targets(ClusterObjects(pods))
    assert addresses(found) == ["10.0.0.2:9400"]
    assert report.reasons == ["pod a/p at 10.0.0.1:9400: the value of label odd is not valid Unicode"]


def test_an_ipv6_address_is_bracketed() -> None:
    assert addresses(find_targets(selection(), pod("p", "fd00::1", TCP))) == ["[fd00::1]:9400"]


@pytest.mark.parametrize(
    ("phase", "ip", "why"),
    [
        ("Pending", "", "pod a/p is Pending, not Running"),
        ("Succeeded", "10.0.0.1", "pod a/p is Succeeded, not Running"),
        ("Running", "", "pod a/p has no IP address yet"),
    ],
)
def test_a_pod_that_is_not_scraped_has_a_reason(phase: str, ip: str, why: str) -> None:
    targets, report = TargetFinder(selection()).find_targets(ClusterObjects([pod("p", ip, TCP, phase=phase)]))
    assert (targets, report.reasons) == ([], [why])
    assert report.summary() == "no object with the labels is running and has an address"


STEPS: list[tuple[Selection, str]] = [
    (selection(namespaces=NamespaceSelector(frozenset(), LabelSelector())), "no namespace is selected"),
    (
        selection(selector=LabelSelector((("no", "1"),))),
        "no object in the selected namespaces has the labels",
    ),
    (selection("other"), "no running object has the port"),
    (selection(rules=RelabelRules([RelabelRule("drop", regex=".*")])), "relabelConfigs drop all addresses"),
]


@pytest.mark.parametrize(("one", "summary"), STEPS, ids=[case[1] for case in STEPS])
def test_the_summary_is_the_first_step_that_no_object_passed(one: Selection, summary: str) -> None:
    assert TargetFinder(one).find_targets(ClusterObjects([pod("p", "10.0.0.1", TCP)]))[1].summary() == summary


def test_namespaces_are_selected_by_labels_and_unknown_ones_are_not() -> None:
    known = {"a": parse_item(parse_labeled, "", "a", {}, labels={"team": "x"})}
    one = selection(namespaces=NamespaceSelector(None, LabelSelector((("team", "x"),))))
    pods = [pod("p", "10.0.0.1", TCP), pod("q", "10.0.0.2", TCP, namespace="b")]
    assert addresses(find_targets(one, *pods, namespaces=known)) == ["10.0.0.1:9400"]


def test_every_meta_label_of_a_pod_is_set() -> None:
    rules = RelabelRules([RelabelRule("labelmap", regex="__meta_kubernetes_(.+)")])
    owner = {"controller": True, "kind": "DaemonSet", "name": "d"}
    one = pod(
        "p", "10.0.0.1", TCP, uid="u", labels={"x/y": "1"}, annotations={"z": "2"}, ownerReferences=[owner]
    )
    node = parse_item(parse_labeled, "", "n1", {}, labels={"zone": "z"})
    assert isinstance(node, LabeledObject)
    (target,) = find_targets(selection(rules=rules, node=True), one, nodes={"n1": node})
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


def test_the_job_is_the_value_of_the_job_label_if_present() -> None:
    pods = [pod("p", "10.0.0.1", TCP, labels={"app": "mine"}), pod("q", "10.0.0.2", TCP)]
    jobs = [dict(target.labels)["job"] for target in find_targets(selection(job_label="app"), *pods)]
    assert jobs == ["mine", "t"]


def test_unchanged_objects_keep_their_target_object() -> None:
    finder = TargetFinder(selection())
    pods = [pod("p", "10.0.0.1", TCP), pod("q", "10.0.0.2", TCP)]
    first, _ = finder.find_targets(ClusterObjects(pods))
    second, _ = finder.find_targets(ClusterObjects([pods[0], pod("q", "10.0.0.3", TCP)]))
    assert second[0] is first[0]
    assert addresses(second) == ["10.0.0.1:9400", "10.0.0.3:9400"]


SERVICE = parse_item(
    parse_service, "a", "s", {"spec": {"ports": [{"name": "web", "port": 80, "targetPort": "m"}]}}
)
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
def test_a_service_port_gives_the_addresses_behind_it_ready_or_not(port: str, old: bool) -> None:
    labels = {"kubernetes.io/service-name": "s"}
    behind = (
        parse_item(parse_endpoints, "a", "s", {"subsets": SUBSETS})
        if old
        else parse_item(parse_endpoint_slice, "a", "s-1", SLICE, labels=labels)
    )
    one = selection(port, kind=SERVICE_MONITOR, node=True)
    (target,) = TargetFinder(one).find_targets(ClusterObjects(services=[SERVICE], slices=[behind]))[0]
    assert (addresses([target]), dict(target.labels)["node"]) == (["10.0.0.1:9400"], "n1")


def test_every_target_has_exactly_one_shard_by_prometheus_hashmod() -> None:
    targets = [find_targets(selection(), pod("p", f"10.0.0.{number}", TCP))[0] for number in range(50)]
    for count in (1, 2, 3, 7):
        owners = [[index for index in range(count) if Shard(index, count).owns(one)] for one in targets]
        assert all(len(shards) == 1 for shards in owners)
    # The figure that Prometheus 2.42 computes for this address.
    assert hashmod("10.0.0.1:9400", 1000) == int.from_bytes(bytes.fromhex(MD5)[8:], "big") % 1000


# printf 10.0.0.1:9400 | md5sum
MD5 = "ccac9b37bb40d1b3987c1cdd1784237b"


@pytest.mark.parametrize("written", ["3/3", "a/b", "1", "0/0", "-1/2"])
def test_an_invalid_shard_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="shard"):
        parse_shard(written)


def test_the_automatic_shard_is_that_of_the_pods_stateful_set() -> None:
    settings = ClusterSettings()
    assert settings.own_shard({}) == Shard(0, 1)
    assert settings.own_shard({"POD_NAME": "a-b-2", "POD_NAMESPACE": "n"}) == StatefulSetMember("n", "a-b", 2)
    with pytest.raises(UsageError, match="is not one of a StatefulSet"):
        settings.own_shard({"POD_NAME": "agent-x7k2q", "POD_NAMESPACE": "n"})
