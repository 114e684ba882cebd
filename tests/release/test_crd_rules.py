"""What the chart's CRDs refuse by rules between values, on the CRD server of Kubernetes 1.36."""

from collections.abc import Mapping
from typing import Any

import pytest

from cluster.control_plane import Client
from gpuledger.operator.schema.nodes import CEL_RULES
from release.crd_requests import CRDS, GPU_MONITORS, GPUS, PATHS, apply_crd, try_create
from release.crd_server import CrdServer, Json
from unit.operator.schemas import without_cel_rules
from unit.operator.support import gpu_monitor
from unit.operator.test_crd_definitions import schemas

pytestmark = pytest.mark.group("crd-server")


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
    ({"agent": {"persistence": {"size": 2}}}, "agent.persistence.size", "too few bytes"),
    ({"agent": {"persistence": {"size": "4M"}}}, "agent.persistence.size", "too few bytes"),
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
