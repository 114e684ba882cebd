from __future__ import annotations

import gc
from fractions import Fraction

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.errors import UsageError
from gpuledger.model.process import GpuProcess, HostFacts
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload
from gpuledger.sources.simulator.gpu_timeline import ProcessRun
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import UNIX, Node, reading


def only(snapshot: Snapshot) -> GpuProcess:
    (process,) = snapshot.processes
    return process


def gpu_with(process: str) -> str:
    return f"gpus: [{{processes: [{{name: /bin/a, {process}}}]}}]"


def test_a_process_exists_from_start_to_stop() -> None:
    node = Node(gpu_with("start: 5, stop: 8"))
    alive = [at for at in (0, 4.9, 5, 7.9, 8, 9) if list(node.at(at).processes)]
    assert alive == [5, 7.9]


def test_host_facts_have_the_exact_start_and_the_program() -> None:
    facts = only(
        Node(gpu_with("start: 5, age: 65, user: mira, uid: 1004, comm: a-very-long-name")).at(6)
    ).host
    assert facts.start.exact
    assert facts.start.boot_id == "simulated"
    assert facts.start.ticks == (3 * 86_400 - 60) * 100
    assert facts.start.unix == UNIX - 60
    assert (facts.executable, facts.comm, facts.user, facts.uid) == (
        "/bin/a",
        "a-very-long-nam",
        "mira",
        1004,
    )


def test_a_pod_name_becomes_known_after_known_after() -> None:
    node = Node(gpu_with("start: 2, pod: {namespace: n, name: p, container: c, known_after: 4}"))
    early = only(node.at(5.9)).host
    assert early.workload is not None
    assert (early.workload.namespace, early.workload.pod, early.workload.container) == ("", "", "")
    assert early.workload.missing == "pod_name"
    late = only(node.at(6)).host
    assert late.workload is not None
    assert (late.workload.namespace, late.workload.pod, late.workload.container) == ("n", "p", "c")
    assert late.workload.missing == ""
    assert late.workload.pod_uid == early.workload.pod_uid != ""
    assert late.workload.container_id == early.workload.container_id
    assert early.workload.pod_uid.replace("-", "_") in early.cgroup
    assert late.start == early.start


def test_no_allocation_has_a_pod_name_before_it_is_known() -> None:
    node = Node(gpu_with("pod: {namespace: n, name: p, known_after: 4}"))
    assert node.at(3).allocations == ()
    assert [allocation.workload.pod for allocation in node.at(4).allocations] == ["p"]


@pytest.mark.parametrize(
    ("owner", "kind", "fields"),
    [
        ("pod: {namespace: n, name: p}", "pod", {"namespace": "n", "pod": "p", "container": "main"}),
        ("slurm: {job: 77, step: batch}", "slurm", {"job": "77", "step": "batch"}),
        ("unit: ollama.service", "unit", {"unit": "ollama.service"}),
        ("container: {name: web, id: abc}", "container", {"container": "web", "container_id": "abc"}),
        ("user: mira", "user", {"user": "mira"}),
    ],
)
def test_each_owner_has_a_workload_of_its_kind(owner: str, kind: str, fields: dict[str, str]) -> None:
    process = only(Node(gpu_with(owner)).at(0))
    workload = process.host.workload
    assert workload is not None
    assert (workload.kind, workload.found_by) == (kind, "simulator")
    assert {name: getattr(workload, name) for name in fields} == fields
    assert process.workload.kind == "unknown"


def test_each_run_of_a_repeated_process_is_a_separate_process() -> None:
    node = Node(gpu_with('every: 10, for: 4, jitter: 3, pod: {namespace: n, name: "job-{n}"}'))
    seen = {p.host.workload.pod: p.key for tenth in range(600) for p in node.at(tenth / 10).processes}
    assert set(seen) == {f"job-{number}" for number in range(6)}
    assert len(set(seen.values())) == 6
    assert len({key[1] for key in seen.values()}) == 6


def test_a_reused_pid_is_another_process() -> None:
    node = Node(gpu_with("pid: 4242, every: 10, for: 4"))
    first, second = only(node.at(1)), only(node.at(11))
    assert first.pid == second.pid == 4242
    assert first.key != second.key


def test_overlapping_runs_are_all_listed() -> None:
    node = Node(gpu_with("every: 1, for: 5"))
    assert len({process.pid for process in node.at(20.5).processes}) == 5


def test_a_process_on_two_gpus_is_listed_on_both() -> None:
    processes = list(Node("{gpus: 3, processes: [{name: a, gpus: [0, 2]}]}").at(0).processes)
    assert [process.device.gpu.index for process in processes] == [0, 2]
    assert len({(process.pid, process.host.start) for process in processes}) == 1


def test_samples_exist_only_for_busy_periods() -> None:
    node = Node(gpu_with("load: 0.5, memory_load: 0.4, busy: 1, quiet: 2"))
    node.at(0)
    samples = reading(node.at(6)).samples or ()
    assert [sample.at for sample in samples] == [
        start + period * 1_000_000 // 6 for start in (0, 3_000_000) for period in range(1, 7)
    ]
    assert {(sample.sm, sample.memory, sample.encoder) for sample in samples} == {(0.5, 0.2, 0.0)}


def test_usage_is_the_mean_since_the_last_read() -> None:
    node = Node(gpu_with("load: 0.5, encoder: 0.2, busy: 1, quiet: 2"))
    node.at(0)
    assert only(node.at(3)).usage.sm == pytest.approx(0.5 / 3)
    assert only(node.at(3.5)).usage.encoder == pytest.approx(0.2)
    assert only(node.at(5.5)).usage.sm == pytest.approx(0.5 / 4)
    assert only(node.at(5.9)).usage.sm == 0.0


def test_the_first_read_returns_the_current_load() -> None:
    found = reading(Node(gpu_with("load: 0.5")).at(0))
    assert found.values[q.UTILIZATION] == 0.5
    assert found.samples == ()
    assert (found.processes or ())[0].usage.sm == 0.5


def test_samples_of_a_process_that_ended_are_returned() -> None:
    node = Node(gpu_with("load: 1, pid: 77, start: 2, stop: 4"))
    node.at(1)
    found = reading(node.at(9))
    assert found.processes == ()
    assert {sample.pid for sample in found.samples or ()} == {77}


def test_the_sample_buffer_holds_twenty_seconds() -> None:
    node = Node(gpu_with("load: 1"))
    node.at(0)
    samples = reading(node.at(100)).samples or ()
    assert (min(sample.at for sample in samples), len(samples)) == (80_166_666, 120)


MIG = """
gpus:
  - instances: [{gi: 1, profile: 4g.40gb, sm_count: 64, memory: 40GB},
                {gi: 9, profile: 1g.10gb, sm_count: 16, memory: 10GB}]
    repartitions:
      - at: 100
        instances: [{gi: 9, profile: 1g.10gb, sm_count: 16, memory: 10GB},
                    {gi: 2, profile: 3g.40gb, sm_count: 60, memory: 40GB}]
    processes:
      - {name: a, gi: 1, memory: 3GB, load: 1}
      - {name: b, gi: 9, memory: 2GB}
      - {name: c, gi: 2, memory: 1GB, start: 100}
"""


def test_a_repartition_ends_processes_on_removed_instances() -> None:
    node = Node(MIG)
    before, after = node.at(99), node.at(100)
    assert [process.name for process in before.processes] == ["a", "b"]
    assert {process.name for process in after.processes} == {"b", "c"}
    kept = reading(before, instance="9_0").device
    assert reading(after, instance="9_0").device == kept
    assert isinstance(kept, Instance)
    assert reading(after, instance="2_0").device.uuid != reading(before, instance="1_0").device.uuid


def test_an_instance_reports_its_memory_and_no_value_of_the_whole_gpu() -> None:
    snapshot = Node(MIG).at(1)
    found = reading(snapshot, instance="1_0")
    assert found.values == {
        q.MEMORY_TOTAL: 40e9,
        q.MEMORY_USED: 3e9,
        q.MEMORY_FREE: 37e9,
        q.MEMORY_RESERVED: 0,
        q.ENGINE_ACTIVITY: 1.0,
        q.SM_ACTIVITY: 0.93,
        q.SM_OCCUPANCY: 0.47,
        q.TENSOR_ACTIVITY: 0.38,
        q.DRAM_ACTIVITY: 0.0,
        q.FP64_ACTIVITY: 0.0,
        q.FP32_ACTIVITY: 0.11,
        q.FP16_ACTIVITY: 0.06,
    }
    assert (found.processes or ())[0].usage.sm is None
    assert reading(snapshot).values[q.MEMORY_USED] == 5e9
    assert reading(snapshot).mig_enabled


def test_a_device_can_be_allocated_to_a_pod_without_processes() -> None:
    node = Node("{gpus: 2, allocations: [{gpu: 1, start: 3, stop: 5, pod: {namespace: n, name: p}}]}")
    allocated = {at: [a.device.gpu.index for a in node.at(at).allocations] for at in (2, 3, 5)}
    assert allocated == {2: [], 3: [1], 5: []}


@pytest.mark.parametrize(
    ("keys", "pods", "fraction"),
    [
        ("", ["a"], Fraction(1)),
        ("", ["a", "a"], Fraction(1)),
        ("", ["a", "b"], None),
        ("replicas: 4, ", ["a"], Fraction(1, 4)),
        ("replicas: 4, ", ["a", "b", "c"], Fraction(1, 4)),
    ],
    ids=["a whole GPU", "two processes of a pod", "shared without replicas", "one replica", "three replicas"],
)
def test_an_allocation_has_the_fraction_of_its_replica(
    keys: str, pods: list[str], fraction: Fraction | None
) -> None:
    processes = ", ".join(
        f"{{name: t{number}, pod: {{namespace: n, name: {pod}, container: c{number}}}}}"
        for number, pod in enumerate(pods)
    )
    found = Node(f"{{gpus: [{{{keys}processes: [{processes}]}}]}}").at(0).allocations
    assert len(found) == len(pods)
    assert {one.fraction for one in found} == {fraction}


def test_a_pod_with_several_processes_has_one_allocation_per_device() -> None:
    pod = "pod: {namespace: n, name: p}"
    processes = f"[{{name: a, {pod}}}, {{name: b, {pod}}}]"
    node = Node(f"{{gpus: [{{processes: {processes}}}], allocations: [{{gpu: 0, {pod}}}]}}")
    assert len(node.at(0).allocations) == 1


def test_only_selected_devices_are_read() -> None:
    node = Node(load_scenario("k8s-node"), devices=("3", "7"))
    snapshot = node.at(10)
    assert {found.device.gpu.index for found in snapshot.readings} == {3, 7}
    assert {allocation.device.gpu.index for allocation in snapshot.allocations} <= {3, 7}
    assert {account.gpu.index for account in node.source.true_energy(10)} == {3, 7}


def test_selecting_a_missing_device_is_an_error() -> None:
    with pytest.raises(UsageError, match="unknown device '9'"):
        Node("gpus: 2", devices=("0", "9"))


SHORT_RUNS = """
gpus:
  - processes:
      - {name: python3, load: 0.5, every: 4s, for: 3s, pod: {namespace: ci, name: "test-{n}"}}
      - {name: python3, load: 0.3, every: 5s, for: 4s, jitter: 1s, user: mira, uid: 1004}
"""


def test_ended_runs_are_forgotten() -> None:
    node = Node(SHORT_RUNS)

    def live(since: int) -> int:
        for second in range(since, since + 1200, 4):
            node.at(float(second))
        gc.collect()
        return sum(isinstance(one, ProcessRun | HostFacts | Workload) for one in gc.get_objects())

    assert live(0) >= live(1200) > 0


def test_a_run_is_the_same_object_on_all_its_gpus() -> None:
    node = Node("{gpus: [{}, {}], processes: [{name: train, gpus: [0, 1], every: 60s, for: 20s}]}")
    for second in (1.0, 61.0, 3601.0):
        first, other = (process for one in node.at(second).readings for process in one.processes or ())
        assert first.host is other.host
