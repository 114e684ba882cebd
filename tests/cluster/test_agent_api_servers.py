"""The agent and an API server that forgets, refuses, or tells of addresses of the other kind."""

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
from cluster.agents import CUSTOM, Agent, Agents, Everywhere, Objects, endpoint, monitor
from cluster.control_plane import AGENT_ACCOUNT, ControlPlane, Json
from running import wait_until
from scripted_target import Answer, scripted

RBAC = "apis/rbac.authorization.k8s.io/v1"


@contextmanager
def suspended(agent: Agent) -> Iterator[None]:
    """The agent hears nothing within."""
    agent.program.process.send_signal(SIGSTOP)
    try:
        yield
    finally:
        agent.program.process.send_signal(SIGCONT)


def pods_asked(plane: ControlPlane, since: int) -> list[dict[str, list[str]]]:
    """The queries for pods of all namespaces that the agent has made, oldest first."""
    parts = [urlsplit(event["requestURI"]) for event in plane.audited(AGENT_ACCOUNT)[since:]]
    return [parse_qs(part.query) for part in parts if part.path == "/api/v1/pods"]


def test_after_an_expired_version_everything_is_listed_anew(
    objects: Objects, agents: Agents, everywhere: Everywhere, control_plane: ControlPlane
) -> None:
    port = everywhere.port
    objects.namespace("gone")
    objects.pod("gone", "stays", "127.0.7.1", CUSTOM, ports={"metrics": port})
    objects.pod("gone", "goes", "127.0.7.2", CUSTOM, ports={"metrics": port})
    target = monitor("t", None, {"matchLabels": CUSTOM}, endpoint(port))
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    agent.wait_targets(f"127.0.7.1:{port}", f"127.0.7.2:{port}")
    with suspended(agent):
        with control_plane.server_away():
            """Its watches break: what happens from here on is not told it."""
        objects.forget("api/v1/namespaces/gone/pods/goes")
        objects.pod("gone", "comes", "127.0.7.3", CUSTOM, ports={"metrics": port})
        control_plane.compact()
        heard = len(control_plane.audited(AGENT_ACCOUNT))
        with control_plane.server_away():
            """What the server knows begins with what there is now."""
    agent.wait_targets(f"127.0.7.1:{port}", f"127.0.7.3:{port}")

    asked = pods_asked(control_plane, heard)
    version = next(one["resourceVersion"][0] for one in asked if "watch" in one)
    answer = control_plane.admin.ask(
        "GET", "api/v1/pods", watch="1", resourceVersion=version, timeoutSeconds="5"
    )
    told: Json = json.loads(answer.text.splitlines()[0])
    assert (told["type"], told["object"]["code"], told["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert any("watch" not in one for one in asked)


@pytest.fixture
def narrow(objects: Objects) -> Iterator[str]:
    """An account that may read the pods of one namespace, and no others."""
    objects.namespace("allowed")
    objects.namespace("closed")
    objects.make("api/v1/namespaces/gpuledger/serviceaccounts", {"metadata": {"name": "narrow"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    for where in ("namespaces/allowed/roles", "clusterroles"):
        objects.make(f"{RBAC}/{where}", {"metadata": {"name": "narrow"}, "rules": rules})
    objects.make(f"{RBAC}/namespaces/allowed/rolebindings", binding("Role"))
    yield "narrow"


def binding(kind: str) -> Json:
    subject = {"kind": "ServiceAccount", "name": "narrow", "namespace": "gpuledger"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "narrow"}
    return {"metadata": {"name": "narrow"}, "roleRef": reference, "subjects": [subject]}


def test_an_account_of_one_namespace_finds_what_is_there_and_all_once_it_may(
    objects: Objects, agents: Agents, everywhere: Everywhere, narrow: str
) -> None:
    port = everywhere.port
    objects.pod("allowed", "one", "127.0.7.11", CUSTOM, ports={"metrics": port})
    objects.pod("closed", "two", "127.0.7.12", CUSTOM, ports={"metrics": port})
    named = monitor("named", ["allowed"], {"matchLabels": CUSTOM}, endpoint(port))
    everything = monitor("everything", None, {"matchLabels": CUSTOM}, endpoint(port))
    file = agents.file({"targets": [named, everything]}, everywhere.receiver)
    agent = agents.start(file, "--kubernetes-token-file", str(agents.token(narrow)))
    agent.wait_targets(f"127.0.7.11:{port}")
    page = agent.page()
    assert re.search(r"403 from \S+ system:serviceaccount:gpuledger:narrow may not list and watch pods", page)
    assert "<strong>everything</strong>: 403 from" in page
    objects.make(f"{RBAC}/clusterrolebindings", binding("ClusterRole"))
    agent.wait_targets(f"127.0.7.11:{port}", f"127.0.7.12:{port}")
    wait_until(lambda: "403 from" not in agent.page(), "the trouble to be over")


def test_an_authority_is_a_secret_of_the_agents_own_namespace_and_is_rotated(
    objects: Objects, agents: Agents, everywhere: Everywhere, tmp_path: Path
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
        agent = agents.start(agents.file({"targets": [static]}, everywhere.receiver))
        wait_until(lambda: "authority cannot be read" in agent.page(), "the state without the Secret")
        wrong = {"ca.crt": certificates.crt("stranger").read_text()}
        objects.make(path, {"metadata": {"name": "authority"}, "stringData": wrong})
        wait_until(lambda: "certificate is not accepted" in agent.page(), "another authority")
        right = {"ca.crt": certificates.crt("ca").read_text()}
        objects.change(f"{path}/authority", {"stringData": right})
        wait_until(lambda: "<strong>1</strong> of 1 targets up" in agent.page(), "the right authority")
        agent.program.stop()


def test_a_pod_with_an_ipv6_address_is_scraped_there(
    objects: Objects, agents: Agents, everywhere: Everywhere
) -> None:
    port = everywhere.port
    objects.namespace("six")
    objects.pod("six", "six", "::1", CUSTOM, ports={"metrics": port})
    target = monitor("t", ["six"], {"matchLabels": CUSTOM}, endpoint("metrics"))
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    (labels,) = agent.wait_targets(f"[::1]:{port}").values()
    assert labels["instance"] == f"[::1]:{port}"
    wait_until(lambda: everywhere.asked[f"[::1]:{port}"], "a scrape")


def test_pods_of_the_hosts_network_are_targets_of_their_own_at_the_nodes_address(
    objects: Objects, agents: Agents, everywhere: Everywhere
) -> None:
    """Two exporters on one node, its address and each its own port: both are scraped, each once."""
    objects.namespace("host")
    port = everywhere.port
    for name, number in (("ours", port), ("theirs", everywhere.second_port)):
        objects.pod("host", name, "127.0.7.21", CUSTOM, ports={"metrics": number}, host_network=True)
    target = monitor("t", ["host"], {"matchLabels": CUSTOM}, endpoint("metrics"))
    agent = agents.start(agents.file({"targets": [target]}, everywhere.receiver))
    hosts = [f"127.0.7.21:{number}" for number in (port, everywhere.second_port)]
    agent.wait_targets(*hosts)
    wait_until(lambda: all(everywhere.asked[host] for host in hosts), "a scrape of each")
