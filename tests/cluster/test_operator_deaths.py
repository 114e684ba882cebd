"""Operators that die, and several that live: the cluster comes to the same in the end."""

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
from cluster.operators import NAMESPACE, Installed, RunningOperator, installed
from gpuledger.operator.kinds import CLAIM
from integration.told_to_stop import PHASES
from running import wait_until

Start = Callable[..., RunningOperator]
TOLD_TO_STOP = Path(__file__).parent.parent / "integration" / "told_to_stop.py"
KILLED = (str(Path(__file__).parent / "operator_killed.py"),)
AGENT = "gpumonitor-main-agent"
EXPORTER = "gpumonitor-main-exporter"
LEASE = f"apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, folder: Path) -> Iterator[Installed]:
    with installed(control_plane, folder / "deaths") as made:
        yield made


@pytest.fixture
def start(release: Installed) -> Iterator[Start]:
    with release.operators() as starts:
        yield starts
        # Whichever of them acts.
        starts()
        release.delete_all()
    assert release.made() == []


def killed_after(operator: RunningOperator) -> list[str]:
    """`METHOD path` of every write that an operator did not survive."""
    said = "killed after "
    return [line.removeprefix(said) for line in operator.program.lines if line.startswith(said)]


def test_killed_after_each_write_it_makes_all_changes_all_and_deletes_all(
    release: Installed, start: Start
) -> None:
    release.apply("GpuMonitor", "main", {"agent": {"persistence": {"size": "1Gi"}}})
    operator = start(program=KILLED)
    made = release.wait_made("GpuMonitor", "main", 180)
    assert len(made) == 11
    # Finalizer, objects and status: each the last write of a life.
    assert len(killed_after(operator)) >= len(made) + 2

    release.apply("GpuMonitor", "main", {"exporter": {"port": 9500}, "agent": {"enabled": False}})
    release.wait_condition("GpuMonitor", "main", "Available", "False", "Starting", 180)
    wait_until(lambda: not [one for one in release.made() if f"/{AGENT}" in one], "a prune")
    (container,) = release.get("DaemonSet", EXPORTER)["spec"]["template"]["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == 9500

    release.api.call("DELETE", "apis/gpuledger.dev/v1alpha1/gpumonitors/main")
    wait_until(lambda: release.read("GpuMonitor", "main") is None, "the monitor to be gone", 120)
    deletions = [one for one in killed_after(operator) if one.startswith("DELETE")]
    assert len(deletions) >= len(made)


def claim(release: Installed, name: str, labels: dict[str, str]) -> None:
    """As the controller of StatefulSets makes one."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    release.api.call("POST", CLAIM.path(NAMESPACE), body)


@pytest.fixture
def claims(release: Installed) -> Iterator[None]:
    yield
    for one in release.api.call("GET", CLAIM.path(NAMESPACE))["items"]:
        path = CLAIM.path(NAMESPACE, one["metadata"]["name"])
        release.api.ask("PATCH", path, {"metadata": {"finalizers": None}})
        release.api.ask("DELETE", path)


def test_volumes_of_agents_go_with_the_monitor(release: Installed, start: Start, claims: None) -> None:
    start().wait_leads()
    release.apply("GpuMonitor", "main", {"agent": {"persistence": {"size": "1Gi"}}})
    release.wait_made("GpuMonitor", "main")
    chosen = release.get("StatefulSet", AGENT)["spec"]["selector"]["matchLabels"]
    claim(release, f"queue-{AGENT}-0", chosen)
    claim(release, "theirs", {})
    release.delete("GpuMonitor", "main")
    assert release.claims() == ["theirs"]


def test_the_last_good_spec_outlives_the_operator(release: Installed, start: Start) -> None:
    first = start().wait_leads()
    release.apply("GpuMonitor", "main", {})
    made = release.wait_made("GpuMonitor", "main")
    wrong = {"exporter": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}}
    release.apply("GpuMonitor", "main", wrong)
    release.wait_condition("GpuMonitor", "main", "Degraded", "True", "Rejected")
    first.kill()
    release.api.call("DELETE", release.path("Service", EXPORTER))
    start("--status-interval=100ms").wait_leads()
    # The new one knows what was applied, and what runs.
    wait_until(lambda: release.made() == made, "what was deleted meanwhile", 30)
    release.ready("DaemonSet", EXPORTER, 5)

    def counted() -> bool:
        return (release.read("GpuMonitor", "main") or {})["status"].get("exportersReady") == 5

    wait_until(counted, "the new operator to count", 30)
    assert release.made() == made
    assert release.conditions("GpuMonitor", "main")["Degraded"] == ("True", "Rejected")


def test_what_was_changed_while_no_operator_ran_is_repaired(release: Installed, start: Start) -> None:
    first = start().wait_leads()
    release.apply("GpuMonitor", "main", {})
    release.wait_made("GpuMonitor", "main")
    first.kill()
    path = release.path("ConfigMap", AGENT)
    release.api.call("PATCH", path, {"data": {"agent.yaml": "edited"}})
    release.api.call("DELETE", release.path("Service", EXPORTER))
    start().wait_leads()
    wait_until(lambda: release.api.ask("GET", release.path("Service", EXPORTER)).is_success, "the Service")
    wait_until(lambda: release.api.call("GET", path)["data"]["agent.yaml"] != "edited", "the configuration")


def test_of_two_operators_one_acts_and_the_other_takes_over_when_it_is_killed(
    release: Installed, start: Start
) -> None:
    first = start().wait_leads()
    second = start()
    release.apply("GpuMonitor", "main", {})
    release.wait_made("GpuMonitor", "main")
    assert not second.leads()
    assert second.value("gpuledger_operator_objects_applied_total") == 0
    first.kill()
    release.api.call("DELETE", release.path("ConfigMap", AGENT))
    second.wait_leads()
    wait_until(lambda: release.api.ask("GET", release.path("ConfigMap", AGENT)).is_success, "the ConfigMap")


def test_an_operator_that_is_told_to_stop_hands_over_at_once(release: Installed, start: Start) -> None:
    first = start("--lease-duration=10m").wait_leads()
    second = start("--lease-duration=5s")
    assert not second.leads()
    assert first.program.stop() == 0
    # Not after the ten minutes for which the first held it.
    second.wait_leads()


@pytest.mark.parametrize("phase", PHASES["operator-that-acts"])
def test_an_operator_that_acts_ends_well_wherever_it_is_told_to(
    release: Installed, start: Start, phase: str
) -> None:
    release.apply("GpuMonitor", "main", {})
    # Of what is done more than once, the middle.
    times = "2" if phase in ("making-an-object", "renewing-its-lease") else "1"
    operator = start(program=(str(TOLD_TO_STOP), f"operator-that-acts/{phase}", times))
    assert operator.program.process.wait(60) == 0
    operator.program.stop()
    assert not [line for line in operator.program.lines if "Traceback" in line]
    second = start("--lease-duration=10m").wait_leads()
    assert len(release.wait_made("GpuMonitor", "main")) > 5
    assert second.value('gpuledger_operator_reconciles_total{result="error"}') == 0


def test_who_loses_the_lease_acts_no_more(release: Installed, start: Start) -> None:
    operator = start().wait_leads()
    name = release.deployment["metadata"]["name"]
    taken = release.api.call("GET", f"{LEASE}/{name}")
    taken["spec"] |= {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3600}
    wait_until(lambda: _put(release, name, taken), "the Lease to be taken")
    wait_until(lambda: not operator.leads(), "the operator to notice", 30)
    release.apply("GpuMonitor", "main", {})
    release.api.call("DELETE", f"{LEASE}/{name}")
    operator.wait_leads()
    release.wait_made("GpuMonitor", "main")


def _put(release: Installed, name: str, taken: dict[str, object]) -> bool:
    found = release.api.call("GET", f"{LEASE}/{name}")
    body = {**found, "spec": taken["spec"]}
    return release.api.ask("PUT", f"{LEASE}/{name}", body).is_success


def test_the_api_server_may_be_away_for_a_while(
    release: Installed, start: Start, control_plane: ControlPlane
) -> None:
    operator = start().wait_leads()
    release.apply("GpuMonitor", "main", {})
    release.wait_made("GpuMonitor", "main")
    with control_plane.server_away():
        wait_until(lambda: not operator.leads(), "the Lease to be given up", 30)
    operator.wait_leads()
    release.api.call("DELETE", release.path("ConfigMap", AGENT))
    wait_until(lambda: release.api.ask("GET", release.path("ConfigMap", AGENT)).is_success, "the ConfigMap")


def test_what_an_older_version_has_made_becomes_what_this_one_makes(release: Installed, start: Start) -> None:
    written = release.config.read_text()
    config = yaml.safe_load(written)
    try:
        release.config.write_text(yaml.safe_dump({**config, "image": "gpuledger:older"}))
        older = start().wait_leads()
        release.apply("GpuMonitor", "main", {})
        made = release.wait_made("GpuMonitor", "main")
        older.kill()
        # It made one object more, and set one field more.
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
        wait_until(lambda: release.made() == made, "what is not made any more to go")
        wait_until(lambda: _image(release) == "gpuledger:newer", "the newer image")
        assert "former" not in release.get("ConfigMap", AGENT)["metadata"]["labels"]
    finally:
        release.config.write_text(written)


def _set_as_operator(release: Installed, known: dict[str, Any], label: str) -> None:
    """A label more, which belongs to the operator's own field manager."""
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


def _image(release: Installed) -> str:
    (container,) = release.get("DaemonSet", EXPORTER)["spec"]["template"]["spec"]["containers"]
    return str(container["image"])
