"""What the operator writes and reads with the chart's CRDs, on the CRD server of Kubernetes 1.36."""

import re
from collections.abc import Mapping

import pytest

from cluster.control_plane import Client
from documentation import DOCS
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.kubernetes.object_client import ObjectClient, WriteRefused
from gpuledger.operator.judged_spec import AppliedSpec, last_applied_spec, spec_text
from gpuledger.operator.kinds import GPU_MONITOR_KIND
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.reconcile import FINALIZER
from gpuledger.operator.watches import KindWatch
from release.crd_requests import (
    GPU_MONITORS,
    GPUS,
    PATHS,
    delete_crd,
    reconcile,
)
from release.crd_server import CrdServer, Json
from running import wait_until
from unit.operator.support import gpu_monitor

pytestmark = pytest.mark.group("crd-server")


def table(text: str) -> list[list[str]]:
    """The cells of kubectl's output, without the age."""
    return [re.split(r" {2,}", line.strip())[:-1] for line in text.splitlines() if line.strip()]


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
