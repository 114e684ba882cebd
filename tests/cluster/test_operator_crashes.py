"""Operators that crash, stop or lose their Lease: the cluster reaches the same state."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.control_plane import ControlPlane
from cluster.operators import AGENT, EXPORTER, NAMESPACE, OperatorRelease, RunningOperator
from gpuledger.operator.kinds import VOLUME_CLAIM_KIND
from integration.sigterm_in_phase import PHASES
from running import PATIENCE, wait_until

Start = Callable[..., RunningOperator]
SIGTERM_IN_PHASE = Path(__file__).parent.parent / "integration" / "sigterm_in_phase.py"
KILLED = (str(Path(__file__).parent / "operator_killed.py"),)
LEASE = f"apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


@pytest.fixture
def start(release: OperatorRelease) -> Iterator[Start]:
    with release.operators() as starts:
        yield starts
        # A new operator deletes the objects if the others have stopped.
        starts()
        release.delete_all()
    assert release.managed_objects() == []


def killed_after(operator: RunningOperator) -> list[str]:
    """`METHOD path` of every write after which an operator was killed."""
    prefix = "killed after "
    return [line.removeprefix(prefix) for line in operator.program.lines if line.startswith(prefix)]


def test_an_operator_killed_after_each_write_completes_all_work(
    release: OperatorRelease, start: Start
) -> None:
    release.apply("GpuMonitor", "main", {"agent": {"persistence": {"size": "1Gi"}}})
    operator = start(program=KILLED)
    made = release.wait_applied("GpuMonitor", "main", 180)
    assert len(made) == 11
    # Finalizer, objects and status: a process was killed after each of these writes.
    assert len(killed_after(operator)) >= len(made) + 2

    release.apply("GpuMonitor", "main", {"exporter": {"port": 9500}, "agent": {"enabled": False}})
    release.wait_condition("GpuMonitor", "main", "Available", "False", "Starting", 180)
    wait_until(lambda: not [one for one in release.managed_objects() if f"/{AGENT}" in one], "a prune")
    (container,) = release.get("DaemonSet", EXPORTER)["spec"]["template"]["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == 9500

    release.api.call("DELETE", "apis/gpuledger.dev/v1alpha1/gpumonitors/main")
    wait_until(lambda: release.read("GpuMonitor", "main") is None, "the monitor to be gone")
    deletions = [one for one in killed_after(operator) if one.startswith("DELETE")]
    assert len(deletions) >= len(made)


def claim(release: OperatorRelease, name: str, labels: dict[str, str]) -> None:
    """Create a volume claim, as the StatefulSet controller does."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    release.api.call("POST", VOLUME_CLAIM_KIND.path(NAMESPACE), body)


@pytest.fixture
def claims(release: OperatorRelease) -> Iterator[None]:
    yield
    for one in release.api.call("GET", VOLUME_CLAIM_KIND.path(NAMESPACE))["items"]:
        path = VOLUME_CLAIM_KIND.path(NAMESPACE, one["metadata"]["name"])
        release.api.request("PATCH", path, {"metadata": {"finalizers": None}})
        release.api.request("DELETE", path)


def test_volumes_of_agents_are_deleted_with_the_monitor(
    release: OperatorRelease, start: Start, claims: None
) -> None:
    start().wait_leads()
    release.apply("GpuMonitor", "main", {"agent": {"persistence": {"size": "1Gi"}}})
    release.wait_applied("GpuMonitor", "main")
    chosen = release.get("StatefulSet", AGENT)["spec"]["selector"]["matchLabels"]
    claim(release, f"queue-{AGENT}-0", chosen)
    claim(release, "theirs", {})
    release.delete("GpuMonitor", "main")
    assert release.volume_claims() == ["theirs"]


def test_the_last_valid_spec_survives_a_restart_of_the_operator(
    release: OperatorRelease, start: Start
) -> None:
    first = start().wait_leads()
    release.apply("GpuMonitor", "main", {})
    made = release.wait_applied("GpuMonitor", "main")
    # Only the API server refuses it.
    wrong = {"exporter": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}
    release.apply("GpuMonitor", "main", wrong)
    release.wait_condition("GpuMonitor", "main", "Degraded", "True", "Rejected")
    first.kill()
    release.api.call("DELETE", release.path("Service", EXPORTER))
    start("--status-interval=100ms").wait_leads()
    # The new operator knows the last applied spec.
    wait_until(lambda: release.managed_objects() == made, "the deleted Service")
    release.set_ready("DaemonSet", EXPORTER, 5)

    def counted() -> bool:
        return (release.read("GpuMonitor", "main") or {})["status"].get("exportersReady") == 5

    wait_until(counted, "the new operator to count")
    assert release.managed_objects() == made
    assert release.conditions("GpuMonitor", "main")["Degraded"] == ("True", "Rejected")


def test_edits_made_while_no_operator_ran_are_reverted(release: OperatorRelease, start: Start) -> None:
    first = start().wait_leads()
    release.apply("GpuMonitor", "main", {})
    release.wait_applied("GpuMonitor", "main")
    first.kill()
    path = release.path("ConfigMap", AGENT)
    release.api.call("PATCH", path, {"data": {"agent.yaml": "edited"}})
    release.api.call("DELETE", release.path("Service", EXPORTER))
    start().wait_leads()
    wait_until(
        lambda: release.api.request("GET", release.path("Service", EXPORTER)).is_success, "the Service"
    )
    wait_until(lambda: release.api.call("GET", path)["data"]["agent.yaml"] != "edited", "the configuration")


def test_a_standby_operator_takes_over_when_the_leader_is_killed(
    release: OperatorRelease, start: Start
) -> None:
    first = start().wait_leads()
    second = start()
    release.apply("GpuMonitor", "main", {})
    release.wait_applied("GpuMonitor", "main")
    assert not second.leads()
    assert second.value("gpuledger_operator_objects_applied_total") == 0
    first.kill()
    release.api.call("DELETE", release.path("ConfigMap", AGENT))
    second.wait_leads()
    wait_until(
        lambda: release.api.request("GET", release.path("ConfigMap", AGENT)).is_success, "the ConfigMap"
    )


def test_a_stopped_operator_releases_its_lease_immediately(release: OperatorRelease, start: Start) -> None:
    first = start("--lease-duration=10m").wait_leads()
    second = start("--lease-duration=5s")
    assert not second.leads()
    assert first.program.stop() == 0
    # Immediately, not after the ten minutes of the first operator's Lease.
    second.wait_leads()


@pytest.mark.parametrize("phase", PHASES["operator-that-acts"])
def test_a_leader_stops_cleanly_on_sigterm_in_every_phase(
    release: OperatorRelease, start: Start, phase: str
) -> None:
    release.apply("GpuMonitor", "main", {})
    # For phases that repeat: at the second occurrence.
    times = "2" if phase in ("applying-an-object", "renewing-the-lease") else "1"
    operator = start(program=(str(SIGTERM_IN_PHASE), f"operator-that-acts/{phase}", times))
    assert operator.program.process.wait(PATIENCE) == 0
    operator.program.stop()
    assert not [line for line in operator.program.lines if "Traceback" in line]
    second = start("--lease-duration=10m").wait_leads()
    assert len(release.wait_applied("GpuMonitor", "main")) > 5
    assert second.value('gpuledger_operator_reconciles_total{result="error"}') == 0


def test_an_operator_without_the_lease_stops_acting(release: OperatorRelease, start: Start) -> None:
    operator = start().wait_leads()
    name = release.deployment["metadata"]["name"]
    taken = release.api.call("GET", f"{LEASE}/{name}")
    taken["spec"] |= {"holderIdentity": "another-operator", "leaseDurationSeconds": 3600}
    wait_until(lambda: _replace_lease(release, name, taken), "the Lease to be taken")
    wait_until(lambda: not operator.leads(), "the operator to notice")
    release.apply("GpuMonitor", "main", {})
    release.api.call("DELETE", f"{LEASE}/{name}")
    operator.wait_leads()
    release.wait_applied("GpuMonitor", "main")


def _replace_lease(release: OperatorRelease, name: str, taken: dict[str, object]) -> bool:
    found = release.api.call("GET", f"{LEASE}/{name}")
    body = {**found, "spec": taken["spec"]}
    return release.api.request("PUT", f"{LEASE}/{name}", body).is_success


def test_an_operator_continues_after_an_outage_of_the_api_server(
    release: OperatorRelease, start: Start, control_plane: ControlPlane
) -> None:
    operator = start().wait_leads()
    release.apply("GpuMonitor", "main", {})
    release.wait_applied("GpuMonitor", "main")
    with control_plane.server_stopped():
        wait_until(lambda: not operator.leads(), "the Lease to be given up")
    operator.wait_leads()
    release.api.call("DELETE", release.path("ConfigMap", AGENT))
    wait_until(
        lambda: release.api.request("GET", release.path("ConfigMap", AGENT)).is_success, "the ConfigMap"
    )


def test_objects_of_an_older_version_are_upgraded(release: OperatorRelease, start: Start) -> None:
    written = release.config.read_text()
    config = yaml.safe_load(written)
    try:
        release.config.write_text(yaml.safe_dump({**config, "image": "gpuledger:older"}))
        older = start().wait_leads()
        release.apply("GpuMonitor", "main", {})
        made = release.wait_applied("GpuMonitor", "main")
        older.kill()
        # The older version also created another object and set another field.
        known = release.get("ConfigMap", AGENT)["metadata"]
        metadata = {
            "name": "gpumonitor-main-former",
            "labels": known["labels"],
            "ownerReferences": known["ownerReferences"],
        }
        release.api.call("POST", f"api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": metadata})
        _set_as_operator(release, known, "former")
        release.config.write_text(yaml.safe_dump({**config, "image": "gpuledger:newer"}))
        start().wait_leads()
        wait_until(lambda: release.managed_objects() == made, "the obsolete object to be deleted")
        wait_until(lambda: _image(release) == "gpuledger:newer", "the newer image")
        assert "former" not in release.get("ConfigMap", AGENT)["metadata"]["labels"]
    finally:
        release.config.write_text(written)


def _set_as_operator(release: OperatorRelease, known: dict[str, Any], label: str) -> None:
    """Set another label with the field manager of the operator."""
    metadata = {
        "name": known["name"],
        "namespace": NAMESPACE,
        "labels": {**known["labels"], label: "yes"},
        "ownerReferences": known["ownerReferences"],
    }
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    path = release.path("ConfigMap", AGENT)
    answer = httpx.patch(
        f"{release.plane.url}{path}",
        params={"fieldManager": "gpuledger-operator", "force": "true"},
        content=json.dumps(body),
        headers={
            "Content-Type": "application/apply-patch+yaml",
            "Authorization": f"Bearer {release.api.token}",
        },
        verify=ssl.create_default_context(cafile=str(release.plane.ca_file)),
        trust_env=False,
    )
    assert answer.is_success, answer.text


def _image(release: OperatorRelease) -> str:
    (container,) = release.get("DaemonSet", EXPORTER)["spec"]["template"]["spec"]["containers"]
    return str(container["image"])
