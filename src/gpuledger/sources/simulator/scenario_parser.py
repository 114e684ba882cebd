"""Parser of scenario files (YAML); unknown keys, wrong types and contradictions are errors."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from gpuledger.host.yaml_documents import InvalidYaml, parse_yaml, read_utf8
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.process import ProcessType
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, choice, integer, text
from gpuledger.sources.simulator.consistency import check_consistency
from gpuledger.sources.simulator.scenario import (
    FOREVER,
    REQUIRED,
    AllocationSpec,
    ContainerSpec,
    FaultSpec,
    GpuSpec,
    InstanceSpec,
    OwnerSpec,
    PartitionSpec,
    PlacementSpec,
    PodSpec,
    ProcessSpec,
    Scenario,
    SlurmSpec,
    UnitSpec,
    parse_instance_id,
    parse_name,
    parse_positive_duration,
    parse_quantity_key,
)
from gpuledger.sources.simulator.scenario_table import ScenarioTable, keys_of

BUILTINS = ("k8s-node", "workstation", "faulty-node", "mixed-lab", "demo")

_OWNERS: dict[str, type[PodSpec | SlurmSpec | ContainerSpec] | None] = {
    "pod": PodSpec,
    "slurm": SlurmSpec,
    "unit": None,
    "container": ContainerSpec,
}
_SCENARIO = (*keys_of(Scenario), "templates", "gpus", "processes", "allocations", "faults")
_GPU = (
    *keys_of(GpuSpec),
    *("count", "counter", "ecc", "nvlinks", "lacks", "instances", "repartitions", "processes"),
)
_PROCESS = (*keys_of(ProcessSpec), *_OWNERS, "type")
_ALLOCATION = (*keys_of(AllocationSpec), "gpu", "gi", "ci", "pod")
_FAULTS: dict[str, tuple[str, ...]] = {
    "gpu_lost": ("gpu", "xid"),
    "reset_required": ("gpu", "xid"),
    "throttle": ("gpu", "by"),
    "row_remap": ("gpu", "remap", "xid"),
    "pcie_link": ("gpu", "width", "generation"),
    "nvlink_down": ("gpu", "links", "xid"),
    "process_list_fails": ("gpu", "gi", "ci"),
    "utilization_fails": ("gpu",),
    "hang": (),
    "xid": ("gpu", "gi", "ci", "xid"),
    "counter_reset": ("gpu",),
    "bad_value": ("gpu", "gi", "ci", "quantity", "value"),
    "source_fails": ("reason",),
}
_REQUIRED_OF_FAULT = {"xid": ("gpu", "xid"), "bad_value": ("quantity",)}
_MOMENTARY = frozenset({"xid", "counter_reset"})
# Quantities that a GPU lacks if the key is false.
_FEATURES = {
    "counter": ["energy"],
    "ecc": tuple(
        key for key in QUANTITIES if key.startswith(("ecc_", "retired_", "remapped_", "row_remap_"))
    ),
    "nvlinks": tuple(key for key in QUANTITIES if key.startswith("nvlink")),
}

_C, _G, _M = ProcessType.COMPUTE, ProcessType.GRAPHICS, ProcessType.MPS
_TYPES = {
    "C": frozenset({_C}),
    "G": frozenset({_G}),
    "C+G": frozenset({_C, _G}),
    "mps-client": frozenset({_M, _C}),
    "mps-server": frozenset({_C}),
}
_SERVER_NAME = "nvidia-cuda-mps-server"


def load_scenario(name_or_path: str) -> Scenario:
    """Load a built-in scenario by name, or one from a YAML file.

    Raises UsageError if there is no such scenario or the file cannot be read, and for the first key that is
    unknown, of the wrong type or contradictory, with the key's full path.
    """
    if name_or_path in BUILTINS:
        packaged = resources.files("gpuledger.sources.simulator") / "scenarios" / f"{name_or_path}.yaml"
        return parse_scenario(packaged.read_text("utf-8"), name_or_path)
    looks_like_file = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    if not looks_like_file and not Path(name_or_path).exists():
        raise unknown_name_error("scenario", name_or_path, BUILTINS)
    try:
        yaml_text = read_utf8(Path(name_or_path))
    except OSError as error:
        raise UsageError(f"scenario {name_or_path} cannot be read: {error.strerror}") from None
    except InvalidYaml as error:
        raise UsageError(f"scenario {name_or_path} is not YAML: {error}; save it as UTF-8 text") from None
    return parse_scenario(yaml_text, name_or_path)


def parse_scenario(yaml_text: str, name: str) -> Scenario:
    """Parse a scenario from YAML; `name` appears in errors and in SourceInfo. Raises UsageError."""
    try:
        value = parse_yaml(yaml_text, quickly=True)
    except InvalidYaml as error:
        raise UsageError(f"scenario {name} is not YAML: {error}") from None
    try:
        scenario = _parse_root(ScenarioTable(value, "", _SCENARIO), name)
        check_consistency(scenario)
    except UsageError as error:
        raise UsageError(f"scenario {name}: {error}") from None
    return scenario


def _parse_root(root: ScenarioTable, name: str) -> Scenario:
    gpus, processes = _parse_gpus(root)
    for path, value in root.items("processes"):
        table = ScenarioTable(value, path, (*_PROCESS, "gpus"))
        processes.append(_parse_process(table, _parse_placements(table, len(gpus))))
    return root.build(
        Scenario,
        name=name,
        gpus=tuple(gpus),
        processes=tuple(processes),
        allocations=tuple(
            _parse_allocation(value, path, len(gpus)) for path, value in root.items("allocations")
        ),
        faults=tuple(_parse_fault(value, path, len(gpus)) for path, value in root.items("faults")),
    )


def _parse_gpus(root: ScenarioTable) -> tuple[list[GpuSpec], list[ProcessSpec]]:
    if isinstance(root.raw("gpus"), int):
        return [GpuSpec()] * root.parse("gpus", integer(1, 64)), []
    gpus: list[GpuSpec] = []
    processes: list[ProcessSpec] = []
    for path, value in root.items("gpus"):
        table = ScenarioTable(value, path, _GPU)
        count = table.parse("count", integer(1, 64), 1)
        spec = _parse_gpu(table)
        for _ in range(count):
            for inner, process in table.items("processes"):
                under_gpu = ScenarioTable(process, inner, (*_PROCESS, "gi", "ci"))
                processes.append(_parse_process(under_gpu, (_parse_placement(under_gpu, len(gpus)),)))
            gpus.append(spec)
    if not gpus:
        raise root.error("gpus", "expected a number of GPUs or a list of at least one GPU")
    return gpus, processes


def _parse_gpu(table: ScenarioTable) -> GpuSpec:
    spec = table.build(GpuSpec, lacks=_parse_lacks(table), partitions=_parse_partitions(table))
    return spec if table.has("max_limit_watts") else replace(spec, power_limit_max=spec.power_limit)


def _parse_lacks(table: ScenarioTable) -> frozenset[str]:
    missing = set(table.parse_list("lacks", parse_quantity_key))
    for key, quantities in _FEATURES.items():
        if not table.parse(key, boolean, True):
            missing.update(quantities)
    if table.parse("unified_memory", boolean, False):
        missing |= {"memory_total", "memory_used", "memory_free", "memory_reserved"}
    return frozenset(missing)


def _parse_partitions(table: ScenarioTable) -> tuple[PartitionSpec, ...]:
    first = _parse_instances(table) if table.has("instances") else None
    partitions = [PartitionSpec(0, first)]
    for path, value in table.items("repartitions"):
        later = ScenarioTable(value, path, ("at", "instances"))
        at = later.parse("at", parse_positive_duration)
        if at <= partitions[-1].at:
            raise later.error("at", "expected a time after that of the previous partition")
        if not later.has("instances"):
            raise later.error("instances", "expected a list; [] is MIG without instances")
        partitions.append(PartitionSpec(at, _parse_instances(later)))
    return tuple(partitions)


def _parse_instances(table: ScenarioTable) -> tuple[InstanceSpec, ...]:
    found: list[InstanceSpec] = []
    for path, value in table.items("instances"):
        item = ScenarioTable(value, path, keys_of(InstanceSpec))
        spec = item.build(InstanceSpec)
        if (spec.gi, spec.ci) in {(other.gi, other.ci) for other in found}:
            raise item.error("gi", f"instance {spec.gi}_{spec.ci} is listed twice")
        found.append(spec)
    return tuple(found)


def _parse_allocation(value: object, path: str, gpu_count: int) -> AllocationSpec:
    table = ScenarioTable(value, path, _ALLOCATION)
    spec = table.build(
        AllocationSpec,
        placement=_parse_placement(table, table.parse("gpu", integer(0, gpu_count - 1))),
        pod=table.build_section("pod", PodSpec),
    )
    if spec.stop <= spec.start:
        raise table.error("stop", "expected a time after start")
    return spec


def _parse_fault(value: object, path: str, gpu_count: int) -> FaultSpec:
    table = ScenarioTable(value, path, (*keys_of(FaultSpec), "kind", "for", "gpu"))
    kind = table.parse("kind", text)
    if kind not in _FAULTS:
        raise table.error("kind", str(unknown_name_error("fault", kind, _FAULTS)))
    momentary = kind in _MOMENTARY
    table = ScenarioTable(
        value, path, ("kind", "at", "every", *(() if momentary else ("for",)), *_FAULTS[kind])
    )
    for key in _REQUIRED_OF_FAULT.get(kind, ()):
        if not table.has(key):
            raise table.error(key, "expected a value")
    spec = table.build(
        FaultSpec,
        kind=kind,
        duration=table.parse("for", parse_positive_duration, 1 if momentary else FOREVER),
        gpu=table.parse("gpu", integer(0, gpu_count - 1), None),
    )
    if spec.every and spec.duration > spec.every:
        raise table.error("every", "expected at least the value of for: a fault must end before it repeats")
    if kind == "hang" and spec.duration == FOREVER:
        raise table.error("for", "expected a duration: a hang must end")
    for key, is_set in {"gi": spec.gi is not None, "xid": spec.xid}.items():
        if is_set and spec.gpu is None:
            raise table.error(key, f"{key} requires gpu")
    if kind == "pcie_link" and not (spec.width or spec.generation):
        raise table.error("width", "expected a width or a generation")
    return spec


def _parse_process(table: ScenarioTable, placements: tuple[PlacementSpec, ...]) -> ProcessSpec:
    kind = table.parse("type", choice(*_TYPES), "C")
    server = kind == "mps-server"
    spec = table.build(
        ProcessSpec,
        name=table.parse("name", parse_name, _SERVER_NAME if server else REQUIRED),
        placements=placements,
        types=_TYPES[kind],
        is_mps_server=server,
        owner=_parse_owner(table),
    )
    _check_times(table, spec)
    if server and (spec.load or spec.encoder or spec.decoder):
        raise table.error("load", "an MPS server has no load; set the load of its clients instead")
    return spec


def _check_times(table: ScenarioTable, spec: ProcessSpec) -> None:
    if spec.stop <= spec.start:
        raise table.error("stop", "expected a time after start")
    if bool(spec.busy) != bool(spec.quiet):
        raise table.error("busy" if spec.quiet else "quiet", "busy and quiet must be set together")
    if spec.every and spec.duration == FOREVER:
        raise table.error("for", "expected a duration: a process with every must end")
    if spec.jitter and not spec.every:
        raise table.error("jitter", "jitter requires every")
    if spec.jitter > spec.every:
        raise table.error("jitter", "expected at most the value of every")
    if spec.every and spec.duration > 100 * spec.every:
        raise table.error("for", "expected at most 100 times the value of every")
    if spec.every and spec.pid is not None and spec.duration + spec.jitter > spec.every:
        raise table.error("pid", "runs that overlap cannot share a pid; remove pid or reduce for or jitter")


def _parse_placements(table: ScenarioTable, gpu_count: int) -> tuple[PlacementSpec, ...]:
    found = table.parse_list("gpus", integer(0, gpu_count - 1))
    if not found:
        raise table.error("gpus", "expected a list of GPU indices")
    for number, index in enumerate(found):
        if index in found[:number]:
            raise table.error("gpus", f"GPU {index} is listed twice")
    return tuple(PlacementSpec(index) for index in found)


def _parse_placement(table: ScenarioTable, gpu: int) -> PlacementSpec:
    """Parse the keys `gi` and `ci` of a process or an allocation on a GPU."""
    gi = table.parse("gi", parse_instance_id, None)
    ci = table.parse("ci", parse_instance_id, 0)
    if gi is None and table.has("ci"):
        raise table.error("ci", "ci requires gi")
    return PlacementSpec(gpu, gi, ci)


def _parse_owner(table: ScenarioTable) -> OwnerSpec:
    named = [key for key in _OWNERS if table.has(key)]
    if len(named) > 1:
        raise table.error(named[1], f"a process has one owner, and {named[0]} is set already")
    if not named:
        return None
    spec = _OWNERS[named[0]]
    return table.build_section(named[0], spec) if spec else UnitSpec(table.parse("unit", parse_name))
