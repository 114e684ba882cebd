"""From YAML to a Scenario: what is unknown, of the wrong type or impossible is an error, never guessed."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from gpuledger.host.yaml_documents import NotYaml, parsed, text_of
from gpuledger.model.errors import UsageError, unknown
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, integer, size, text
from gpuledger.sources.simulator import process_reader, table
from gpuledger.sources.simulator.laws import check
from gpuledger.sources.simulator.process_reader import read_place, read_pod
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
    Layout,
    ProcessSpec,
    Scenario,
)
from gpuledger.sources.simulator.table import Table

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
_MOMENTS = frozenset({"xid", "counter_reset"})
_ECC = tuple(key for key in QUANTITIES if key.startswith(("ecc_", "retired_", "remapped_", "row_remap_")))
_NVLINKS = tuple(key for key in QUANTITIES if key.startswith("nvlink_"))
_MEMORY = ("memory_total", "memory_used", "memory_free", "memory_reserved")


def load(name_or_path: str) -> Scenario:
    """A built-in scenario by name, or one from a YAML file.

    Raises UsageError when there is no such scenario, when the file cannot be read, and for the first thing in
    it that is unknown, of the wrong type or impossible, with the full path of its key.
    """
    if name_or_path in BUILTINS:
        packaged = resources.files("gpuledger.sources.simulator") / "scenarios" / f"{name_or_path}.yaml"
        return parse(packaged.read_text("utf-8"), name_or_path)
    looks_like_file = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    if not looks_like_file and not Path(name_or_path).exists():
        raise unknown("scenario", name_or_path, BUILTINS)
    try:
        written = text_of(Path(name_or_path))
    except OSError as error:
        raise UsageError(f"scenario {name_or_path} cannot be read: {error.strerror}") from None
    except NotYaml as error:
        raise UsageError(f"scenario {name_or_path} is not YAML: {error}; save it as UTF-8 text") from None
    return parse(written, name_or_path)


def parse(written: str, name: str) -> Scenario:
    """The Scenario in a YAML text; `name` stands in errors and in SourceInfo. Raises UsageError."""
    try:
        value = parsed(written, quickly=True)
    except NotYaml as error:
        raise UsageError(f"scenario {name} is not YAML: {error}") from None
    try:
        scenario = _scenario(Table(value, "", _SCENARIO), name)
        check(scenario)
    except UsageError as error:
        raise UsageError(f"scenario {name}: {error}") from None
    return scenario


def _scenario(root: Table, name: str) -> Scenario:
    gpus, processes = _gpus(root)
    for path, value in root.items("processes"):
        processes.append(
            process_reader.read_process(Table(value, path, process_reader.FREE), None, len(gpus))
        )
    return Scenario(
        name=name,
        gpus=tuple(gpus),
        processes=tuple(processes),
        allocations=tuple(_allocation(value, path, len(gpus)) for path, value in root.items("allocations")),
        faults=tuple(_fault(value, path, len(gpus)) for path, value in root.items("faults")),
        driver_version=root.take("driver_version", text, DRIVER_VERSION),
        library_version=root.take("library_version", text, LIBRARY_VERSION),
        cuda_version=root.take("cuda_version", text, CUDA_VERSION),
        uptime=root.take("uptime", table.span, UPTIME),
    )


def _gpus(root: Table) -> tuple[list[GpuSpec], list[ProcessSpec]]:
    if isinstance(root.raw("gpus"), int):
        return [GpuSpec()] * root.take("gpus", integer(1, 64)), []
    gpus: list[GpuSpec] = []
    processes: list[ProcessSpec] = []
    for path, value in root.items("gpus"):
        given = Table(value, path, _GPU)
        count = given.take("count", integer(1, 64), 1)
        spec = _gpu(given)
        for _ in range(count):
            for inner, process in given.items("processes"):
                seated = Table(process, inner, process_reader.SEATED)
                processes.append(process_reader.read_process(seated, len(gpus), len(gpus) + 1))
            gpus.append(spec)
    if not gpus:
        raise root.fail("gpus", "a number of GPUs or a list of at least one is wanted")
    return gpus, processes


def _gpu(given: Table) -> GpuSpec:
    base = GpuSpec()
    limit = given.take("limit_watts", table.watts, base.power_limit)
    whole = integer(1, 10_000)
    spec = GpuSpec(
        model=given.take("model", table.name, base.model),
        architecture=given.take("architecture", table.name, base.architecture),
        compute_capability=given.take("compute_capability", table.name, base.compute_capability),
        uuid=given.take("uuid", table.name, base.uuid),
        memory=given.take("memory", size, base.memory),
        reserved_memory=given.take("reserved_memory", size, base.reserved_memory),
        unified_memory=given.take("unified_memory", boolean, base.unified_memory),
        sm_count=given.take("sm_count", whole, base.sm_count),
        empty_power=given.take("empty_watts", table.watts, base.empty_power),
        resident_power=given.take("resident_watts", table.watts, base.resident_power),
        load_power=given.take("load_watts", table.watts, base.load_power),
        power_limit=limit,
        power_limit_max=given.take("max_limit_watts", table.watts, limit),
        counter_refresh=given.take("counter_refresh", table.span, base.counter_refresh),
        counter_start=given.take("counter_start", table.joules, base.counter_start),
        samples_per_second=given.take("samples_per_second", integer(1, 60), base.samples_per_second),
        sm_clock=given.take("sm_clock_mhz", table.megahertz, base.sm_clock),
        idle_sm_clock=given.take("idle_sm_clock_mhz", table.megahertz, base.idle_sm_clock),
        memory_clock=given.take("memory_clock_mhz", table.megahertz, base.memory_clock),
        idle_performance_state=given.take("idle_performance_state", integer(0, 15), 0),
        pcie_rate=given.take("pcie_rate", size, base.pcie_rate),
        nvlink_rate=given.take("nvlink_rate", size, base.nvlink_rate),
    )
    return replace(spec, lacks=_lacks(given), layouts=_layouts(given))


def _lacks(given: Table) -> frozenset[str]:
    missing = {_quantity(value, path) for path, value in given.items("lacks")}
    if not given.take("counter", boolean, True):
        missing.add("energy")
    if not given.take("ecc", boolean, True):
        missing.update(_ECC)
    if not given.take("nvlinks", boolean, True):
        missing.update(_NVLINKS)
    if given.take("unified_memory", boolean, False):
        missing.update(_MEMORY)
    return frozenset(missing)


def _quantity(value: object, path: str) -> str:
    key = str(value)
    if key not in QUANTITIES:
        raise UsageError(f"{path}: {unknown('quantity', key, QUANTITIES)}")
    return key


def _layouts(given: Table) -> tuple[Layout, ...]:
    first = _instances(given) if given.has("instances") else None
    layouts = [Layout(0, first)]
    for path, value in given.items("repartitions"):
        later = Table(value, path, ("at", "instances"))
        at = later.take("at", table.positive_span)
        if at <= layouts[-1].at:
            raise later.fail("at", "a time after the partition before it is wanted")
        if not later.has("instances"):
            raise later.fail("instances", "a list is wanted; [] for MIG without instances")
        layouts.append(Layout(at, _instances(later)))
    return tuple(layouts)


def _instances(given: Table) -> tuple[InstanceSpec, ...]:
    found: list[InstanceSpec] = []
    for path, value in given.items("instances"):
        item = Table(value, path, _INSTANCE)
        spec = InstanceSpec(
            gi=item.take("gi", integer(0, 63)),
            ci=item.take("ci", integer(0, 63), 0),
            profile=item.take("profile", table.name),
            sm_count=item.take("sm_count", integer(1, 10_000)),
            memory=item.take("memory", size),
        )
        if (spec.gi, spec.ci) in {(other.gi, other.ci) for other in found}:
            raise item.fail("gi", f"instance {spec.gi}_{spec.ci} stands there twice")
        found.append(spec)
    return tuple(found)


def _allocation(value: object, path: str, gpus: int) -> AllocationSpec:
    given = Table(value, path, _ALLOCATION)
    start = given.take("start", table.span, 0)
    stop = given.take("stop", table.span, FOREVER)
    if stop <= start:
        raise given.fail("stop", "a time after the start is wanted")
    return AllocationSpec(read_place(given, gpus), read_pod(given), start, stop)


def _fault(value: object, path: str, gpus: int) -> FaultSpec:
    every_key = {key for keys in _FAULTS.values() for key in keys}
    kind = Table(value, path, ("kind", "at", "for", "every", *sorted(every_key))).take("kind", text)
    if kind not in _FAULTS:
        raise UsageError(f"{path}.kind: {unknown('fault', kind, _FAULTS)}")
    keys = _FAULTS[kind]
    momentary = kind in _MOMENTS
    given = Table(value, path, ("kind", "at", "every", *(() if momentary else ("for",)), *keys))
    lasting = given.take("for", table.positive_span, 1 if momentary else FOREVER)
    every = given.take("every", table.positive_span, 0)
    if every and lasting > every:
        raise given.fail("every", "a fault must be over before it comes again")
    if kind == "hang" and lasting == FOREVER:
        raise given.fail("for", "a hang must end: say how long it lasts")
    spec = FaultSpec(
        kind=kind,  # type: ignore[arg-type]  # membership in _FAULTS was tested above
        at=given.take("at", table.span),
        lasting=lasting,
        every=every,
        gpu=given.take("gpu", integer(0, gpus - 1), None),
        gi=given.take("gi", integer(0, 63), None),
        ci=given.take("ci", integer(0, 63), 0),
        xid=given.take("xid", integer(1, 999)) if kind == "xid" else 0,
        quantity=_quantity(given.take("quantity", text), given.at("quantity")) if kind == "bad_value" else "",
        value=given.take("value", _any_number, None),
        reason=given.take("reason", table.name, "unavailable"),
    )
    if kind == "xid" and spec.gpu is None:
        raise given.fail("gpu", "a value is wanted")
    if spec.gi is not None and spec.gpu is None:
        raise given.fail("gi", "an instance is wanted together with its gpu")
    return spec


def _any_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError("a number is wanted")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number below 1e308 is wanted") from None
