"""The owner indexes that the settings enable, and their combined allocations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from builders import FakeClock, gpu
from gpuledger.host.owner_index import PolledIndex
from gpuledger.host.settings import HostSettings
from gpuledger.model.errors import UsageError
from gpuledger.workloads import owner_index_setup
from gpuledger.workloads.job_map.job_map_reader import EMPTY_JOB_MAP
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.owner_index_setup import open_job_map_index, open_owner_indexes, open_slurm_index
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from gpuledger.workloads.slurm.jobs import NO_JOBS
from gpuledger.workloads.slurm.settings import SlurmSettings
from running import PATIENCE, wait_until
from slurm_tree import Machine as SlurmMachine
from unit.workloads.pod_resources.kubelet_server import kubelet, listed

CARD = gpu(0, minor=3)
UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"


def opened(
    tmp_path: Path,
    clock: FakeClock | None = None,
    **more: str,
) -> OwnerIndexes:
    """The indexes with the settings `more`; the name `slurm_enabled` stands for the key `slurm.enabled`."""
    values = {
        "kubernetes.enabled": "false",
        "kubernetes.pod_resources_socket": str(tmp_path / "none.sock"),
        "kubernetes.device_plugin_checkpoint": str(tmp_path / "checkpoint"),
        "slurm.enabled": "false",
        "containers.docker_socket": "",
        "containers.podman_socket": "",
        "sysfs": str(tmp_path / "sys"),
    }
    sections = ("kubernetes_", "slurm_", "job_map_")
    for name, value in more.items():
        section = next((word for word in sections if name.startswith(word)), "")
        values[section.removesuffix("_") + "." * bool(section) + name.removeprefix(section)] = value
    return open_owner_indexes(values, "node-1", {}, clock or FakeClock())


@contextmanager
def started(indexes: OwnerIndexes) -> Iterator[None]:
    """Run the threads of the indexes; each index has been read once."""
    indexes.start()
    try:
        indexes.wait(PATIENCE)
        yield
    finally:
        indexes.stop()


def test_a_plain_machine_has_no_indexes(tmp_path: Path) -> None:
    indexes = opened(tmp_path)
    assert (len(indexes), indexes.health(), indexes.allocations((CARD,))) == (0, (), ())


def test_a_node_without_an_api_server_reads_log_files_and_the_kubelet(tmp_path: Path) -> None:
    indexes = opened(tmp_path, kubernetes_enabled="true", kubernetes_pod_logs=str(tmp_path))
    assert [one.name for one in indexes.health()] == ["pod_logs", "pod_resources"]


def test_the_log_file_index_reports_its_last_success(tmp_path: Path) -> None:
    for folder in ("pods", "containers"):
        (tmp_path / folder).mkdir()
    indexes = opened(tmp_path, kubernetes_enabled="true", kubernetes_pod_logs=str(tmp_path))
    indexes.start()
    try:
        indexes.wait(PATIENCE)
        logs, *_ = indexes.health()
    finally:
        indexes.stop()
    assert (logs.success, logs.last_success) == (True, FakeClock().unix())


def test_job_indexes_are_named_and_empty_before_the_first_read(tmp_path: Path) -> None:
    slurm = open_slurm_index(SlurmSettings(enabled="true"), HostSettings(), FakeClock())
    files = open_job_map_index(JobMapSettings(directory=str(tmp_path)), FakeClock())
    assert slurm is not None
    assert files is not None
    assert (slurm.name, slurm.value, files.name, files.value) == ("slurm", NO_JOBS, "job_map", EMPTY_JOB_MAP)


def test_names_from_a_missing_api_server_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kubernetes-api or --kubeconfig"):
        opened(tmp_path, kubernetes_enabled="true", kubernetes_names="api")


def test_prolog_files_allocate_devices_by_minor_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "3").write_text("815\n")
    (folder / "notes").write_text("816\n")
    indexes = opened(tmp_path, job_map_dir=str(folder))
    with started(indexes):
        (allocation,) = indexes.allocations((CARD,))
    assert (allocation.device, allocation.workload.job, allocation.found_by) == (CARD, "815", "job_map")
    assert "ignored" in caplog.text and "notes" in caplog.text


def test_a_job_of_slurm_has_the_devices_that_its_processes_were_given(tmp_path: Path) -> None:
    host = SlurmMachine(tmp_path)
    host.job("815", SLURM_JOB_ID="815", SLURM_JOB_GPUS="0", SLURM_STEP_GPUS="0")
    host.gres_conf.write_text("Name=gpu File=/dev/nvidia3\n")
    indexes = opened(
        tmp_path,
        slurm_enabled="true",
        slurm_cgroup_root=str(host.cgroup),
        slurm_gres_conf=str(host.gres_conf),
        procfs=str(host.proc),
    )
    with started(indexes):
        (allocation,) = indexes.allocations((CARD,))
    assert (allocation.device, allocation.workload.job, allocation.workload.kind) == (CARD, "815", "slurm")


def test_a_pod_without_a_name_keeps_its_device_until_its_cgroup_is_removed(tmp_path: Path) -> None:
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
    indexes = opened(tmp_path, clock, kubernetes_enabled="true", kubernetes_names="none")
    with started(indexes):
        assert [one.workload.pod_uid for one in indexes.allocations((CARD,))] == [UID]
        cgroup.rmdir()

        def gone() -> bool:
            indexes.nudge()
            clock.advance(10)
            return not indexes.allocations((CARD,))

        wait_until(gone, "the end of the allocation")


def test_the_job_mapping_directory_is_a_source_of_allocations_that_the_user_named(tmp_path: Path) -> None:
    assert opened(tmp_path).has_all_allocations(0.0)
    assert not opened(tmp_path, job_map_dir=str(tmp_path / "none")).has_all_allocations(0.0)


def test_claims_that_cannot_be_read_leave_the_time_of_their_gpu_unobserved() -> None:
    """Two claims of the only GPU, one of which is for monitoring: which one is not known."""
    clock = FakeClock()
    with TemporaryDirectory(dir="/tmp") as made:
        path = Path(made)
        indexes = opened(
            path,
            clock,
            kubernetes_enabled="true",
            kubernetes_names="none",
            kubernetes_api="http://127.0.0.1:9",
            kubernetes_pod_resources_socket=str(path / "k.sock"),
        )
        found = []
        for names in ((), ("one",), ("one", "two")):
            claims = [
                wire.DynamicResource(
                    claim_name=name,
                    claim_resources=[wire.ClaimResource(driver_name="gpu.nvidia.com", device_name="gpu-3")],
                )
                for name in names
            ]
            main = wire.ContainerResources(name="main", dynamic_resources=claims)
            train = listed(wire.PodResources(name="train-0", namespace="ml", containers=[main]))
            with kubelet(path / "k.sock", List=lambda _, train=train: train):
                read_now(indexes)
            for _ in range(2):
                allocations = indexes.allocations((CARD,))
                found.append((len(allocations), indexes.has_all_allocations(clock.unix())))
                # The API server does not respond.
                claim_index = next(one for one in indexes._indexes if one.name == "resource_claims")
                assert isinstance(claim_index, PolledIndex)
                claim_index.refresh()
    nothing, pending, read, unknown = (0, True), (0, False), (1, True), (0, False)
    assert found == [nothing, nothing, pending, read, unknown, unknown]


def test_a_gpu_allocated_by_dra_is_unobserved_once_only_the_checkpoint_is_read() -> None:
    """The checkpoint is that of device plugins: that it does not have a GPU says nothing about claims."""
    clock, driver = FakeClock(), "gpu.nvidia.com"
    with TemporaryDirectory(dir="/tmp") as made:
        path = Path(made)
        (path / "checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": None}}))
        indexes = opened(
            path,
            clock,
            kubernetes_enabled="true",
            kubernetes_names="none",
            kubernetes_pod_resources_socket=str(path / "k.sock"),
            kubernetes_device_plugin_checkpoint=str(path / "checkpoint"),
        )
        claim = wire.ClaimResource(driver_name=driver, device_name="gpu-3")
        claims = [wire.DynamicResource(claim_name="one", claim_resources=[claim])]
        main = wire.ContainerResources(name="main", dynamic_resources=claims)
        train = listed(wire.PodResources(name="train-0", namespace="ml", containers=[main]))
        with kubelet(path / "k.sock", List=lambda _: train):
            read_now(indexes)
        found = []
        for seconds in (0, 299, 2):
            clock.advance(seconds)
            read_now(indexes)
            names = [one.workload.pod for one in indexes.allocations((CARD,))]
            found.append((names, indexes.has_all_allocations(clock.unix())))
    assert found == [(["train-0"], True), (["train-0"], True), ([], False)]


CHECKPOINT = json.dumps(
    {
        "Data": {
            "PodDeviceEntries": [
                {
                    "PodUID": UID,
                    "ContainerName": "main",
                    "ResourceName": "nvidia.com/gpu",
                    "DeviceIDs": {"0": [CARD.uuid]},
                }
            ]
        }
    }
)


def auto_kubelet(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> OwnerIndexes:
    """Indexes of a machine on which Kubernetes was detected and no setting names the kubelet."""
    monkeypatch.setattr(owner_index_setup, "_KUBELET_PATHS", frozenset())
    api = "http://127.0.0.1:9"
    return opened(tmp_path, clock, kubernetes_enabled="auto", kubernetes_api=api, kubernetes_names="none")


def read_now(indexes: OwnerIndexes) -> None:
    """Read the indexes that allocate."""
    for one in indexes._allocating:
        assert isinstance(one.source, PolledIndex)
        one.source.refresh()


@pytest.mark.parametrize(
    ("file", "is_configured"),
    [("", False), ("none.sock", True), ("checkpoint", True), ("another.sock", False)],
    ids=["nothing", "a socket", "a checkpoint", "another file"],
)
def test_a_kubelet_that_never_answered_is_configured_once_its_files_have_existed(
    file: str, is_configured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    indexes = auto_kubelet(tmp_path, clock, monkeypatch)
    read_now(indexes)
    assert indexes.has_all_allocations(clock.unix())
    if file:
        (tmp_path / file).touch()
    read_now(indexes)
    assert indexes.has_all_allocations(clock.unix()) is not is_configured
    if file:
        (tmp_path / file).unlink()
    clock.advance(86_400)
    read_now(indexes)
    assert indexes.has_all_allocations(clock.unix()) is not is_configured


@pytest.mark.parametrize(
    "settings",
    [
        {"kubernetes_enabled": "true", "kubernetes_names": "none"},
        {"kubernetes_api": "http://127.0.0.1:9", "kubernetes_enabled": "auto", "kubernetes_names": "none"},
        {"slurm_enabled": "true", "slurm_cgroup_root": "/proc/none"},
        {"job_map_dir": "/proc/none"},
    ],
    ids=["kubelet, enabled", "kubelet, its socket", "slurm", "job map"],
)
def test_a_source_that_the_user_named_and_that_never_answered_is_not_absent(
    settings: dict[str, str], tmp_path: Path
) -> None:
    clock = FakeClock()
    indexes = opened(tmp_path, clock, **settings)
    assert not indexes.has_all_allocations(clock.unix())
    read_now(indexes)
    assert not indexes.has_all_allocations(clock.unix())


def kubelet_machine(tmp_path: Path, clock: FakeClock) -> tuple[OwnerIndexes, Path, Path]:
    """Indexes, what must exist for the source to answer, and the cgroup of the owner."""
    (tmp_path / "checkpoint").write_text(CHECKPOINT)
    cgroup = tmp_path / f"sys/fs/cgroup/kubepods/pod{UID}"
    cgroup.mkdir(parents=True)
    (cgroup.parent / "pod00000000-0000-4000-8000-000000000000").mkdir()
    indexes = opened(tmp_path, clock, kubernetes_enabled="true", kubernetes_names="none")
    return indexes, tmp_path / "checkpoint", cgroup


def slurm_machine(tmp_path: Path, clock: FakeClock) -> tuple[OwnerIndexes, Path, Path]:
    host = SlurmMachine(tmp_path)
    host.job("815", SLURM_JOB_ID="815", SLURM_JOB_GPUS="0", SLURM_STEP_GPUS="0")
    host.gres_conf.write_text("Name=gpu File=/dev/nvidia3\n")
    more = {"slurm_cgroup_root": str(host.cgroup), "slurm_gres_conf": str(host.gres_conf)}
    indexes = opened(tmp_path, clock, slurm_enabled="true", procfs=str(host.proc), **more)
    return indexes, host.cgroup, host.cgroup


def job_map_machine(tmp_path: Path, clock: FakeClock) -> tuple[OwnerIndexes, Path, Path]:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/3").write_text("815\n")
    indexes = opened(tmp_path, clock, job_map_dir=str(tmp_path / "jobs"))
    return indexes, tmp_path / "jobs", tmp_path / "jobs"


def job_map_beside_slurm(tmp_path: Path, clock: FakeClock) -> tuple[OwnerIndexes, Path, Path]:
    """Slurm knows the job, but not its GPUs: the prolog's file names them."""
    host = SlurmMachine(tmp_path)
    host.job("815", SLURM_JOB_ID="815")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/3").write_text("815\n")
    more = {"slurm_cgroup_root": str(host.cgroup), "job_map_dir": str(tmp_path / "jobs")}
    indexes = opened(tmp_path, clock, slurm_enabled="true", procfs=str(host.proc), **more)
    return indexes, tmp_path / "jobs", host.cgroup


@pytest.mark.parametrize(
    ("machine", "stands"),
    [(kubelet_machine, True), (slurm_machine, False), (job_map_machine, False), (job_map_beside_slurm, True)],
)
def test_allocations_of_a_silent_source_stand_for_five_minutes_or_while_the_cgroup_exists(
    machine: Callable[[Path, FakeClock], tuple[OwnerIndexes, Path, Path]], stands: bool, tmp_path: Path
) -> None:
    clock, devices = FakeClock(), (CARD,)
    indexes, answers, cgroup = machine(tmp_path, clock)

    def found(seconds: float = 0.0) -> tuple[int, bool]:
        clock.advance(seconds)
        read_now(indexes)
        allocations = indexes.allocations(devices)
        assert indexes.allocations(devices) is allocations
        return len(allocations), indexes.has_all_allocations(clock.unix())

    assert found() == (1, True)
    hidden = answers.rename(tmp_path / "hidden")
    assert found(299) == (1, True)
    assert found(2) == (int(stands), False)
    if cgroup != answers:
        shown = cgroup.rename(tmp_path / "gone")
        found()
        assert found(31) == (0, False)
        shown.rename(cgroup)
    hidden.rename(answers)
    assert found(10) == (1, True)


def test_a_pod_that_ends_while_the_kubelet_is_silent_keeps_its_device_for_the_five_minutes(
    tmp_path: Path,
) -> None:
    clock, devices = FakeClock(), (CARD,)
    _, answers, cgroup = kubelet_machine(tmp_path, clock)
    for folder in ("pods", "containers"):
        (tmp_path / folder).mkdir()
    logs = str(tmp_path)
    indexes = opened(
        tmp_path, clock, kubernetes_enabled="true", kubernetes_names="logs", kubernetes_pod_logs=logs
    )

    def allocations(seconds: float) -> int:
        clock.advance(seconds)
        # The names of pods change, so that all allocations are matched again.
        (tmp_path / f"pods/ml_new-{clock.now_elapsed:.0f}_{UID[:-2]}{clock.now_elapsed % 100:02.0f}").mkdir()
        for index in indexes._indexes:
            assert isinstance(index, PolledIndex)
            index.refresh()
        return len(indexes.allocations(devices))

    assert allocations(0.0) == 1
    answers.unlink()
    cgroup.rmdir()
    assert [allocations(seconds) for seconds in (10.0, 40.0, 40.0, 200.0, 20.0)] == [1, 1, 1, 1, 0]
