"""The chart's CRDs on the CRD server of Kubernetes 1.36, with real etcd and kubectl."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

import chart
from cluster.control_plane import Client
from documentation import DOCS, ROOT
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.kubernetes.object_client import ObjectClient, WriteRefused
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.crd_definitions import foreign_definition
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.judged_spec import AppliedSpec, last_applied_spec, spec_text
from gpuledger.operator.kinds import GPU_MONITOR_KIND, owner_reference_of
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.monitors import Monitors
from gpuledger.operator.object_lists import list_objects
from gpuledger.operator.reconcile import FINALIZER, DelayQueue, Reconciler
from gpuledger.operator.render.objects import render_objects
from gpuledger.operator.render_context import RenderContext
from gpuledger.operator.schema.nodes import CEL_RULES, ListNode, ObjectNode, SchemaNode
from gpuledger.operator.spec import SPEC
from gpuledger.operator.watches import KindWatch
from gpuledger.operator.whatap_spec import WHATAP_SPEC
from release.crd_server import CrdServer, Json, build_crd_server
from running import wait_until
from unit.operator.schemas import leaf_fields, sample, values, without_cel_rules
from unit.operator.support import EXAMPLES, gpu_monitor, whatap
from unit.operator.test_crd_definitions import WRONG, schemas

CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GPU_MONITORS = "gpumonitors.gpuledger.dev"
WHATAP_AGENTS = "whatapagents.monitoring.whatap.com"
PATHS = {
    "GpuMonitor": "apis/gpuledger.dev/v1alpha1/gpumonitors",
    "WhatapAgent": "apis/monitoring.whatap.com/v2alpha1/whatapagents",
}
GPUS = f"/{PATHS['GpuMonitor']}/gpus"
KEPT = ROOT / "deploy/helm/gpuledger/files/crds" / f"{GPU_MONITORS}.yaml"
pytestmark = pytest.mark.group("crd-server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrdServer]:
    folder = tmp_path_factory.mktemp("crd-server")
    made = CrdServer(build_crd_server(), folder, folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def crds() -> dict[str, Json]:
    """The CRDs as the chart renders them, by name."""
    found = chart.of_kind(
        "CustomResourceDefinition", {"operator": {"enabled": True}, "whatapCompat": {"enabled": True}}
    )
    return {crd["metadata"]["name"]: crd for crd in found}


@pytest.fixture
def api(server: CrdServer, crds: Mapping[str, Json]) -> Iterator[Client]:
    """A client of the server, which has the CRDs and no resources."""
    client = server.client()
    try:
        for crd in crds.values():
            apply_crd(client, crd)
        yield client
        for path in PATHS.values():
            delete_all(client, path)
    finally:
        client.close()


def apply_crd(client: Client, crd: Json) -> Json:
    """Create the CRD or replace it, and wait until the server serves its schema."""
    name = crd["metadata"]["name"]
    path = f"{CRDS}/{name}"
    existing = client.request("GET", path)
    if existing.status_code == 404:
        response = client.request("POST", CRDS, crd, fieldValidation="Strict")
    else:
        version = existing.json()["metadata"]["resourceVersion"]
        changed = {**crd, "metadata": {**crd["metadata"], "resourceVersion": version}}
        response = client.request("PUT", path, changed, fieldValidation="Strict")
    assert response.is_success, response.text
    assert "warning" not in response.headers
    (served,) = crd["spec"]["versions"]
    document = f"openapi/v3/apis/{crd['spec']['group']}/{served['name']}"
    properties = served["schema"]["openAPIV3Schema"]["properties"]

    def is_served() -> bool:
        # Empty while it is written.
        found = client.request("GET", document).content
        schemas = json.loads(found)["components"]["schemas"].values() if found.startswith(b"{") else ()
        return properties["spec"] in [one.get("properties", {}).get("spec") for one in schemas]

    wait_until(is_served, f"the schema of {name}")
    return client.call("GET", path)


def delete_crd(client: Client, name: str) -> None:
    client.request("DELETE", f"{CRDS}/{name}")
    wait_until(lambda: client.request("GET", f"{CRDS}/{name}").status_code == 404, f"{name} to be deleted")


def delete_all(client: Client, path: str) -> None:
    found = client.request("GET", path)
    for item in found.json()["items"] if found.is_success else ():
        one = f"{path}/{item['metadata']['name']}"
        client.request("PATCH", one, {"metadata": {"finalizers": []}})
        client.request("DELETE", one)


def try_create(client: Client, resource: Json, validation: str = "Strict") -> Any:
    """The response to a dry run that creates the resource."""
    return client.request("POST", PATHS[resource["kind"]], resource, dryRun="All", fieldValidation=validation)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def examples() -> list[Json]:
    """The resources in the documentation and in the manual of Whatap."""
    found = [yaml.safe_load(text) for text in EXAMPLES.values()]
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            documents = yaml.safe_load_all(block)
            found += [one for one in documents if isinstance(one, dict) and one.get("kind") in PATHS]
    return found


def table(text: str) -> list[list[str]]:
    """The cells of kubectl's output, without the age."""
    return [re.split(r" {2,}", line.strip())[:-1] for line in text.splitlines() if line.strip()]


# Installing the CRDs


def test_the_charts_crds_are_accepted_and_served(api: Client, crds: Mapping[str, Json]) -> None:
    assert set(crds) == {GPU_MONITORS, WHATAP_AGENTS}
    for name in crds:
        status = api.call("GET", f"{CRDS}/{name}")["status"]
        # There would be a condition NonStructuralSchema.
        assert {one["type"]: one["status"] for one in status["conditions"]} == {
            "NamesAccepted": "True",
            "Established": "True",
        }


def test_the_server_stores_the_schemas_unchanged(api: Client, crds: Mapping[str, Json]) -> None:
    for name, crd in crds.items():
        stored = api.call("GET", f"{CRDS}/{name}")
        assert stored["spec"]["versions"] == crd["spec"]["versions"]


def test_the_operator_recognizes_its_crds_on_the_server(api: Client, crds: Mapping[str, Json]) -> None:
    assert [foreign_definition(api.call("GET", f"{CRDS}/{name}")) for name in crds] == ["", ""]


def test_kubectl_explain_lists_all_keys_and_their_descriptions(server: CrdServer, api: Client) -> None:
    listed = server.kubectl("explain", "gpumonitor.spec", "--recursive")
    assert listed.returncode == 0, listed.stderr
    keys = set(re.findall(r"^ +(\S+)\t<", listed.stdout, re.MULTILINE))
    assert keys >= {part for path, _ in leaf_fields(SPEC) for part in path if part != "[]"}
    one = server.kubectl("explain", "gpumonitor.spec.exporter.port")
    assert "Port of the metrics page; 9400 by default." in one.stdout


# What is accepted


@pytest.mark.parametrize("resource", examples(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_kubectl_applies_the_examples_of_the_documentation(
    server: CrdServer, api: Client, resource: Json
) -> None:
    applied = server.kubectl("apply", manifests=[resource])
    assert (applied.returncode, applied.stderr) == (0, "")
    stored = api.call("GET", f"{PATHS[resource['kind']]}/{resource['metadata']['name']}")
    # No default is stored: it would persist after an upgrade that changes the default.
    assert stored["spec"] == resource["spec"]


_properties = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize(
    "resources",
    [values(SPEC).map(gpu_monitor), values(WHATAP_SPEC).map(lambda spec: {**whatap(), "spec": spec})],
    ids=PATHS,
)
def test_the_server_accepts_what_the_schema_allows_and_prunes_nothing(
    api: Client, crds: Mapping[str, Json], resources: Any
) -> None:
    # Arbitrary values break rules.
    for crd in crds.values():
        apply_crd(api, without_cel_rules(crd))

    @_properties
    @given(resources)
    def check(resource: Json) -> None:
        response = try_create(api, resource)
        assert response.is_success, response.text
        assert response.json()["spec"] == without_nulls(resource["spec"])

    check()


def test_a_null_or_an_empty_text_is_accepted(api: Client) -> None:
    spec = {"exporter": {"stateDir": "", "port": None}, "agent": {"targets": None}}
    response = try_create(api, gpu_monitor(spec))
    assert response.json()["spec"] == {"exporter": {"stateDir": ""}, "agent": {}}


def test_other_fields_of_a_whatap_agent_are_stored(api: Client) -> None:
    resource = whatap(apm={"enabled": True, "other": [1]}, unknown={"a": "b"})
    assert try_create(api, resource).json()["spec"] == resource["spec"]


# What is refused


@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[case[1].partition(":")[0] for case in WRONG])
def test_a_wrong_value_is_refused_with_its_path(api: Client, spec: Json, problem: str) -> None:
    response = try_create(api, gpu_monitor(spec))
    message = response.json()["message"]
    assert response.status_code in (400, 422)
    path = problem.partition(":")[0]
    # A rule names the mapping of a wrong key or amount, or the section of two that contradict each other.
    parts = (path.rpartition(".")[0], path.partition(".req")[0])
    assert path in message or any(f"{part}: " in message for part in parts)
    assert "\n" not in message


def exporter(**spec: Any) -> Json:
    return {"exporter": spec}


def variable(**more: Any) -> Json:
    return exporter(env=[{"name": "A", **more}])


def node_term(**expression: Any) -> Json:
    term = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", **expression}]}]}
    return exporter(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}})


def ports(*found: tuple[str, int]) -> Json:
    return exporter(extraPorts=[{"name": name, "port": port, "dialects": ["dcgm"]} for name, port in found])


def receivers(*found: Json) -> Json:
    return {"agent": {"remoteWrite": [{"url": "https://store/write", **one} for one in found]}}


def relabeling(**rule: Any) -> Json:
    return receivers({"writeRelabelConfigs": [rule]})


FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}
SECRET = {"name": "store", "key": "password"}
# What types and patterns allow: the path that the server names, and a part of its message.
BROKEN: list[tuple[Json, str, str]] = [
    (
        exporter(tolerations=[{"operator": "Exists", "value": "a"}]),
        "exporter.tolerations[0]",
        "takes no value",
    ),
    (exporter(tolerations=[{"value": "a"}]), "exporter.tolerations[0]", "without a key"),
    (exporter(tolerations=[{"key": "a", "tolerationSeconds": 3}]), "exporter.tolerations[0]", "NoExecute"),
    (exporter(podLabels={"a b": "c"}), "exporter.podLabels", "expected names of labels"),
    (exporter(podAnnotations={"-": "c"}), "exporter.podAnnotations", "expected names of labels"),
    (variable(value="a", valueFrom=FIELD), "exporter.env[0]", "conflicts with valueFrom"),
    (variable(valueFrom={}), "exporter.env[0].valueFrom", "exactly one source"),
    (
        variable(valueFrom={**FIELD, "secretKeyRef": SECRET}),
        "exporter.env[0].valueFrom",
        "exactly one source",
    ),
    (node_term(operator="In"), "nodeSelectorTerms[0].matchExpressions[0]", "In and NotIn need values"),
    (node_term(operator="Gt", values=["1", "2"]), "nodeSelectorTerms[0].matchExpressions[0]", "exactly one"),
    (node_term(operator="Exists", values=["1"]), "nodeSelectorTerms[0].matchExpressions[0]", "none"),
    (exporter(resources={"limits": {"nvidia.com/gpu": 1}}), "exporter.resources.limits", "leave it out"),
    (exporter(resources={"limits": {"memory": 4194303}}), "exporter.resources.limits", "memory has too few"),
    (exporter(resources={"limits": {"ephemeral-storage": "1k"}}), "exporter.resources.limits", "ephemeral-"),
    (exporter(resources={"requests": {"cpu": "8001m"}}), "exporter.resources.requests", "cpu has more cores"),
    *(
        (exporter(resources={"requests": {name: "5M"}, "limits": {name: "4.2M"}}), "exporter.resources", name)
        for name in ("memory", "ephemeral-storage")
    ),
    (
        exporter(resources={"requests": {"cpu": 1}, "limits": {"cpu": "999m"}}),
        "exporter.resources",
        "the request for cpu is above the limit",
    ),
    (exporter(mode="collect", webConfig={"secret": "a", "scheme": "http"}), "exporter", "serve no page"),
    *(
        ({"exporter": {"mode": mode, **ports(("a", 1))["exporter"]}}, "exporter", "serve no page")
        for mode in ("collect", "cronjob")
    ),
    (exporter(mode="cronjob", dialects=["native"]), "exporter", "only the dialects process and session"),
    (ports(("a", 9400)), "exporter", "is that of the metrics page"),
    (ports(("metrics", 1)), "exporter.extraPorts[0]", "the name metrics"),
    (ports(("a", 1), ("a", 2)), "exporter.extraPorts", "another name and number"),
    (ports(("a", 1), ("b", 1)), "exporter.extraPorts", "another name and number"),
    ({"agent": {"externalLabels": {"a-b": "c"}}}, "agent.externalLabels", "expected names of labels"),
    (receivers({}, {}), "agent.remoteWrite", "each receiver needs another name"),
    (receivers({"name": "a"}, {"name": "a", "url": "http://b/"}), "agent.remoteWrite", "another name"),
    (receivers({"url": "https://ann:hunter2@store/write"}), "agent.remoteWrite[0]", "contains credentials"),
    (receivers({"url": "https://ann@store/write"}), "agent.remoteWrite[0]", "contains credentials"),
    (
        receivers({"basicAuth": {"username": SECRET}, "authorization": {"credentialsSecret": SECRET}}),
        "agent.remoteWrite[0]",
        "give only one",
    ),
    (receivers({"basicAuth": {"password": SECRET}}), "agent.remoteWrite[0].basicAuth", "username is missing"),
    (receivers({"authorization": {}}), "agent.remoteWrite[0].authorization", "expected one of"),
    (
        receivers({"authorization": {"type": "basic", "credentialsFile": "/a"}}),
        "agent.remoteWrite[0].authorization",
        "must not be Basic",
    ),
    *(
        (
            receivers({"tlsConfig": {f"{name}File": "/a", f"{name}Secret": SECRET}}),
            "agent.remoteWrite[0].tlsConfig",
            f"{name}Secret conflicts",
        )
        for name in ("ca", "cert", "key")
    ),
    (
        receivers({"tlsConfig": {"certFile": "/a"}}),
        "agent.remoteWrite[0].tlsConfig",
        "both certificate and key",
    ),
    (receivers({"headers": {"a b": "c"}}), "agent.remoteWrite[0].headers", "names of headers"),
    (receivers({"headers": {"AUTHORIZATION": "c"}}), "agent.remoteWrite[0].headers", "use basicAuth"),
    (
        receivers({"queueConfig": {"minShards": 3, "maxShards": 2}}),
        "agent.remoteWrite[0].queueConfig",
        "below",
    ),
    (relabeling(action="retain"), "writeRelabelConfigs[0]", "expected an action"),
    (relabeling(action="HashMod", target_label="a"), "writeRelabelConfigs[0]", "modulus"),
    (relabeling(regex="a"), "writeRelabelConfigs[0]", "needs a target_label"),
    (relabeling(target_label="a", targetLabel="a"), "writeRelabelConfigs[0]", "both spellings"),
    (relabeling(action="drop", regex="a("), "writeRelabelConfigs[0].regex", "missing closing )"),
    (relabeling(action="drop", regex="(?=a)"), "writeRelabelConfigs[0].regex", "is not a valid RE2"),
]


@pytest.mark.parametrize(
    ("spec", "path", "text"), BROKEN, ids=[f"{path}: {text}" for _, path, text in BROKEN]
)
def test_a_value_that_breaks_a_rule_is_refused_before_it_is_stored(
    api: Client, spec: Json, path: str, text: str
) -> None:
    response = try_create(api, gpu_monitor(spec))
    assert response.status_code == 422
    message = response.json()["message"]
    assert f"{path}: " in message
    assert text in message
    # A password must not be repeated.
    assert "hunter2" not in message


def test_each_rule_has_a_value_that_breaks_it(api: Client) -> None:
    found = "\n".join(try_create(api, gpu_monitor(spec)).json()["message"] for spec, _, _ in BROKEN)
    (version,) = api.call("GET", f"{CRDS}/{GPU_MONITORS}")["spec"]["versions"]
    rules = [
        rule["message"]
        for _, schema in schemas(version["schema"]["openAPIV3Schema"])
        for rule in schema.get(CEL_RULES, ())
    ]
    assert [message for message in rules if message not in found] == []


def test_all_errors_are_named_at_once(api: Client) -> None:
    spec = {**exporter(port=0, tolerations=[{"value": "a"}]), **relabeling(action="drop", regex="(")}
    message = try_create(api, gpu_monitor(spec)).json()["message"]
    for path in ("exporter.port", "exporter.tolerations[0]", "remoteWrite[0].writeRelabelConfigs[0].regex"):
        assert f"{path}: " in message


def test_the_rules_do_not_refuse_the_other_fields_of_an_older_resource(
    server: CrdServer, api: Client, crds: Mapping[str, Json]
) -> None:
    """It was stored before the CRD had the rules. Its status is written, and other fields can be changed."""
    apply_crd(api, without_cel_rules(crds[GPU_MONITORS]))
    broken = exporter(tolerations=[{"operator": "Exists", "value": "a"}])
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor(broken))
    apply_crd(api, crds[GPU_MONITORS])
    server.as_operator(lambda client: client.merge(f"{GPUS}/status", {"status": {"gpuNodes": 12}}))
    changed = api.call("PATCH", GPUS, {"spec": {"exporter": {"port": 9500}}})
    assert changed["status"] == {"gpuNodes": 12}
    assert changed["spec"]["exporter"]["port"] == 9500


@pytest.mark.parametrize("name", ["x" * 33, "a.b", "9-"])
def test_a_name_that_objects_cannot_contain_is_refused(api: Client, name: str) -> None:
    response = try_create(api, gpu_monitor(name=name))
    assert response.status_code == 422
    assert "metadata.name" in response.json()["message"]


def test_kubectl_refuses_an_unknown_key_with_its_path(server: CrdServer, api: Client) -> None:
    applied = server.kubectl("apply", manifests=[gpu_monitor({"exporter": {"prt": 9400}})])
    assert applied.returncode == 1
    assert 'unknown field "spec.exporter.prt"' in applied.stderr


def test_an_unknown_key_is_dropped_with_a_warning_unless_validation_is_strict(api: Client) -> None:
    response = try_create(api, gpu_monitor({"exporter": {"prt": 9400, "port": 9500}}), "Warn")
    assert response.json()["spec"] == {"exporter": {"port": 9500}}
    assert 'unknown field \\"spec.exporter.prt\\"' in response.headers["warning"]


# Wrong for most types, and some right for one.
_VALUES: tuple[Any, ...] = (
    -1,
    1.0,
    1.5,
    2**31,
    2**63,
    "",
    "a b",
    "a\n",
    "é" * 70,
    [None],
    {"a b": "c"},
    True,
)


@pytest.mark.parametrize(("schema", "resource"), [(SPEC, gpu_monitor()), (WHATAP_SPEC, whatap())], ids=PATHS)
def test_the_operator_reads_all_that_the_server_stores(
    api: Client, schema: ObjectNode, resource: Json
) -> None:
    """Except for what a schema cannot express: names of labels, and credentials in the resource."""
    problems: dict[str, list[str]] = defaultdict(list)
    accepted = 0
    for path, _ in leaf_fields(schema):
        for value in _VALUES:
            response = try_create(api, {**resource, "spec": spec_with(schema, path, value)})
            if response.is_success:
                accepted += 1
                for problem in parse_monitor(response.json()).problems:
                    # The operator judges each target.
                    if ".targets[" in problem.path:
                        continue
                    problems[str(problem)].append(repr(value))
    expected = ("expected the name of a label", "exposes the credential")
    assert {one: of for one, of in problems.items() if not any(text in one for text in expected)} == {}
    assert accepted > len(_VALUES)


def spec_with(node: SchemaNode, path: tuple[str, ...], value: Any) -> Any:
    """A value of the schema in which only the field at the path, and required fields, are set."""
    if not path:
        return value
    if isinstance(node, ListNode):
        return [spec_with(node.item, path[1:], value)]
    assert isinstance(node, ObjectNode)
    required = {name: sample(node.keys[name], name) for name in node.required}
    return {**required, path[0]: spec_with(node.keys[path[0]], path[1:], value)}


# Field managers and the status


def managers(resource: Json) -> dict[str, tuple[str, str]]:
    """Operation and subresource, by field manager."""
    entries = resource["metadata"]["managedFields"]
    return {one["manager"]: (one["operation"], one.get("subresource", "")) for one in entries}


def test_the_operators_apply_removes_its_fields_and_keeps_those_of_others(
    server: CrdServer, api: Client
) -> None:
    theirs = gpu_monitor({"exporter": {"gpuCount": 3}})
    assert server.kubectl("apply", "--server-side", manifests=[theirs]).returncode == 0

    async def apply_twice(client: ObjectClient) -> Json:
        await client.apply(GPUS, gpu_monitor({"exporter": {"port": 9500, "webPage": "off"}}))
        return await client.apply(GPUS, gpu_monitor({"exporter": {"port": 9600}}))

    applied = server.as_operator(apply_twice)
    assert applied["spec"] == {"exporter": {"gpuCount": 3, "port": 9600}}
    assert managers(applied) == {"kubectl": ("Apply", ""), FIELD_MANAGER: ("Apply", "")}


def test_a_dry_run_of_the_operator_returns_the_result_and_changes_nothing(
    server: CrdServer, api: Client
) -> None:
    body = gpu_monitor({"exporter": {"port": 9500}})
    applied = server.as_operator(lambda client: client.apply(GPUS, body, dry=True))
    assert applied["spec"] == body["spec"]
    assert api.request("GET", GPUS).status_code == 404


def test_the_operators_client_reports_what_the_server_refuses(server: CrdServer, api: Client) -> None:
    with pytest.raises(WriteRefused) as refused:
        server.as_operator(lambda client: client.apply(GPUS, gpu_monitor({"exporter": {"port": 0}})))
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    assert refused.value.is_invalid_content
    assert "spec.exporter.port: Invalid value: 0" in str(refused.value)


def test_a_finalizer_of_an_outdated_resource_is_a_conflict(server: CrdServer, api: Client) -> None:
    old = api.call("POST", PATHS["GpuMonitor"], gpu_monitor())["metadata"]["resourceVersion"]
    api.call("PATCH", GPUS, {"spec": {"exporter": {"port": 9500}}})
    patch = {"metadata": {"finalizers": [FINALIZER], "resourceVersion": old}}
    with pytest.raises(WriteRefused) as refused:
        server.as_operator(lambda client: client.merge(GPUS, patch))
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")


def reconcile(server: CrdServer) -> Json:
    """Reconcile the resource `gpus` as the operator does; returns it from the server."""

    async def once(api: ObjectClient) -> Json:
        clock, counts, owned = SystemClock(), OperatorCounts(), ManagedObjects()
        monitors = Monitors(
            lambda body, monitor: render_objects(monitor, RenderContext(owner_reference_of(body), "n")),
            600.0,
            lambda _: None,
        )
        monitors.apply_listing(GPU_MONITOR_KIND.kind, *await list_objects(api, GPU_MONITOR_KIND))
        reconciler = Reconciler(
            api,
            monitors,
            owned,
            Applier(api, owned, ["n"], counts),
            EventRecorder(api, "operator", clock, counts),
            DelayQueue(),
            clock,
            counts,
            10.0,
        )
        (monitor,) = monitors
        await reconciler.reconcile(monitor)
        return await api.get(GPUS)

    return server.as_operator(once)


# Only the operator finds that it is too long.
LONG_NAME = f"{'a' * 320}.example.com/team"
LONG_LABEL = {"exporter": {"podLabels": {LONG_NAME: "c"}}}


def test_the_operator_writes_the_status_of_a_resource_that_only_it_refuses(
    server: CrdServer, api: Client
) -> None:
    before = api.call("POST", PATHS["GpuMonitor"], gpu_monitor(LONG_LABEL))
    after = reconcile(server)
    (degraded,) = (one for one in after["status"]["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
    assert degraded["message"].startswith(f"spec.exporter.podLabels.{LONG_NAME}: ")
    assert after["status"]["observedGeneration"] == after["metadata"]["generation"]
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], 1)
    assert managers(after)[FIELD_MANAGER] == ("Update", "status")


def test_a_second_reconciliation_writes_nothing(server: CrdServer, api: Client) -> None:
    """The server stores the status exactly as the operator wrote it."""
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor(LONG_LABEL))
    first = reconcile(server)
    assert reconcile(server)["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_users_do_not_change_the_status_and_the_operator_not_the_spec(server: CrdServer, api: Client) -> None:
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor({"exporter": {"port": 9500}}))
    server.as_operator(lambda client: client.merge(f"{GPUS}/status", {"status": {"gpuNodes": 12}}))
    by_user = api.call("PATCH", GPUS, {"status": {"gpuNodes": 99}})
    both = {"status": {"gpuNodes": 13}, "spec": {"exporter": {"port": 1}}}
    by_operator = server.as_operator(lambda client: client.merge(f"{GPUS}/status", both))
    assert by_user["status"] == {"gpuNodes": 12}
    assert (by_operator["status"], by_operator["spec"]) == ({"gpuNodes": 13}, {"exporter": {"port": 9500}})
    assert by_operator["metadata"]["generation"] == 1


def test_the_largest_applied_spec_that_the_operator_stores_is_read_again(
    server: CrdServer, api: Client
) -> None:
    variables = [{"name": f"V{number}", "value": "x" * 1000} for number in range(250)]
    created = api.call("POST", PATHS["GpuMonitor"], gpu_monitor({"exporter": {"env": variables}}))
    monitor = parse_monitor(created).monitor
    assert monitor is not None
    text = AppliedSpec(spec_text(created), monitor).status_text
    assert text is not None
    assert len(text) > 250_000
    patch = {"status": {"appliedSpec": text}}
    found = last_applied_spec(server.as_operator(lambda client: client.merge(f"{GPUS}/status", patch)))
    assert found is not None
    assert found.text == text


def test_two_conditions_of_one_type_are_refused(server: CrdServer, api: Client) -> None:
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor())
    twice = [{"type": "Available", "status": status} for status in ("True", "False")]
    with pytest.raises(WriteRefused, match="Duplicate value"):
        server.as_operator(lambda client: client.merge(f"{GPUS}/status", {"status": {"conditions": twice}}))


STATUS = {
    "gpuNodes": 12,
    "exportersReady": 11,
    "targetsFound": 12,
    "targetsUp": 10,
    "lastError": "2 of 12 targets are down",
    "conditions": [
        {"type": "Available", "status": "True", "reason": "Running"},
        {"type": "Degraded", "status": "True", "reason": "TargetsDown"},
    ],
}


def test_kubectl_get_prints_the_columns_of_the_documentation(server: CrdServer, api: Client) -> None:
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor())
    server.as_operator(lambda client: client.merge(f"{GPUS}/status", {"status": STATUS}))
    (documented,) = re.findall(
        r"^    (NAME +GPU NODES .*)$", (DOCS / "operator.md").read_text(), re.MULTILINE
    )
    header, row = table(server.kubectl("get", "gpumonitors").stdout)
    assert header == table(documented)[0]
    assert row == ["gpus", "12", "11", "12", "10", "True", "TargetsDown"]
    header, row = table(server.kubectl("get", "gpumonitors", "-o", "wide").stdout)
    assert header[-2:] == ["DEGRADED", "ERROR"]
    assert row[-2:] == ["TargetsDown", "2 of 12 targets are down"]


def test_kubectl_get_works_before_the_first_status(server: CrdServer, api: Client) -> None:
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor())
    shown = server.kubectl("get", "gpumonitor", "gpus")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[1].split()[0] == "gpus"


def test_kubectl_wait_follows_the_conditions(server: CrdServer, api: Client) -> None:
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor())
    server.as_operator(lambda client: client.merge(f"{GPUS}/status", {"status": STATUS}))
    done = server.kubectl("wait", "--for=condition=Available", "gpumonitor/gpus", "--timeout=30s")
    assert done.stdout == "gpumonitor.gpuledger.dev/gpus condition met\n"


def test_the_documented_command_deletes_a_resource_without_an_operator(
    server: CrdServer, api: Client
) -> None:
    resource = gpu_monitor()
    resource["metadata"]["finalizers"] = [FINALIZER]
    api.call("POST", PATHS["GpuMonitor"], resource)
    server.kubectl("delete", "gpumonitor", "gpus", "--wait=false")
    assert api.call("GET", GPUS)["metadata"]["deletionTimestamp"]
    text = (DOCS / "operator.md").read_text()
    (patch,) = re.findall(r"^    kubectl patch gpumonitor gpus --type=merge -p '(.*)'$", text, re.MULTILINE)
    assert server.kubectl("patch", "gpumonitor", "gpus", "--type=merge", "-p", patch).returncode == 0
    assert api.request("GET", GPUS).status_code == 404


# Watches


def test_the_operators_watch_receives_changes_and_notices_that_the_crd_is_deleted(
    server: CrdServer, api: Client, crds: Mapping[str, Json]
) -> None:
    seen: list[tuple[int, bool]] = []

    def handle(body: Json, deleted: bool) -> None:
        seen.append((body["metadata"]["generation"], deleted))

    watch = KindWatch(server.access, GPU_MONITOR_KIND, "", handle, SystemClock())
    watch.start()
    try:
        wait_until(lambda: watch.health.success, "the first list")
        api.call("POST", PATHS["GpuMonitor"], gpu_monitor())
        api.call("PATCH", GPUS, {"spec": {"exporter": {"port": 9500}}})
        api.call("DELETE", GPUS)
        wait_until(lambda: (2, True) in seen, f"the deletion: {seen}")
        assert seen == [(1, False), (2, False), (2, True)]
        delete_crd(api, GPU_MONITORS)
        wait_until(lambda: watch.refused, "the watch to be refused")
    finally:
        watch.stop()


# Upgrades


@cache
def earlier_crds() -> dict[str, Json]:
    """The CRDs in the history of the repository by commit, without those that only have other texts."""
    path = KEPT.relative_to(ROOT)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout

    found: dict[str, Json] = {}
    for commit in git("log", "--reverse", "--format=%h", "--", str(path)).split():
        if text := git("show", f"{commit}:{path}"):
            crd = without_descriptions(yaml.safe_load(text))
            if crd not in found.values():
                found[commit] = crd
    return found


def without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_descriptions(item)
            for key, item in value.items()
            if key != "description" or not isinstance(item, str)
        }
    return [without_descriptions(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("commit", "earlier"), earlier_crds().items(), ids=list(earlier_crds()))
def test_a_resource_of_an_earlier_crd_remains_valid(
    api: Client, crds: Mapping[str, Json], commit: str, earlier: Json
) -> None:
    delete_crd(api, GPU_MONITORS)
    # The samples break rules.
    apply_crd(api, without_cel_rules(earlier))
    (version,) = earlier["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    full = {}
    for name in ("exporter", "agent"):
        section = SPEC.keys[name]
        assert isinstance(section, ObjectNode)
        full[name] = {key: sample(section.keys[key], key) for key in schema["properties"][name]["properties"]}
    # The sample of extraPorts has the sample of port, and contradicts that of mode.
    full["exporter"]["port"] = 9500
    full["exporter"].pop("mode", None)
    stored = api.call("POST", PATHS["GpuMonitor"], gpu_monitor(full), fieldValidation="Strict")
    status = apply_crd(api, crds[GPU_MONITORS])["status"]
    assert status["storedVersions"] == [version["name"]], commit
    upgraded = api.call("GET", GPUS)
    assert upgraded["spec"] == stored["spec"]
    assert parse_monitor(upgraded).problems == ()
    upgraded["spec"]["exporter"]["followGpuOperator"] = {"enabled": True}
    assert api.call("PUT", GPUS, upgraded, fieldValidation="Strict")["metadata"]["generation"] == 2


def test_a_rollback_drops_only_the_fields_that_the_earlier_crd_lacks(
    api: Client, crds: Mapping[str, Json]
) -> None:
    exporter = {"port": 9500, "webConfig": {"secret": "web", "scheme": "https"}}
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor({"exporter": exporter}))
    earlier = without_cel_rules(deepcopy(crds[GPU_MONITORS]))
    (version,) = earlier["spec"]["versions"]
    sections = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del sections["exporter"]["properties"]["webConfig"]
    apply_crd(api, earlier)
    wait_until(lambda: api.call("GET", GPUS)["spec"] == {"exporter": {"port": 9500}}, "the earlier schema")
    apply_crd(api, crds[GPU_MONITORS])
    # Not lost until the resource is written.
    wait_until(lambda: api.call("GET", GPUS)["spec"] == {"exporter": exporter}, "the schema")


def test_a_stored_value_that_a_newer_crd_refuses_blocks_no_other_change(
    server: CrdServer, api: Client, crds: Mapping[str, Json]
) -> None:
    wider = deepcopy(crds[GPU_MONITORS])
    (version,) = wider["spec"]["versions"]
    exporter = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["exporter"]
    exporter["properties"]["webPage"]["enum"].append("removed")
    apply_crd(api, wider)
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor({"exporter": {"webPage": "removed"}}))
    apply_crd(api, crds[GPU_MONITORS])
    problem = "spec.exporter.webPage: expected one of landing, full, off, not 'removed'"
    assert reconcile(server)["status"]["lastError"] == problem
    api.call("PATCH", GPUS, {"spec": {"exporter": {"port": 9500}}})
    refused = api.request("PATCH", GPUS, {"spec": {"exporter": {"webPage": "other"}}})
    assert refused.status_code == 422
    assert 'supported values: "landing", "full", "off"' in refused.json()["message"]
