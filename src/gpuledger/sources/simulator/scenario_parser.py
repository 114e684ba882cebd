"""Parser of scenario files (YAML); unknown keys, wrong types and contradictions are errors."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from gpuledger.host.yaml_documents import InvalidYaml, parse_yaml, read_utf8
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, integer, size, text
from gpuledger.sources.simulator.consistency import check_consistency
from gpuledger.sources.simulator.process_parser import (
    KEYS_UNDER_GPU,
    KEYS_WITH_GPUS,
    parse_placement,
    parse_pod,
    parse_process,
)
from gpuledger.sources.simulator.scenario import (
    CUDA_VERSION,
    DRIVER_VERSION,
    FOREVER,
    LIBRARY_VERSION,
    UPTIME,
    AllocationSpec,
    FaultSpec,
    GpuSpec,
    InstanceSpec,
    PartitionSpec,
    ProcessSpec,
    Scenario,
)
from gpuledger.sources.simulator.scenario_table import (
    ScenarioTable,
    parse_duration,
    parse_joules,
    parse_megahertz,
    parse_name,
    parse_positive_duration,
    parse_watts,
)

BUILTINS = ("k8s-node", "workstation")

_SCENARIO = (
    "templates",
    "driver_version",
    "library_version",
    "cuda_version",
    "uptime",
    "gpus",
    "processes",
    "allocations",
    "faults",
)
_GPU = (
    "model",
    "count",
    "architecture",
    "compute_capability",
    "uuid",
    "memory",
    "reserved_memory",
    "unified_memory",
    "sm_count",
    "empty_watts",
    "resident_watts",
    "load_watts",
    "limit_watts",
    "max_limit_watts",
    "counter",
    "counter_refresh",
    "counter_start",
    "samples_per_second",
    "sm_clock_mhz",
    "idle_sm_clock_mhz",
    "memory_clock_mhz",
    "idle_performance_state",
    "pcie_rate",
    "nvlink_rate",
    "nvlinks",
    "ecc",
    "lacks",
    "instances",
    "repartitions",
    "processes",
)
_INSTANCE = ("gi", "ci", "profile", "sm_count", "memory")
_ALLOCATION = ("gpu", "gi", "ci", "pod", "start", "stop")
_FAULTS: dict[str, tuple[str, ...]] = {
    "gpu_lost": ("gpu",),
    "process_list_fails": ("gpu", "gi", "ci"),
    "utilization_fails": ("gpu",),
    "hang": (),
    "xid": ("gpu", "gi", "ci", "xid"),
    "counter_reset": ("gpu",),
    "bad_value": ("gpu", "gi", "ci", "quantity", "value"),
    "source_fails": ("reason",),
}
_MOMENTARY = frozenset({"xid", "counter_reset"})
_ECC = tuple(key for key in QUANTITIES if key.startswith(("ecc_", "retired_", "remapped_", "row_remap_")))
_NVLINKS = tuple(key for key in QUANTITIES if key.startswith("nvlink_"))
_MEMORY = ("memory_total", "memory_used", "memory_free", "memory_reserved")


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
        processes.append(parse_process(ScenarioTable(value, path, KEYS_WITH_GPUS), None, len(gpus)))
    return Scenario(
        name=name,
        gpus=tuple(gpus),
        processes=tuple(processes),
        allocations=tuple(
            _parse_allocation(value, path, len(gpus)) for path, value in root.items("allocations")
        ),
        faults=tuple(_parse_fault(value, path, len(gpus)) for path, value in root.items("faults")),
        driver_version=root.parse("driver_version", text, DRIVER_VERSION),
        library_version=root.parse("library_version", text, LIBRARY_VERSION),
        cuda_version=root.parse("cuda_version", text, CUDA_VERSION),
        uptime=root.parse("uptime", parse_duration, UPTIME),
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
                under_gpu = ScenarioTable(process, inner, KEYS_UNDER_GPU)
                processes.append(parse_process(under_gpu, len(gpus), len(gpus) + 1))
            gpus.append(spec)
    if not gpus:
        raise root.error("gpus", "expected a number of GPUs or a list of at least one GPU")
    return gpus, processes


def _parse_gpu(table: ScenarioTable) -> GpuSpec:
    base = GpuSpec()
    limit = table.parse("limit_watts", parse_watts, base.power_limit)
    whole = integer(1, 10_000)
    spec = GpuSpec(
        model=table.parse("model", parse_name, base.model),
        architecture=table.parse("architecture", parse_name, base.architecture),
        compute_capability=table.parse("compute_capability", parse_name, base.compute_capability),
        uuid=table.parse("uuid", parse_name, base.uuid),
        memory=table.parse("memory", size, base.memory),
        reserved_memory=table.parse("reserved_memory", size, base.reserved_memory),
        unified_memory=table.parse("unified_memory", boolean, base.unified_memory),
        sm_count=table.parse("sm_count", whole, base.sm_count),
        empty_power=table.parse("empty_watts", parse_watts, base.empty_power),
        resident_power=table.parse("resident_watts", parse_watts, base.resident_power),
        load_power=table.parse("load_watts", parse_watts, base.load_power),
        power_limit=limit,
        power_limit_max=table.parse("max_limit_watts", parse_watts, limit),
        counter_refresh=table.parse("counter_refresh", parse_duration, base.counter_refresh),
        counter_start=table.parse("counter_start", parse_joules, base.counter_start),
        samples_per_second=table.parse("samples_per_second", integer(1, 60), base.samples_per_second),
        sm_clock=table.parse("sm_clock_mhz", parse_megahertz, base.sm_clock),
        idle_sm_clock=table.parse("idle_sm_clock_mhz", parse_megahertz, base.idle_sm_clock),
        memory_clock=table.parse("memory_clock_mhz", parse_megahertz, base.memory_clock),
        idle_performance_state=table.parse("idle_performance_state", integer(0, 15), 0),
        pcie_rate=table.parse("pcie_rate", size, base.pcie_rate),
        nvlink_rate=table.parse("nvlink_rate", size, base.nvlink_rate),
    )
    return replace(spec, lacks=_parse_lacks(table), partitions=_parse_partitions(table))


def _parse_lacks(table: ScenarioTable) -> frozenset[str]:
    missing = {_parse_quantity_key(value, path) for path, value in table.items("lacks")}
    if not table.parse("counter", boolean, True):
        missing.add("energy")
    if not table.parse("ecc", boolean, True):
        missing.update(_ECC)
    if not table.parse("nvlinks", boolean, True):
        missing.update(_NVLINKS)
    if table.parse("unified_memory", boolean, False):
        missing.update(_MEMORY)
    return frozenset(missing)


def _parse_quantity_key(value: object, path: str) -> str:
    key = str(value)
    if key not in QUANTITIES:
        raise UsageError(f"{path}: {unknown_name_error('quantity', key, QUANTITIES)}")
    return key


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
        item = ScenarioTable(value, path, _INSTANCE)
        spec = InstanceSpec(
            gi=item.parse("gi", integer(0, 63)),
            ci=item.parse("ci", integer(0, 63), 0),
            profile=item.parse("profile", parse_name),
            sm_count=item.parse("sm_count", integer(1, 10_000)),
            memory=item.parse("memory", size),
        )
        if (spec.gi, spec.ci) in {(other.gi, other.ci) for other in found}:
            raise item.error("gi", f"instance {spec.gi}_{spec.ci} is listed twice")
        found.append(spec)
    return tuple(found)


def _parse_allocation(value: object, path: str, gpu_count: int) -> AllocationSpec:
    table = ScenarioTable(value, path, _ALLOCATION)
    start = table.parse("start", parse_duration, 0)
    stop = table.parse("stop", parse_duration, FOREVER)
    if stop <= start:
        raise table.error("stop", "expected a time after start")
    return AllocationSpec(parse_placement(table, gpu_count), parse_pod(table), start, stop)


def _parse_fault(value: object, path: str, gpu_count: int) -> FaultSpec:
    all_keys = {key for keys in _FAULTS.values() for key in keys}
    kind = ScenarioTable(value, path, ("kind", "at", "for", "every", *sorted(all_keys))).parse("kind", text)
    if kind not in _FAULTS:
        raise UsageError(f"{path}.kind: {unknown_name_error('fault', kind, _FAULTS)}")
    keys = _FAULTS[kind]
    momentary = kind in _MOMENTARY
    table = ScenarioTable(value, path, ("kind", "at", "every", *(() if momentary else ("for",)), *keys))
    duration = table.parse("for", parse_positive_duration, 1 if momentary else FOREVER)
    every = table.parse("every", parse_positive_duration, 0)
    if every and duration > every:
        raise table.error("every", "expected at least the value of for: a fault must end before it repeats")
    if kind == "hang" and duration == FOREVER:
        raise table.error("for", "expected a duration: a hang must end")
    spec = FaultSpec(
        kind=kind,  # type: ignore[arg-type]  # membership in _FAULTS was tested above
        at=table.parse("at", parse_duration),
        duration=duration,
        every=every,
        gpu=table.parse("gpu", integer(0, gpu_count - 1), None),
        gi=table.parse("gi", integer(0, 63), None),
        ci=table.parse("ci", integer(0, 63), 0),
        xid=table.parse("xid", integer(1, 999)) if kind == "xid" else 0,
        quantity=_parse_quantity_key(table.parse("quantity", text), table.path_of("quantity"))
        if kind == "bad_value"
        else "",
        value=table.parse("value", _parse_number, None),
        reason=table.parse("reason", parse_name, "unavailable"),
    )
    if kind == "xid" and spec.gpu is None:
        raise table.error("gpu", "expected a value")
    if spec.gi is not None and spec.gpu is None:
        raise table.error("gi", "gi requires gpu")
    return spec


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError("expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("expected a number below 1e308") from None
