"""Specs that are refused although the OpenAPI schema allows them."""

from __future__ import annotations

import pytest

from unit.operator.support import Json, gpu_monitor, parse_resource, rendered, whatap


def whatap_exporter(gpu: Json) -> Json:
    return whatap(k8sAgent={"gpuMonitoring": {"enabled": True, **gpu}})


GPU = {"nvidia.com/gpu": 1}
TAKING: dict[str, tuple[Json, str]] = {
    "limits": (
        gpu_monitor({"exporter": {"resources": {"limits": GPU}}}),
        "spec.exporter.resources.limits.nvidia.com/gpu",
    ),
    "requests": (
        gpu_monitor({"exporter": {"resources": {"requests": GPU}}}),
        "spec.exporter.resources.requests.nvidia.com/gpu",
    ),
    "an instance": (
        gpu_monitor({"exporter": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}}),
        "spec.exporter.resources.limits.nvidia.com/mig-1g.10gb",
    ),
    "by another device plugin": (
        gpu_monitor({"exporter": {"resources": {"limits": {"example.com/vgpu": 1}}}}),
        "spec.exporter.resources.limits.example.com/vgpu",
    ),
    "an agent": (
        gpu_monitor({"agent": {"resources": {"limits": GPU}}}),
        "spec.agent.resources.limits.nvidia.com/gpu",
    ),
    "a WhatapAgent": (
        whatap_exporter({"resources": {"limits": GPU}}),
        "spec.features.k8sAgent.gpuMonitoring.resources.limits.nvidia.com/gpu",
    ),
    "a WhatapAgent's agent": (
        whatap(openAgent={"enabled": True, "resources": {"limits": GPU}}),
        "spec.features.openAgent.resources.limits.nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize("case", TAKING)
def test_a_request_for_a_gpu_is_refused(case: str) -> None:
    resource, path = TAKING[case]
    (problem,) = parse_resource(resource).problems
    assert problem.path == path
    assert "leave it out" in problem.message


def test_cpu_memory_and_zero_devices_are_accepted() -> None:
    amounts = {
        "nvidia.com/gpu": 0,
        "cpu": "100m",
        "memory": "64Mi",
        "ephemeral-storage": "1Gi",
        "hugepages-2Mi": "4Mi",
    }
    assert parse_resource(gpu_monitor({"exporter": {"resources": {"limits": amounts}}})).problems == ()


LOGIN = [{"url": "https://store/write"}, {"url": "https://ann:hunter2@store/write"}]
OPEN: dict[str, tuple[Json, str]] = {
    "a GpuMonitor": (gpu_monitor({"agent": {"remoteWrite": LOGIN}}), "spec.agent.remoteWrite[1].url"),
    "a WhatapAgent": (
        whatap(openAgent={"enabled": True, "remoteWrite": LOGIN}),
        "spec.features.openAgent.remoteWrite[1].url",
    ),
    "a name alone": (
        gpu_monitor({"agent": {"remoteWrite": [{"url": "http://ann@store/"}]}}),
        "spec.agent.remoteWrite[0].url",
    ),
}


@pytest.mark.parametrize("case", OPEN)
def test_credentials_in_a_url_are_refused_and_not_repeated(case: str) -> None:
    resource, path = OPEN[case]
    (problem,) = rendered(resource).problems
    assert problem.path == path
    assert "names a Secret" in problem.message
    assert "hunter2" not in str(problem)


def test_credentials_in_the_operators_receiver_are_refused_with_their_path() -> None:
    (problem,) = rendered(gpu_monitor(), default_remote_write=tuple(LOGIN)).problems
    assert problem.path == "operator.defaultRemoteWrite[1].url"


@pytest.mark.parametrize("url", ["http://store/write?user=a@b", "http://store/a@b", "http://["])
def test_an_at_sign_elsewhere_is_accepted(url: str) -> None:
    assert rendered(gpu_monitor({"agent": {"remoteWrite": [{"url": url}]}})).problems == ()
