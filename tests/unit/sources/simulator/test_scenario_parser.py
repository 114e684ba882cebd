from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.model.errors import UsageError
from gpuledger.sources.simulator.scenario import SECOND, WATT, PodSpec
from gpuledger.sources.simulator.scenario_parser import BUILTINS, load_scenario, parse_scenario


def test_built_in_scenarios_load_by_name() -> None:
    assert [load_scenario(name).name for name in BUILTINS] == [
        "k8s-node",
        "workstation",
        "faulty-node",
        "mixed-lab",
        "demo",
    ]
    assert [len(load_scenario(name).gpus) for name in BUILTINS] == [8, 2, 8, 5, 5]


def test_an_unknown_scenario_name_suggests_the_closest_one() -> None:
    with pytest.raises(UsageError, match="unknown scenario 'k8s-nod'; did you mean 'k8s-node'"):
        load_scenario("k8s-nod")


def test_a_scenario_file_is_loaded_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("gpus: 3\n")
    scenario = load_scenario(str(file))
    assert (scenario.name, len(scenario.gpus)) == (str(file), 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"gpus: [", "is not YAML"),
        (b"- a\n- b\n", "expected a mapping, not a list"),
        (b"", "expected a mapping, not nothing"),
    ],
)
def test_a_file_that_is_not_a_scenario_is_a_usage_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "broken.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load_scenario(str(file))
    assert "\n" not in str(caught.value)


def test_values_become_integers_in_base_units() -> None:
    scenario = parse_scenario(
        """
        gpus:
          - {count: 2, empty_watts: 60.5, counter_refresh: 100ms, memory: 80GB,
             lacks: [fan_speed], ecc: false}
          - processes:
              - name: python
                load: 0.5
                busy: 1m30s
                quiet: 5
                pod: {namespace: a, name: b, container: c, known_after: 2s}
        """,
        "test",
    )
    first, second, third = scenario.gpus
    assert first == second
    assert (first.empty_power, first.counter_refresh, first.memory) == (60_500_000, SECOND // 10, 80 * 10**9)
    assert {"fan_speed", "ecc_corrected", "ecc_uncorrected_volatile", "row_remap_pending"} <= first.lacks
    assert "power" not in first.lacks
    assert third.power_limit == 700 * WATT
    (process,) = scenario.processes
    assert (process.load, process.busy, process.quiet) == (500_000, 90 * SECOND, 5 * SECOND)
    assert process.owner == PodSpec("a", "b", "c", known_after=2 * SECOND)
    assert process.placements[0].gpu == 2


MIG = "instances: [{gi: 1, profile: 1g.10gb, sm_count: 16, memory: 10GB}]"

ROOT_ERRORS = {
    "gpu: 1": "gpu: unknown key; did you mean 'gpus'?",
    "gpus: x": "gpus: expected a list, not 'x'",
    "gpus: 0": "gpus: expected an integer from 1 to 64",
    "gpus: []": "gpus: expected a number of GPUs or a list of at least one GPU",
    "gpus: [3]": "gpus[0]: expected a mapping, not 3",
    "gpus: [{}, {processes: [{name: a, lods: 1}]}]": "gpus[1].processes[0].lods: unknown key; did you",
    "gpus: [{processes: [{name: a, pid: 9}, {name: b, pid: 9}]}]": "pid 9 belongs to two processes at",
    "gpus: [{uuid: a}, {uuid: a}]": "gpus: two GPUs have the same uuid",
    "{gpus: 1, processes: [{name: a}]}": "processes[0].gpus: expected a list of GPU indices",
    "{gpus: 1, processes: [{name: a, gpus: [1]}]}": "processes[0].gpus[0]: expected an integer from 0 to 0",
    "{gpus: 1, processes: [{name: a, gpus: [0, 0]}]}": "processes[0].gpus: GPU 0 is listed twice",
    "{gpus: 1, allocations: [{gpu: 0}]}": "allocations[0].pod: expected a mapping, not nothing",
    "{gpus: 1, allocations: [{gpu: 0, gi: 4, pod: {namespace: a, name: b}}]}": "instance 4_0 of GPU 0",
    "{gpus: 1, faults: [{kind: hangs, at: 1}]}": "faults[0].kind: unknown fault 'hangs'; did you mean",
    "{gpus: 1, faults: [{kind: hang, at: 1}]}": "faults[0].for: expected a duration: a hang must end",
    "{gpus: 1, faults: [{kind: hang, at: 1, for: 1, gpu: 0}]}": "faults[0].gpu: unknown key",
    "{gpus: 1, faults: [{kind: xid, at: 1, for: 1, gpu: 0}]}": "faults[0].for: unknown key",
    "{gpus: 1, faults: [{kind: xid, at: 1, xid: 31}]}": "faults[0].gpu: expected a value",
    "{gpus: 1, faults: [{kind: xid, at: 1, xid: 31, gpu: 0, gi: 3}]}": "GPU 0 has no instance 3_0 when the",
    "{gpus: 1, faults: [{kind: gpu_lost, at: 1, gpu: 1}]}": "faults[0].gpu: expected an integer from 0 to 0",
    "{gpus: 1, faults: [{kind: gpu_lost, at: 1, for: 9, every: 5}]}": "faults[0].every: expected at least",
    "{gpus: 1, faults: [{kind: gpu_lost, at: 1, xid: 79}]}": "faults[0].xid: xid requires gpu",
    "{gpus: 1, faults: [{kind: throttle, at: 1, by: heat}]}": "faults[0].by: expected one of sw_power_cap",
    "{gpus: 1, faults: [{kind: row_remap, at: 1, remap: done}]}": "faults[0].remap: expected one of pending",
    "{gpus: 1, faults: [{kind: pcie_link, at: 1}]}": "faults[0].width: expected a width or a generation",
    "{gpus: 1, faults: [{kind: pcie_link, at: 1, width: 32}]}": "at most pcie_width and pcie_generation of",
    "{gpus: 1, faults: [{kind: pcie_link, at: 1, generation: 6}]}": "pcie_generation of its GPU: 16 and 5",
    "{gpus: 1, faults: [{kind: pcie_link, at: 1, width: 0}]}": "faults[0].width: expected an integer from 1",
    "{gpus: 1, faults: [{kind: nvlink_down, at: 1, links: 0}]}": "faults[0].links: expected an integer from",
    "{gpus: 1, faults: [{kind: bad_value, at: 1, quantity: watts}]}": "faults[0].quantity: unknown",
    "{gpus: 1, faults: [{kind: bad_value, at: 1, quantity: power, value: x}]}": "faults[0].value: expected a",
}
GPU_ERRORS = {
    "processes: {name: a}": "processes: expected a list, not a mapping",
    "empty_watts: 90, resident_watts: 80": "resident_watts: expected at least empty_watts",
    "limit_watts: 80": "limit_watts: expected at least resident_watts",
    "max_limit_watts: 80": "max_limit_watts: expected at least limit_watts",
    "memory: 1GB, reserved_memory: 1GB": "reserved_memory: expected less than memory",
    "ecc: perhaps": "ecc: expected true or false",
    "counter_refresh: soon": "counter_refresh: expected a duration such as",
    "lacks: [fan]": "lacks[0]: unknown quantity 'fan'; did you mean 'fan_speed'?",
    "instances: [{gi: 1}]": "instances[0].profile: expected a value",
    "instances: [{gi: 1, profile: 7g, sm_count: 133, memory: 1}]": "together they have more than the 132 SMs",
    "instances: [{gi: 1, profile: 7g, sm_count: 1, memory: 1TB}]": "more than the memory of the GPU",
    f"{MIG}, repartitions: [{{at: 9}}]": "repartitions[0].instances: expected a list",
    f"{MIG}, processes: [{{name: a}}]": "process a: GPU 0 does not exist when the process starts; with MIG",
    f"{MIG}, processes: [{{name: a, gi: 1, type: G}}]": "a MIG instance cannot run graphics",
}
PROCESS_ERRORS = {
    "name: a, load: 2": "load: expected a number from 0 to 1",
    "name: a, load: .nan": "load: expected a number from 0 to 1",
    "name: a, load: true": "load: expected a number",
    "name: a, load: ": "load: expected a value",
    "load: 1": "name: expected a value",
    "name: a, type: X": "type: expected one of C, G, C+G, mps-client",
    "name: a, busy: 1s": "quiet: busy and quiet must be set together",
    "name: a, start: 5, stop: 5": "stop: expected a time after start",
    "name: a, every: 5": "for: expected a duration: a process with every must end",
    "name: a, jitter: 5": "jitter: jitter requires every",
    "name: a, every: 5, for: 1, jitter: 6": "jitter: expected at most the value of every",
    "name: a, every: 5, for: 6, pid: 9": "pid: runs that overlap cannot share a pid",
    "name: a, pid: 1": "pid: expected an integer from 2",
    "name: a, memory: 90GB": "process a: uses more memory than GPU 0 has",
    "name: a, memory: 9 lots": "memory: expected a size such as 512MB",
    "name: a, age: 90d": "process a: age: the process is older than the node",
    "type: mps-server, load: 1": "load: an MPS server has no load",
    "name: a, gi: 1": "process a: instance 1_0 of GPU 0 does not exist when the process starts",
    "name: a, ci: 1": "ci: ci requires gi",
    "name: a, pod: {name: b}": "pod.namespace: expected a value",
    "name: a, pod: {nmae: b}": "pod.nmae: unknown key; did you mean 'name'?",
    "name: a, pod: b": "pod: expected a mapping, not 'b'",
    "name: a, unit: b, slurm: {job: 1}": "unit: a process has one owner, and slurm is set already",
}


ERRORS = [
    *ROOT_ERRORS.items(),
    *((f"gpus: [{{{text}}}]", message) for text, message in GPU_ERRORS.items()),
    *((f"gpus: [{{processes: [{{{text}}}]}}]", message) for text, message in PROCESS_ERRORS.items()),
]


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_an_error_names_the_full_path_of_its_key(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_scenario(text, "test")
    assert message in str(caught.value)
    assert str(caught.value).startswith("scenario test: ")


def test_templates_may_hold_anchors_and_are_not_checked() -> None:
    text = "{templates: {a: &a {name: b, load: 0.5}}, gpus: [{processes: [{<<: *a, load: 0.25}]}]}"
    assert parse_scenario(text, "test").processes[0].load == 250_000
