"""The agent with an API server: expired versions, missing permissions, Secrets, IPv6, host network."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from urllib.parse import parse_qs, urlsplit

import pytest

from certificates import Certificates
from cluster.agents import CUSTOM, Agent, Agents, FakeExporters, Objects, endpoint, monitor
from cluster.control_plane import AGENT_ACCOUNT, ControlPlane, Json
from running import wait_until
from scripted_target import Answer, scripted

RBAC = "apis/rbac.authorization.k8s.io/v1"


@contextmanager
def suspended(agent: Agent) -> Iterator[None]:
    """Suspend the agent within."""
    agent.program.process.send_signal(SIGSTOP)
    try:
        yield
    finally:
        agent.program.process.send_signal(SIGCONT)


def pod_requests(plane: ControlPlane, since: int) -> list[dict[str, list[str]]]:
    """Query parameters of the agent's requests for pods of all namespaces, oldest first."""
    parts = [urlsplit(event["requestURI"]) for event in plane.audit_events(AGENT_ACCOUNT)[since:]]
    return [parse_qs(part.query) for part in parts if part.path == "/api/v1/pods"]


def test_the_agent_lists_again_after_its_resource_version_expired(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters, control_plane: ControlPlane
) -> None:
    port = fake_exporters.port
    objects.namespace("gone")
    objects.pod("gone", "kept", "127.0.7.1", CUSTOM, ports={"metrics": port})
    objects.pod("gone", "deleted", "127.0.7.2", CUSTOM, ports={"metrics": port})
    target = monitor("t", None, {"matchLabels": CUSTOM}, endpoint(port))
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    agent.wait_targets(f"127.0.7.1:{port}", f"127.0.7.2:{port}")
    with suspended(agent):
        with control_plane.server_stopped():
            """Watches break: the agent misses the following changes."""
        objects.delete_now("api/v1/namespaces/gone/pods/deleted")
        objects.pod("gone", "created", "127.0.7.3", CUSTOM, ports={"metrics": port})
        control_plane.compact_etcd()
        heard = len(control_plane.audit_events(AGENT_ACCOUNT))
        with control_plane.server_stopped():
            """The restarted server has no history before the current state."""
    agent.wait_targets(f"127.0.7.1:{port}", f"127.0.7.3:{port}")

    requests = pod_requests(control_plane, heard)
    version = next(query["resourceVersion"][0] for query in requests if "watch" in query)
    response = control_plane.admin.request(
        "GET", "api/v1/pods", watch="1", resourceVersion=version, timeoutSeconds="5"
    )
    event: Json = json.loads(response.text.splitlines()[0])
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert any("watch" not in query for query in requests)


@pytest.fixture
def narrow(objects: Objects) -> Iterator[str]:
    """An account that may read pods only in one namespace."""
    objects.namespace("allowed")
    objects.namespace("closed")
    objects.create("api/v1/namespaces/gpuledger/serviceaccounts", {"metadata": {"name": "narrow"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    for where in ("namespaces/allowed/roles", "clusterroles"):
        objects.create(f"{RBAC}/{where}", {"metadata": {"name": "narrow"}, "rules": rules})
    objects.create(f"{RBAC}/namespaces/allowed/rolebindings", binding("Role"))
    yield "narrow"


def binding(kind: str) -> Json:
    subject = {"kind": "ServiceAccount", "name": "narrow", "namespace": "gpuledger"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "narrow"}
    return {"metadata": {"name": "narrow"}, "roleRef": reference, "subjects": [subject]}


def test_an_account_limited_to_one_namespace_finds_more_targets_after_gaining_permission(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters, narrow: str
) -> None:
    port = fake_exporters.port
    objects.pod("allowed", "one", "127.0.7.11", CUSTOM, ports={"metrics": port})
    objects.pod("closed", "two", "127.0.7.12", CUSTOM, ports={"metrics": port})
    named = monitor("named", ["allowed"], {"matchLabels": CUSTOM}, endpoint(port))
    everything = monitor("everything", None, {"matchLabels": CUSTOM}, endpoint(port))
    file = agents.file({"targets": [named, everything]}, fake_exporters.receiver)
    agent = agents.start(file, "--kubernetes-token-file", str(agents.token(narrow)))
    agent.wait_targets(f"127.0.7.11:{port}")
    page = agent.page()
    assert re.search(r"403 from \S+ system:serviceaccount:gpuledger:narrow may not list and watch pods", page)
    assert "<strong>everything</strong>: 403 from" in page
    objects.create(f"{RBAC}/clusterrolebindings", binding("ClusterRole"))
    agent.wait_targets(f"127.0.7.11:{port}", f"127.0.7.12:{port}")
    wait_until(lambda: "403 from" not in agent.page(), "the error to disappear")


def test_a_ca_certificate_is_read_from_a_secret_in_the_agents_namespace_and_reloaded(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters, tmp_path: Path
) -> None:
    (tmp_path / "certificates").mkdir()
    certificates = Certificates(tmp_path / "certificates")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    path = "api/v1/namespaces/gpuledger/secrets"
    with scripted(lambda _: Answer("a 1\n"), context) as target:
        secured = {
            "address": f"127.0.0.1:{target.port}",
            "interval": "1s",
            "tlsConfig": {"caSecret": {"name": "authority", "key": "ca.crt"}},
        }
        static = {"targetName": "t", "type": "StaticEndpoints", "endpoints": [secured]}
        agent = agents.start(agents.file({"targets": [static]}, fake_exporters.receiver))
        wait_until(
            lambda: "Secret gpuledger/authority: not found" in agent.page(), "the error for a missing Secret"
        )
        wrong = {"ca.crt": certificates.crt("stranger").read_text()}
        objects.create(path, {"metadata": {"name": "authority"}, "stringData": wrong})
        wait_until(lambda: "cannot verify the server" in agent.page(), "the error for a wrong CA")
        right = {"ca.crt": certificates.crt("ca").read_text()}
        objects.patch(f"{path}/authority", {"stringData": right})
        wait_until(
            lambda: "<strong>1</strong> of 1 targets up" in agent.page(),
            "the target to be up with the right CA",
        )
        agent.program.stop()


def test_a_pod_with_an_ipv6_address_is_scraped(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    port = fake_exporters.port
    objects.namespace("six")
    objects.pod("six", "six", "::1", CUSTOM, ports={"metrics": port})
    target = monitor("t", ["six"], {"matchLabels": CUSTOM}, endpoint("metrics"))
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    (labels,) = agent.wait_targets(f"[::1]:{port}").values()
    assert labels["instance"] == f"[::1]:{port}"
    wait_until(lambda: fake_exporters.requests[f"[::1]:{port}"], "a scrape")


def test_two_host_network_pods_on_one_node_are_separate_targets(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters
) -> None:
    """Two exporters have the address of their node and different ports: each is scraped once."""
    objects.namespace("host")
    port = fake_exporters.port
    for name, number in (("ours", port), ("theirs", fake_exporters.second_port)):
        objects.pod("host", name, "127.0.7.21", CUSTOM, ports={"metrics": number}, host_network=True)
    target = monitor("t", ["host"], {"matchLabels": CUSTOM}, endpoint("metrics"))
    agent = agents.start(agents.file({"targets": [target]}, fake_exporters.receiver))
    hosts = [f"127.0.7.21:{number}" for number in (port, fake_exporters.second_port)]
    agent.wait_targets(*hosts)
    wait_until(lambda: all(fake_exporters.requests[host] for host in hosts), "a scrape of each")
