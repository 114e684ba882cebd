"""Pods that reserve a device for others."""

from __future__ import annotations

import pytest

from gpuledger.model.workload import Workload
from gpuledger.workloads.pods.placeholder import is_placeholder


@pytest.mark.parametrize(
    ("namespace", "pod", "container", "expected"),
    [
        ("kai-resource-reservation", "gpu-reservation-n1-zz9", "resource-reservation", True),
        ("runai-reservation", "runai-reservation-gpu-n1-zz9", "resource-reservation", True),
        ("runai-reservation", "runai-reservation-gpu-n1-zz9", "", True),
        ("kai-scale-adjust", "scaling-pod-0", "main", True),
        # Names that each user may choose.
        ("shop", "gpu-reservation-n1-zz9", "resource-reservation", False),
        ("shop", "runai-reservation-gpu-n1-zz9", "resource-reservation", False),
        ("shop", "gpu-reservation-service", "main", False),
        ("shop", "rank-a", "resource-reservation", False),
        ("shop", "rank-a", "main", False),
    ],
)
def test_reservation_pods_of_fraction_schedulers(
    namespace: str, pod: str, container: str, expected: bool
) -> None:
    assert is_placeholder(Workload("pod", namespace, pod, container)) is expected


def test_only_a_pod_is_a_placeholder() -> None:
    assert not is_placeholder(Workload("slurm", "kai-resource-reservation", job="7"))
