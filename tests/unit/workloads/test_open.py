"""The maps that the settings ask for, and what they answer together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders import FakeClock, gpu
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.files import NO_MAP
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.open import Machine, OwnerIndexSettings, open_job_map, open_owner_indexes, open_slurm
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.slurm.job import NO_JOBS
from gpuledger.workloads.slurm.settings import SlurmSettings
from running import wait_until
from slurm_tree import Machine as SlurmMachine

CARD = gpu(0, minor=3)
UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"


def opened(
    tmp_path: Path,
    *,
    kubernetes: KubernetesSettings | None = None,
    jobs: Path | None = None,
    slurm: SlurmSettings | None = None,
    procfs: str = "/proc",
    clock: FakeClock | None = None,
) -> OwnerIndexes:
    settings = OwnerIndexSettings(
        kubernetes or KubernetesSettings(enabled="false"),
        PodResourcesSettings(socket=str(tmp_path / "none.sock"), checkpoint=str(tmp_path / "checkpoint")),
        slurm or SlurmSettings(enabled="false"),
        JobMapSettings(directory=str(jobs or "")),
        ContainerSettings(docker_socket="", podman_socket=""),
    )
    machine = Machine(procfs, str(tmp_path / "sys"), str)
    return open_owner_indexes(settings, machine, {}, clock or FakeClock())


@contextmanager
def started(maps: OwnerIndexes) -> Iterator[None]:
    """While it lasts, the maps are kept; each was read once."""
    maps.start()
    try:
        maps.wait(10)
        yield
    finally:
        maps.stop()


def test_a_machine_of_nobody_has_no_maps(tmp_path: Path) -> None:
    maps = opened(tmp_path)
    assert (len(maps), maps.health(), maps.allocations((CARD,))) == (0, (), ())


def test_a_node_without_an_api_server_reads_log_files_and_the_kubelet(tmp_path: Path) -> None:
    logs = KubernetesSettings(enabled="true", pod_logs=str(tmp_path))
    assert [one.name for one in opened(tmp_path, kubernetes=logs).health()] == ["pod_logs", "pod_resources"]


def test_what_reads_log_files_tells_when_it_last_did(tmp_path: Path) -> None:
    for folder in ("pods", "containers"):
        (tmp_path / folder).mkdir()
    maps = opened(tmp_path, kubernetes=KubernetesSettings(enabled="true", pod_logs=str(tmp_path)))
    maps.start()
    try:
        maps.wait(10)
        logs, *_ = maps.health()
    finally:
        maps.stop()
    assert (logs.success, logs.last_success) == (True, FakeClock().unix())


def test_maps_of_jobs_have_names_and_are_empty_until_they_are_read(tmp_path: Path) -> None:
    slurm = open_slurm(SlurmSettings(), clock=FakeClock())
    files = open_job_map(JobMapSettings(directory=str(tmp_path)), clock=FakeClock())
    assert files is not None
    assert (slurm.name, slurm.value, files.name, files.value) == ("slurm", NO_JOBS, "job_map", NO_MAP)


def test_asking_for_an_api_server_where_there_is_none_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kubernetes-api or --kubeconfig"):
        opened(tmp_path, kubernetes=KubernetesSettings(enabled="true", names="api"))


def test_files_of_a_prolog_hand_out_devices_by_minor(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "3").write_text("815\n")
    maps = opened(tmp_path, jobs=folder)
    with started(maps):
        (handed,) = maps.allocations((CARD,))
    assert (handed.device, handed.workload.job, handed.found_by) == (CARD, "815", "job_map")


def test_a_job_of_slurm_has_the_devices_that_its_processes_were_given(tmp_path: Path) -> None:
    machine = SlurmMachine(tmp_path)
    machine.job("815", SLURM_JOB_ID="815", SLURM_JOB_GPUS="0", SLURM_STEP_GPUS="0")
    machine.gres_conf.write_text("Name=gpu File=/dev/nvidia3\n")
    slurm = SlurmSettings(enabled="true", cgroup_root=str(machine.cgroup), gres_conf=str(machine.gres_conf))
    maps = opened(tmp_path, slurm=slurm, procfs=str(machine.proc))
    with started(maps):
        (handed,) = maps.allocations((CARD,))
    assert (handed.device, handed.workload.job, handed.workload.kind) == (CARD, "815", "slurm")


def test_a_pod_that_nobody_names_holds_its_device_until_its_cgroup_has_gone(tmp_path: Path) -> None:
    entry = {
        "PodUID": UID,
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"0": [CARD.uuid]},
    }
    (tmp_path / "checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    cgroup = tmp_path / f"sys/fs/cgroup/kubepods/pod{UID}"
    cgroup.mkdir(parents=True)
    clock = FakeClock()
    maps = opened(tmp_path, kubernetes=KubernetesSettings(enabled="true", names="none"), clock=clock)
    with started(maps):
        assert [one.workload.pod_uid for one in maps.allocations((CARD,))] == [UID]
        cgroup.rmdir()

        def gone() -> bool:
            maps.nudge()
            clock.advance(10)
            return not maps.allocations((CARD,))

        wait_until(gone, "the end of the allocation")


def test_two_words_on_one_job_are_one_allocation_and_two_pods_are_two() -> None:
    job = Workload(kind="slurm", job="815")
    slurm = (Allocation(CARD, job, "slurm_cgroup"),)
    files = (Allocation(CARD, job, "job_map"),)
    pods = tuple(Allocation(CARD, Workload(kind="pod", pod=name), "pod_resources") for name in ("a", "b"))
    maps = OwnerIndexes(handed=[lambda _: slurm, lambda _: files, lambda _: pods])
    assert maps.allocations((CARD,)) == (*slurm, *pods)


def test_what_was_handed_out_is_the_same_object_while_no_map_changes() -> None:
    parts = [(Allocation(CARD, Workload(kind="slurm", job="1")),)]
    maps = OwnerIndexes(handed=[lambda _: parts[0]])
    first = maps.allocations((CARD,))
    assert maps.allocations((CARD,)) is first
    parts[0] = ()
    assert maps.allocations((CARD,)) == ()


class Slow:
    """A map that is read at the third look at its health."""

    def __init__(self) -> None:
        self.looks = 0
        self.nudges = 0

    @property
    def health(self) -> IndexHealth:
        self.looks += 1
        return IndexHealth("slow", success=self.looks > 2, error="" if self.looks > 2 else "not read yet")

    def start(self) -> None: ...

    def stop(self, patience: float = 2.0) -> None: ...

    def nudge(self) -> None:
        self.nudges += 1


def test_who_looks_but_once_waits_for_maps_to_be_read() -> None:
    slow = Slow()
    OwnerIndexes([slow]).wait(10)
    assert slow.looks == 3


def test_a_map_that_hangs_is_not_waited_for_without_end() -> None:
    slow = Slow()
    slow.looks = -1000
    OwnerIndexes([slow]).wait(0.05)
    assert not slow.health.success
