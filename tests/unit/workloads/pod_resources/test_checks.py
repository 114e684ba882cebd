"""Checks of `doctor` for the kubelet's device allocations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from builders import gpu
from gpuledger.app.diagnosis import run_checks
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from gpuledger.workloads.pod_resources.checks import pod_resources_checks
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimedPart, ResourceClaims
from unit.workloads.pod_resources.kubelet_server import kubelet, listed, pod


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


NO_ERROR: tuple[ResourceClaims, GpuledgerError | None] = (NO_CLAIMS, None)


def found(folder: Path, claims: Any = NO_ERROR) -> dict[str, list[Finding]]:
    settings = PodResourcesSettings(str(folder / "k.sock"), str(folder / "checkpoint"))
    checks = pod_resources_checks(settings, lambda: (gpu(0, minor=0),), claims=lambda _: claims)
    findings: dict[str, list[Finding]] = {}
    for finding in run_checks(checks):
        findings.setdefault(finding.check, []).append(finding)
    return findings


def verdicts(findings: list[Finding]) -> list[Verdict]:
    return [one.verdict for one in findings]


def test_kubernetes_off_is_one_skipped_check() -> None:
    (check,) = pod_resources_checks(PodResourcesSettings(), enabled=False)
    assert verdicts(list(check.run())) == [Verdict.SKIPPED]


def test_a_responding_kubelet_with_a_local_gpu_works(folder: Path) -> None:
    devices = [wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-0"])]
    allocatable = wire.AllocatableResourcesResponse(devices=devices).SerializeToString()
    body = listed(pod("a", "GPU-0"))
    with kubelet(folder / "k.sock", List=lambda _: body, GetAllocatableResources=lambda _: allocatable):
        findings = found(folder)
    assert verdicts(findings["kubernetes.pod_resources"]) == [Verdict.WORKS, Verdict.WORKS]
    assert findings["kubernetes.pod_resources"][1].why == "1 nvidia.com/gpu"
    assert verdicts(findings["kubernetes.checkpoint"]) == [Verdict.SKIPPED]
    assert findings["kubernetes.devices"][0].why == "1 are GPUs of this machine"


def test_unmatched_device_ids_are_warned_about_with_their_form(folder: Path) -> None:
    body = listed(pod("a", "GPU-7", "nvidia9"), pod("b", "x", resource="vendor.com/nic"))
    with kubelet(folder / "k.sock", List=lambda _: body):
        findings = found(folder)["kubernetes.devices"]
    assert verdicts(findings) == [Verdict.WARNING, Verdict.WARNING, Verdict.SKIPPED]
    assert "parsed as nvidiaN: nvidia9" in findings[0].why
    assert "parsed as uuid: GPU-7" in findings[1].why
    assert "vendor.com/nic" in findings[2].why


def by_claim(*names: str) -> bytes:
    one = wire.ClaimResource(driver_name="gpu.nvidia.com", pool_name="n", device_name="gpu-0")
    held = [
        wire.DynamicResource(claim_name=name, claim_namespace="team", claim_resources=[one])
        for name in names or ("gpus",)
    ]
    main = wire.ContainerResources(name="main", dynamic_resources=held)
    return listed(wire.PodResources(name="a", namespace="team", containers=[main]))


def test_claims_for_monitoring_are_listed(folder: Path) -> None:
    read = {("team", "gpus"): {("gpu.nvidia.com", "n", "gpu-0", ""): ClaimedPart(True, {})}}
    with kubelet(folder / "k.sock", List=lambda _: by_claim()):
        (finding,) = found(folder, (ResourceClaims(read), None))["kubernetes.dra"]
    assert (finding.verdict, finding.why) == (Verdict.WORKS, "for monitoring, hold nothing: team/gpus")


def test_claims_that_cannot_be_read_are_a_warning_with_the_remedy(folder: Path) -> None:
    with kubelet(folder / "k.sock", List=lambda _: by_claim()):
        finding, _ = found(folder, (NO_CLAIMS, GpuledgerError("403; add the rule")))["kubernetes.dra"]
    assert (finding.verdict, finding.remedy) == (Verdict.WARNING, "add the rule")
    assert "claims with adminAccess hold their devices" in finding.why


def test_claims_that_may_be_for_monitoring_are_a_warning(folder: Path) -> None:
    """One of two claims of the only GPU is for monitoring; another claim was read."""
    read = {("team", "all"): {("gpu.nvidia.com", "n", "gpu-0", ""): ClaimedPart(True, {})}}
    claims = (ResourceClaims(read), GpuledgerError("403; add the rule"))
    with kubelet(folder / "k.sock", List=lambda _: by_claim("one", "two", "all")):
        _, known, unknown = found(folder, claims)["kubernetes.dra"]
    assert (known.verdict, known.why) == (Verdict.WORKS, "for monitoring, hold nothing: team/all")
    assert unknown.verdict is Verdict.WARNING
    assert "team/one, team/two" in unknown.why
    assert "unobserved" in unknown.why


def test_dra_without_resource_slices_is_a_warning(folder: Path) -> None:
    with kubelet(folder / "k.sock", List=lambda _: by_claim()):
        (finding,) = found(folder)["kubernetes.dra"]
    assert finding.verdict is Verdict.WARNING
    assert "rbac.yaml" in finding.remedy


def test_without_a_socket_the_checkpoint_is_a_warning_with_the_remedy(folder: Path) -> None:
    entry = {
        "PodUID": "u1",
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": ["GPU-0"],
    }
    (folder / "checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    findings = found(folder)
    assert verdicts(findings["kubernetes.pod_resources"]) == [Verdict.FAILS]
    assert findings["kubernetes.pod_resources"][0].remedy.startswith("mount the node's")
    assert verdicts(findings["kubernetes.checkpoint"]) == [Verdict.WARNING]
    assert verdicts(findings["kubernetes.devices"]) == [Verdict.WORKS]


def test_without_socket_and_checkpoint_the_device_check_is_skipped_with_its_cause(folder: Path) -> None:
    findings = found(folder)
    assert verdicts(findings["kubernetes.checkpoint"]) == [Verdict.FAILS]
    assert findings["kubernetes.devices"][0].why == "because of: pod-resources socket"
