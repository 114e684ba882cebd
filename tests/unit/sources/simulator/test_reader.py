from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.model.errors import UsageError
from gpuledger.sources.simulator.reader import BUILTINS, load, parse
from gpuledger.sources.simulator.scenario import SECOND, WATT, Pod


def test_built_in_scenarios_load_by_name() -> None:
    assert [load(name).name for name in BUILTINS] == ["k8s-node", "workstation"]
    assert [len(load(name).gpus) for name in BUILTINS] == [8, 2]


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown scenario 'k8s-nod'; did you mean 'k8s-node'"):
        load("k8s-nod")


def test_a_file_is_read_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("gpus: 3\n")
    scenario = load(str(file))
    assert (scenario.name, len(scenario.gpus)) == (str(file), 3)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"gpus: [", "is not YAML"),
        (b"- a\n- b\n", "a mapping is wanted, not a list"),
        (b"", "a mapping is wanted, not nothing"),
    ],
)
def test_a_file_that_is_no_scenario_is_a_usage_error(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    file = tmp_path / "broken.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=told) as caught:
        load(str(file))
    assert "\n" not in str(caught.value)


def test_words_become_whole_numbers_in_base_units() -> None:
    scenario = parse(
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
    assert process.owner == Pod("a", "b", "c", known_after=2 * SECOND)
    assert process.places[0].gpu == 2


MIG = "instances: [{gi: 1, profile: 1g.10gb, sm_count: 16, memory: 10GB}]"

WRONG_AT_ROOT = {
    "gpu: 1": "gpu: unknown key; did you mean 'gpus'?",
    "gpus: x": "gpus: a list is wanted, not 'x'",
    "gpus: 0": "gpus: a whole number from 1 to 64 is wanted",
    "gpus: []": "gpus: a number of GPUs or a list of at least one is wanted",
    "gpus: [3]": "gpus[0]: a mapping is wanted, not 3",
    "gpus: [{}, {processes: [{name: a, lods: 1}]}]": "gpus[1].processes[0].lods: unknown key; did you",
    "gpus: [{processes: [{name: a, pid: 9}, {name: b, pid: 9}]}]": "pid 9 belongs to two processes at one",
    "gpus: [{uuid: a}, {uuid: a}]": "gpus: two GPUs have the same uuid",
    "{gpus: 1, processes: [{name: a}]}": "processes[0].gpus: a list of GPU indices is wanted",
    "{gpus: 1, processes: [{name: a, gpus: [1]}]}": "processes[0].gpus[0]: a whole number from 0 to 0 is",
    "{gpus: 1, processes: [{name: a, gpus: [0, 0]}]}": "processes[0].gpus: GPU 0 stands there twice",
    "{gpus: 1, allocations: [{gpu: 0}]}": "allocations[0].pod: a mapping is wanted, not nothing",
    "{gpus: 1, allocations: [{gpu: 0, gi: 4, pod: {namespace: a, name: b}}]}": "instance 4_0 of GPU 0",
    "{gpus: 1, faults: [{kind: hangs, at: 1}]}": "faults[0].kind: unknown fault 'hangs'; did you mean",
    "{gpus: 1, faults: [{kind: hang, at: 1}]}": "faults[0].for: a hang must end",
    "{gpus: 1, faults: [{kind: hang, at: 1, for: 1, gpu: 0}]}": "faults[0].gpu: unknown key",
    "{gpus: 1, faults: [{kind: xid, at: 1, for: 1, gpu: 0}]}": "faults[0].for: unknown key",
    "{gpus: 1, faults: [{kind: xid, at: 1, xid: 31}]}": "faults[0].gpu: a value is wanted",
    "{gpus: 1, faults: [{kind: xid, at: 1, xid: 31, gpu: 0, gi: 3}]}": "GPU 0 has no instance 3_0 when it",
    "{gpus: 1, faults: [{kind: gpu_lost, at: 1, gpu: 1}]}": "faults[0].gpu: a whole number from 0 to 0 is",
    "{gpus: 1, faults: [{kind: gpu_lost, at: 1, for: 9, every: 5}]}": "faults[0].every: a fault must be over",
    "{gpus: 1, faults: [{kind: bad_value, at: 1, quantity: watts}]}": "faults[0].quantity: unknown",
    "{gpus: 1, faults: [{kind: bad_value, at: 1, quantity: power, value: x}]}": "faults[0].value: a",
}
WRONG_IN_GPU = {
    "processes: {name: a}": "processes: a list is wanted, not a mapping",
    "empty_watts: 90, resident_watts: 80": "resident_watts: at least empty_watts is wanted",
    "limit_watts: 80": "limit_watts: at least resident_watts is wanted",
    "max_limit_watts: 80": "max_limit_watts: at least limit_watts is wanted",
    "memory: 1GB, reserved_memory: 1GB": "reserved_memory: less than memory is wanted",
    "ecc: perhaps": "ecc: true or false is wanted",
    "counter_refresh: soon": "counter_refresh: a duration such as",
    "lacks: [fan]": "lacks[0]: unknown quantity 'fan'; did you mean 'fan_speed'?",
    "instances: [{gi: 1}]": "instances[0].profile: a value is wanted",
    "instances: [{gi: 1, profile: 7g, sm_count: 133, memory: 1}]": "together they have more than the 132 SMs",
    "instances: [{gi: 1, profile: 7g, sm_count: 1, memory: 1TB}]": "more than the memory of the GPU",
    f"{MIG}, repartitions: [{{at: 9}}]": "repartitions[0].instances: a list is wanted",
    f"{MIG}, processes: [{{name: a}}]": "process a: GPU 0 does not exist at its start; a GPU under MIG",
    f"{MIG}, processes: [{{name: a, gi: 1, type: G}}]": "graphics do not run on a MIG instance",
}
WRONG_IN_PROCESS = {
    "name: a, load: 2": "load: a number from 0 to 1 is wanted",
    "name: a, load: .nan": "load: a number from 0 to 1 is wanted",
    "name: a, load: true": "load: a number is wanted",
    "name: a, load: ": "load: a value is wanted",
    "load: 1": "name: a value is wanted",
    "name: a, type: X": "type: one of C, G, C+G, mps-client",
    "name: a, busy: 1s": "quiet: busy and quiet go together",
    "name: a, start: 5, stop: 5": "stop: a time after the start is wanted",
    "name: a, every: 5": "for: a process that comes again must end",
    "name: a, jitter: 5": "jitter: jitter belongs to every",
    "name: a, every: 5, for: 1, jitter: 6": "jitter: at most the time of every is wanted",
    "name: a, every: 5, for: 6, pid: 9": "pid: runs that overlap cannot share a pid",
    "name: a, pid: 1": "pid: a whole number from 2",
    "name: a, memory: 90GB": "process a: holds more memory than GPU 0 has",
    "name: a, memory: 9 lots": "memory: a size such as 512MB",
    "name: a, age: 90d": "process a: it cannot be older than the node",
    "type: mps-server, load: 1": "load: an MPS server does no work of its own",
    "name: a, gi: 1": "process a: instance 1_0 of GPU 0 does not exist at its start",
    "name: a, ci: 1": "ci: an instance is named by gi and ci",
    "name: a, pod: {name: b}": "pod.namespace: a value is wanted",
    "name: a, pod: {nmae: b}": "pod.nmae: unknown key; did you mean 'name'?",
    "name: a, pod: b": "pod: a mapping is wanted, not 'b'",
    "name: a, unit: b, slurm: {job: 1}": "unit: a process has one owner, and slurm is given",
}


WRONG = [
    *WRONG_AT_ROOT.items(),
    *((f"gpus: [{{{written}}}]", told) for written, told in WRONG_IN_GPU.items()),
    *((f"gpus: [{{processes: [{{{written}}}]}}]", told) for written, told in WRONG_IN_PROCESS.items()),
]


@pytest.mark.parametrize(("written", "told"), WRONG)
def test_what_is_wrong_is_told_with_its_full_path(written: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(written, "test")
    assert told in str(caught.value)
    assert str(caught.value).startswith("scenario test: ")


def test_templates_are_a_place_for_anchors_and_not_checked() -> None:
    written = "{templates: {a: &a {name: b, load: 0.5}}, gpus: [{processes: [{<<: *a, load: 0.25}]}]}"
    assert parse(written, "test").processes[0].load == 250_000
