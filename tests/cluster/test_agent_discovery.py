"""The agent against a real API server, with the rights of deploy/agent-rbac.yaml and no more."""

from __future__ import annotations

from base64 import b64encode

import pytest

from cluster.agents import CUSTOM, WHATAP, Agents, Everywhere, Objects, endpoint, monitor
from cluster.control_plane import ControlPlane, Json
from running import wait_until

# A change is to be seen within two seconds; a machine that is busy gets more.
SOON = 30.0


@pytest.fixture
def cluster(objects: Objects, everywhere: Everywhere) -> Objects:
    """Document 002's own exporter, a customer's, and pods that are nobody's business."""
    port = everywhere.port
    for name in ("whatap-monitoring", "gpu-monitoring", "other"):
        objects.namespace(name, team=name.partition("-")[0])
    objects.pod("whatap-monitoring", "node-agent-a", "127.0.1.1", WHATAP, ports={"metrics": port})
    objects.pod("gpu-monitoring", "custom-a", "127.0.2.1", CUSTOM, ports={"metrics": port}, node="gpu-2")
    objects.pod("gpu-monitoring", "half", "127.0.2.2", {"app": "custom-dcgm"}, ports={"metrics": port})
    objects.pod("other", "custom-b", "127.0.3.1", CUSTOM, ports={"metrics": port})
    objects.pod("other", "stranger", "127.0.3.2", {"app": "web"}, ports={"http": port})
    return objects


def test_the_basic_example_of_document_002(cluster: Objects, agents: Agents, everywhere: Everywhere) -> None:
    port = everywhere.port
    target = monitor("dcgm-exporter", ["whatap-monitoring"], {"matchLabels": WHATAP}, endpoint(port))
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    (labels,) = agent.wait_targets(f"127.0.1.1:{port}").values()
    assert labels == {"job": "dcgm-exporter", "instance": f"127.0.1.1:{port}"}
    wait_until(lambda: everywhere.asked[f"127.0.1.1:{port}"], "a scrape")


def test_the_simple_example_finds_exporters_by_their_usual_labels(
    objects: Objects, agents: Agents, everywhere: Everywhere
) -> None:
    port = everywhere.port
    objects.namespace("whatap-monitoring")
    objects.namespace("gpu-operator")
    dcgm = {"app.kubernetes.io/name": "dcgm-exporter"}
    ours = {"app.kubernetes.io/name": "gpuledger", "app.kubernetes.io/component": "exporter"}
    agent_own = {"app.kubernetes.io/name": "gpuledger", "app.kubernetes.io/component": "agent"}
    ports = {"metrics": port}
    objects.pod("gpu-operator", "operators", "127.0.4.1", {"app": "nvidia-dcgm-exporter"}, ports=ports)
    objects.pod("gpu-operator", "charts", "127.0.4.2", dcgm, ports=ports)
    objects.pod("gpu-operator", "both", "127.0.4.3", {**dcgm, "app": "nvidia-dcgm-exporter"}, ports=ports)
    objects.pod("gpu-operator", "ours", "127.0.4.4", {**ours, **WHATAP}, ports=ports)
    objects.pod("gpu-operator", "agent", "127.0.4.5", agent_own, ports=ports)
    agent = agents.start(agents.file({}, everywhere.receiver))
    hosts = [f"127.0.4.{number}:{port}" for number in (1, 2, 3, 4)]
    found = agent.wait_targets(*hosts)
    assert {labels["node"] for labels in found.values()} == {"gpu-1"}


def test_the_customers_and_the_hybrid_example(
    cluster: Objects, agents: Agents, everywhere: Everywhere
) -> None:
    port = everywhere.port
    own = monitor("own", ["whatap-monitoring"], {"matchLabels": WHATAP}, endpoint(port))
    theirs = monitor("customer", ["gpu-monitoring", "default"], {"matchLabels": CUSTOM}, endpoint(port))
    both = {"globalInterval": "15s", "globalPath": "/metrics", "targets": [own, theirs]}
    agent = agents.start(agents.file(both, everywhere.receiver))
    found = agent.wait_targets(f"127.0.1.1:{port}", f"127.0.2.1:{port}")
    assert {labels["job"] for labels in found.values()} == {"own", "customer"}


LABELLED: list[tuple[str, Json, Json, list[str]]] = [
    ("without a namespaceSelector all namespaces", {}, {"matchLabels": CUSTOM}, ["127.0.2.1", "127.0.3.1"]),
    (
        "namespaces by label",
        {"matchLabels": {"team": "gpu"}},
        {"matchLabels": {"app": "custom-dcgm"}},
        ["127.0.2.1", "127.0.2.2"],
    ),
    (
        "namespaces by expression",
        {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["gpu", "whatap"]}]},
        {"matchLabels": CUSTOM},
        ["127.0.3.1"],
    ),
    (
        "labels by In and DoesNotExist",
        {"matchNames": ["gpu-monitoring", "other"]},
        {
            "matchExpressions": [
                {"key": "app", "operator": "In", "values": ["custom-dcgm", "web"]},
                {"key": "component", "operator": "DoesNotExist"},
            ]
        },
        ["127.0.2.2", "127.0.3.2"],
    ),
    (
        "labels by Exists and NotIn",
        {"matchNames": ["gpu-monitoring", "other"]},
        {
            "matchExpressions": [
                {"key": "component", "operator": "Exists"},
                {"key": "app", "operator": "NotIn", "values": ["web"]},
            ]
        },
        ["127.0.2.1", "127.0.3.1"],
    ),
]


@pytest.mark.parametrize(
    ("namespaces", "selector", "hosts"), [case[1:] for case in LABELLED], ids=[case[0] for case in LABELLED]
)
def test_namespaces_and_labels_are_selected_by(
    namespaces: Json,
    selector: Json,
    hosts: list[str],
    cluster: Objects,
    agents: Agents,
    everywhere: Everywhere,
) -> None:
    port = everywhere.port
    target = monitor("t", None, selector, endpoint(port), namespaceSelector=namespaces)
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    agent.wait_targets(*(f"{host}:{port}" for host in hosts))


def test_pods_come_move_end_and_go(cluster: Objects, agents: Agents, everywhere: Everywhere) -> None:
    port = everywhere.port
    target = monitor("t", ["gpu-monitoring"], {"matchLabels": CUSTOM}, endpoint("metrics"))
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    first = f"127.0.2.1:{port}"
    agent.wait_targets(first)
    cluster.pod("gpu-monitoring", "new", "", CUSTOM, ports={"metrics": port}, phase="Pending")
    cluster.status("gpu-monitoring", "new", phase="Running", podIP="127.0.2.9")
    agent.wait_targets(first, f"127.0.2.9:{port}", patience=SOON)
    cluster.status("gpu-monitoring", "new", podIP="127.0.2.10", podIPs=[{"ip": "127.0.2.10"}])
    agent.wait_targets(first, f"127.0.2.10:{port}", patience=SOON)
    cluster.status("gpu-monitoring", "custom-a", phase="Succeeded")
    agent.wait_targets(f"127.0.2.10:{port}", patience=SOON)
    cluster.forget("api/v1/namespaces/gpu-monitoring/pods/new")
    agent.wait_targets(patience=SOON)


def test_targets_stay_while_the_api_server_is_away_and_are_anew_after(
    cluster: Objects, agents: Agents, everywhere: Everywhere, control_plane: ControlPlane
) -> None:
    port = everywhere.port
    target = monitor("t", None, {"matchLabels": CUSTOM}, endpoint(port))
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    hosts = [f"127.0.2.1:{port}", f"127.0.3.1:{port}"]
    agent.wait_targets(*hosts)
    with control_plane.server_away():
        before = everywhere.asked[hosts[0]]
        wait_until(lambda: everywhere.asked[hosts[0]] > before + 1, "scrapes without an API server")
        assert agent.hosts() == hosts
    cluster.pod("other", "late", "127.0.3.9", CUSTOM, ports={"metrics": port})
    # What the watch stands at is forgotten: all is listed anew.
    control_plane.compact()
    agent.wait_targets(*hosts, f"127.0.3.9:{port}")


def test_services_lead_to_what_is_behind_them(
    cluster: Objects, agents: Agents, everywhere: Everywhere
) -> None:
    port = everywhere.port
    service = {
        "metadata": {"name": "exporters", "labels": {"app": "exporters"}},
        "spec": {"ports": [{"name": "web", "port": 80, "targetPort": port}]},
    }
    cluster.make("api/v1/namespaces/other/services", service)
    cluster.make(
        "apis/discovery.k8s.io/v1beta1/namespaces/other/endpointslices",
        {
            "metadata": {"name": "exporters-1", "labels": {"kubernetes.io/service-name": "exporters"}},
            "addressType": "IPv4",
            "ports": [{"name": "web", "port": port}],
            "endpoints": [
                {"addresses": ["127.0.3.1"], "conditions": {"ready": True}},
                {"addresses": ["127.0.3.2"], "conditions": {"ready": False}},
            ],
        },
    )
    rules = [
        {
            "source_labels": ["__meta_kubernetes_endpointslice_endpoint_conditions_ready"],
            "target_label": "ready",
        },
        {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "service"},
    ]
    for named in ("web", "80", str(port)):
        target = monitor("t", ["other"], {"matchLabels": {"app": "exporters"}}, endpoint(named))
        target |= {"type": "ServiceMonitor", "relabelConfigs": rules}
        agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
        found = agent.wait_targets(f"127.0.3.1:{port}", f"127.0.3.2:{port}")
        assert [(row["service"], row["ready"]) for _, row in sorted(found.items())] == [
            ("exporters", "true"),
            ("exporters", "false"),
        ]
        agent.program.stop()


def test_a_password_is_a_secret_of_the_agents_own_namespace_and_is_rotated(
    cluster: Objects, agents: Agents, everywhere: Everywhere
) -> None:
    port = everywhere.port
    host = f"127.0.1.1:{port}"
    login = {"name": "login", "key": "password"}
    secured = {
        **endpoint(port),
        "credentialsOverHttp": True,
        "basicAuth": {"username": {"name": "login", "key": "user"}, "password": login},
    }
    target = monitor("t", ["whatap-monitoring"], {"matchLabels": WHATAP}, secured)
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    agent.wait_targets(host)
    missing = "the key password of the Secret gpuledger/login cannot be read: there is none; create it"
    wait_until(lambda: missing in agent.page(), "the state of a target without its Secret")
    assert not everywhere.asked[host]
    path = "api/v1/namespaces/gpuledger/secrets"
    cluster.make(path, {"metadata": {"name": "login"}, "stringData": {"user": "me", "password": "old"}})
    for password in ("old", "new"):
        cluster.change(f"{path}/login", {"stringData": {"password": password}})
        wanted = "Basic " + b64encode(f"me:{password}".encode()).decode()
        wait_until(lambda wanted=wanted: everywhere.authorizations.get(host) == wanted, password)  # type: ignore[misc]
