"""Target discovery of the agent on a real API server, with only the permissions of deploy/agent-rbac.yaml."""

from __future__ import annotations

from base64 import b64encode

import pytest

from cluster.agents import CUSTOM, WHATAP, Agents, FakeExporters, Objects, endpoint, monitor
from cluster.control_plane import ControlPlane, Json
from running import wait_until

# Seconds. Changes are usually visible within two seconds; a busy machine takes longer.
CHANGE_TIMEOUT = 30.0


@pytest.fixture
def cluster(objects: Objects, fake_exporters: FakeExporters) -> Objects:
    """The exporter of document 002, exporters of a customer, and other pods."""
    port = fake_exporters.port
    for name in ("whatap-monitoring", "gpu-monitoring", "other"):
        objects.namespace(name, team=name.partition("-")[0])
    objects.pod("whatap-monitoring", "node-agent-a", "127.0.1.1", WHATAP, ports={"metrics": port})
    objects.pod("gpu-monitoring", "custom-a", "127.0.2.1", CUSTOM, ports={"metrics": port}, node="gpu-2")
    objects.pod("gpu-monitoring", "half", "127.0.2.2", {"app": "custom-dcgm"}, ports={"metrics": port})
    objects.pod("other", "custom-b", "127.0.3.1", CUSTOM, ports={"metrics": port})
    objects.pod("other", "stranger", "127.0.3.2", {"app": "web"}, ports={"http": port})
    return objects


def test_the_basic_example_of_document_002_finds_its_target(
    cluster: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
    target = monitor("dcgm-exporter", ["whatap-monitoring"], {"matchLabels": WHATAP}, endpoint(port))
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    (labels,) = agent.wait_targets(f"127.0.1.1:{port}").values()
    assert labels == {"job": "dcgm-exporter", "instance": f"127.0.1.1:{port}"}
    wait_until(lambda: fake_exporters.requests[f"127.0.1.1:{port}"], "a scrape")


def test_the_simple_example_finds_exporters_by_their_usual_labels(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
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
    agent = agents.start(agents.file({}, fake_exporters.receiver))
    hosts = [f"127.0.4.{number}:{port}" for number in (1, 2, 3, 4)]
    found = agent.wait_targets(*hosts)
    assert {labels["node"] for labels in found.values()} == {"gpu-1"}


def test_the_customer_and_hybrid_examples_find_their_targets(
    cluster: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
    own = monitor("own", ["whatap-monitoring"], {"matchLabels": WHATAP}, endpoint(port))
    theirs = monitor("customer", ["gpu-monitoring", "default"], {"matchLabels": CUSTOM}, endpoint(port))
    both = {"globalInterval": "15s", "globalPath": "/metrics", "targets": [own, theirs]}
    agent = agents.start(agents.file(both, fake_exporters.receiver))
    found = agent.wait_targets(f"127.0.1.1:{port}", f"127.0.2.1:{port}")
    assert {labels["job"] for labels in found.values()} == {"own", "customer"}


LABELLED: list[tuple[str, Json, Json, list[str]]] = [
    ("all namespaces without a namespaceSelector", {}, {"matchLabels": CUSTOM}, ["127.0.2.1", "127.0.3.1"]),
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
def test_targets_are_selected_by_namespace_and_labels(
    namespaces: Json,
    selector: Json,
    hosts: list[str],
    cluster: Objects,
    agents: Agents,
    fake_exporters: FakeExporters,
) -> None:
    port = fake_exporters.port
    target = monitor("t", None, selector, endpoint(port), namespaceSelector=namespaces)
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    agent.wait_targets(*(f"{host}:{port}" for host in hosts))


def test_targets_follow_created_moved_completed_and_deleted_pods(
    cluster: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
    target = monitor("t", ["gpu-monitoring"], {"matchLabels": CUSTOM}, endpoint("metrics"))
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    first = f"127.0.2.1:{port}"
    agent.wait_targets(first)
    cluster.pod("gpu-monitoring", "new", "", CUSTOM, ports={"metrics": port}, phase="Pending")
    cluster.status("gpu-monitoring", "new", phase="Running", podIP="127.0.2.9")
    agent.wait_targets(first, f"127.0.2.9:{port}", patience=CHANGE_TIMEOUT)
    cluster.status("gpu-monitoring", "new", podIP="127.0.2.10", podIPs=[{"ip": "127.0.2.10"}])
    agent.wait_targets(first, f"127.0.2.10:{port}", patience=CHANGE_TIMEOUT)
    cluster.status("gpu-monitoring", "custom-a", phase="Succeeded")
    agent.wait_targets(f"127.0.2.10:{port}", patience=CHANGE_TIMEOUT)
    cluster.delete_now("api/v1/namespaces/gpu-monitoring/pods/new")
    agent.wait_targets(patience=CHANGE_TIMEOUT)


def test_targets_are_kept_while_the_api_server_is_down_and_updated_afterwards(
    cluster: Objects, agents: Agents, fake_exporters: FakeExporters, control_plane: ControlPlane
) -> None:
    port = fake_exporters.port
    target = monitor("t", None, {"matchLabels": CUSTOM}, endpoint(port))
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    hosts = [f"127.0.2.1:{port}", f"127.0.3.1:{port}"]
    agent.wait_targets(*hosts)
    with control_plane.server_stopped():
        before = fake_exporters.requests[hosts[0]]
        wait_until(lambda: fake_exporters.requests[hosts[0]] > before + 1, "scrapes without an API server")
        assert agent.hosts() == hosts
    cluster.pod("other", "late", "127.0.3.9", CUSTOM, ports={"metrics": port})
    # Expires the version of the watch, so that the agent lists all pods again.
    control_plane.compact_etcd()
    agent.wait_targets(*hosts, f"127.0.3.9:{port}")


def test_a_service_target_scrapes_all_endpoints_of_the_service(
    cluster: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
    service = {
        "metadata": {"name": "exporters", "labels": {"app": "exporters"}},
        "spec": {"ports": [{"name": "web", "port": 80, "targetPort": port}]},
    }
    cluster.create("api/v1/namespaces/other/services", service)
    cluster.create(
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
        agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
        found = agent.wait_targets(f"127.0.3.1:{port}", f"127.0.3.2:{port}")
        assert [(row["service"], row["ready"]) for _, row in sorted(found.items())] == [
            ("exporters", "true"),
            ("exporters", "false"),
        ]
        agent.program.stop()


def test_a_password_is_read_from_a_secret_in_the_agents_namespace_and_reloaded(
    cluster: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
    host = f"127.0.1.1:{port}"
    login = {"name": "login", "key": "password"}
    secured = {
        **endpoint(port),
        "credentialsOverHttp": True,
        "basicAuth": {"username": {"name": "login", "key": "user"}, "password": login},
    }
    target = monitor("t", ["whatap-monitoring"], {"matchLabels": WHATAP}, secured)
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    agent.wait_targets(host)
    missing = "cannot read the key password of the Secret gpuledger/login: not found; create it"
    wait_until(lambda: missing in agent.page(), "the error for a missing Secret")
    assert not fake_exporters.requests[host]
    path = "api/v1/namespaces/gpuledger/secrets"
    cluster.create(path, {"metadata": {"name": "login"}, "stringData": {"user": "me", "password": "old"}})
    for password in ("old", "new"):
        cluster.patch(f"{path}/login", {"stringData": {"password": password}})
        header = "Basic " + b64encode(f"me:{password}".encode()).decode()
        wait_until(lambda header=header: fake_exporters.authorizations.get(host) == header, password)  # type: ignore[misc]
