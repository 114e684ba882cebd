"""Labels of the pod or job that holds a GPU: only a device with exactly one holder has them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from builders import gpu, node_state, process, reading, snapshot
from gpuledger.exposition.merging import check_family_specs
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import LedgerState, OwnerRow
from gpuledger.model.workload import Allocation, Workload
from unit.dialects.dcgm.support import CARD, OTHER, POD, Labels, dialect, one_gpu, posted, rows


def holder_labels(seen: NodeState, **settings: object) -> Labels:
    ((labels, _),) = rows(dialect("150, gauge, x", hostname="", **settings), seen, "DCGM_FI_DEV_GPU_TEMP")
    device = {"gpu", "UUID", "pci_bus_id", "device", "modelName"}
    return {key: value for key, value in labels.items() if key not in device}


def test_a_pod_with_an_allocated_gpu_and_no_process_is_the_holder() -> None:
    assert holder_labels(posted(one_gpu(), (CARD, OTHER)))["pod"] == "notebook-0"


def test_a_pod_with_a_process_and_no_allocation_is_the_holder() -> None:
    assert holder_labels(posted(one_gpu(process(CARD, workload=POD))))["pod"] == "train-0"


def test_a_gpu_shared_by_two_pods_has_no_pod_label() -> None:
    for seen in (
        posted(one_gpu(), (CARD, POD), (CARD, OTHER)),
        posted(one_gpu(process(CARD, 1, workload=OTHER), process(CARD, 2, workload=POD))),
    ):
        assert holder_labels(seen) == {}


@pytest.mark.parametrize(
    ("what", "stranger"),
    [
        ("a pod without an allocation", process(CARD, 1, workload=OTHER)),
        (
            "a monitoring tool that computes",
            process(CARD, 1, workload=Workload("unit", unit="dcgm.service")),
        ),
        ("a user", process(CARD, 1, workload=Workload("user", user="alice"))),
        ("a container", process(CARD, 1, workload=Workload("container", container="web"))),
        ("a display server", process(CARD, 1, types="G", workload=Workload("unit", unit="gdm.service"))),
        ("a batch job", process(CARD, 1, workload=Workload("slurm", job="7"))),
    ],
)
def test_a_process_of_others_does_not_change_the_labels_of_the_allocation(
    what: str, stranger: GpuProcess
) -> None:
    allocated = holder_labels(posted(one_gpu(), (CARD, POD)))
    assert holder_labels(posted(one_gpu(stranger), (CARD, POD))) == allocated, what
    both = one_gpu(stranger, process(CARD, 2, workload=POD))
    assert holder_labels(posted(both, (CARD, POD))) == allocated, what


@pytest.mark.parametrize("kind", ["unit", "user", "container"])
def test_a_process_of_the_host_does_not_remove_the_label_of_a_running_pod(kind: str) -> None:
    stranger = process(CARD, 1, workload=Workload(kind, unit="x.service", user="ann", container="web"))
    seen = posted(one_gpu(stranger, process(CARD, 2, workload=POD)))
    assert holder_labels(seen)["pod"] == "train-0"


def test_an_allocation_that_keeps_nothing_has_no_holder() -> None:
    seen = one_gpu(process(CARD, 2, workload=POD))
    monitoring = Allocation(CARD, OTHER, "dra", "claim", Fraction(0))
    seen = replace(seen, allocations=(monitoring,))
    assert holder_labels(node_state(seen, Ledger(LedgerSettings()).post(seen)))["pod"] == "train-0"


def test_a_process_without_a_known_owner_does_not_remove_the_pod_label() -> None:
    assert holder_labels(posted(one_gpu(process(CARD, missing="not_found")), (CARD, POD)))["pod"] == "train-0"


def test_the_container_label_is_the_container_with_the_allocation() -> None:
    sidecar = replace(POD, container="sidecar")
    both = one_gpu(process(CARD, 1, workload=POD), process(CARD, 2, workload=sidecar))
    assert holder_labels(posted(both, (CARD, POD)))["container"] == "main"
    assert holder_labels(posted(both)) == {"namespace": "ml", "pod": "train-0"}


def test_uid_and_labels_of_the_pod_are_optional() -> None:
    seen = posted(one_gpu(), (CARD, POD))
    assert holder_labels(seen, pod_uid=True, pod_labels=True) == {
        "container": "main",
        "namespace": "ml",
        "pod": "train-0",
        "pod_uid": "uid-0",
        "app_kubernetes_io_name": "t",
        "team": "v",
    }


def test_without_an_allocation_uid_and_labels_are_those_of_the_running_pod() -> None:
    """A pod with the same name and another uid, on another GPU, is a former pod."""
    card, beside = CARD, gpu(1)
    former = replace(POD, pod_uid="uid-9", labels=(("team", "w"),))
    seen = posted(
        snapshot(
            reading(beside, process(beside, 1, workload=former)),
            reading(card, process(card, 2, workload=POD), values={q.TEMPERATURE: 61.0}),
        )
    )
    labels = holder_labels(seen, pod_uid=True, pod_labels=True)
    assert (labels["pod_uid"], labels["team"]) == ("uid-0", "v")


def test_specs_have_the_optional_holder_labels_if_enabled() -> None:
    (spec,) = dialect("150, gauge, x", pod_uid=True, job_label=True).specs[:1]
    assert {"container", "namespace", "pod", "pod_uid", "hpc_job"} <= set(spec.labels)
    (spec,) = dialect("150, gauge, x").specs[:1]
    assert not {"pod_uid", "hpc_job"} & set(spec.labels)


def test_pod_labels_never_replace_device_labels() -> None:
    hostile = (("UUID", "x"), ("__a", "x"), ("gpu", "9"), ("pod", "evil"), ("1st", "y"))
    seen = posted(one_gpu(), (CARD, replace(POD, labels=hostile)))
    dcgm = dialect("150, gauge, x", pod_labels=True)
    ((labels, _),) = rows(dcgm, seen, "DCGM_FI_DEV_GPU_TEMP")
    assert (labels["gpu"], labels["UUID"], labels["pod"]) == ("0", "GPU-0", "train-0")
    assert (labels["_a"], labels["_1st"]) == ("x", "y")
    check_family_specs(family.spec for family in dcgm.families(seen))


def test_the_only_job_of_a_batch_system_is_hpc_job_if_enabled() -> None:
    job = Workload("slurm", job="815", user="alice")
    assert holder_labels(posted(one_gpu(), (CARD, job)), job_label=True) == {"hpc_job": "815"}
    assert holder_labels(posted(one_gpu(), (CARD, job))) == {}
    two = posted(one_gpu(), (CARD, job), (CARD, replace(job, job="816")))
    assert holder_labels(two, job_label=True) == {}


def test_a_former_owner_is_not_the_holder() -> None:
    gone = OwnerRow(CARD, ("pod", "ml", "train-0", "main", "", ""), False, None, 9.0, 0.0)
    assert holder_labels(node_state(one_gpu(), LedgerState(owners=(gone,)))) == {}
