"""Parser of a scenario's processes: their placements, times and owners."""

from __future__ import annotations

from gpuledger.model.process import ProcessType
from gpuledger.model.settings import choice, integer, size, text
from gpuledger.sources.simulator.scenario import (
    FOREVER,
    WHOLE,
    ContainerSpec,
    OwnerSpec,
    PlacementSpec,
    PodSpec,
    ProcessSpec,
    SlurmSpec,
    UnitSpec,
)
from gpuledger.sources.simulator.scenario_table import (
    ScenarioTable,
    parse_duration,
    parse_name,
    parse_percent_points,
    parse_positive_duration,
    parse_ratio,
)

_OWNERS = ("pod", "slurm", "unit", "container")
_COMMON = (
    "name",
    "executable",
    "comm",
    "type",
    "user",
    "uid",
    "pid",
    "memory",
    "load",
    "noise",
    "memory_load",
    "encoder",
    "decoder",
    "intensity",
    "busy",
    "quiet",
    "start",
    "stop",
    "every",
    "for",
    "jitter",
    "age",
)
# Keys of a process listed under its GPU, and of one in the top-level list with its own `gpus`.
KEYS_UNDER_GPU = (*_COMMON, *_OWNERS, "gi", "ci")
KEYS_WITH_GPUS = (*_COMMON, *_OWNERS, "gpus")

_C, _G, _M = ProcessType.COMPUTE, ProcessType.GRAPHICS, ProcessType.MPS
_TYPES = {
    "C": frozenset({_C}),
    "G": frozenset({_G}),
    "C+G": frozenset({_C, _G}),
    "mps-client": frozenset({_M, _C}),
    "mps-server": frozenset({_C}),
}
_SERVER_NAME = "nvidia-cuda-mps-server"
_MAX_PID = 2**22


def parse_process(table: ScenarioTable, gpu: int | None, gpu_count: int) -> ProcessSpec:
    """Parse one process. `gpu` is the GPU that lists it, None if it names its `gpus`."""
    kind = table.parse("type", choice(*_TYPES), "C")
    server = kind == "mps-server"
    every = table.parse("every", parse_positive_duration, 0)
    spec = ProcessSpec(
        name=table.parse("name", parse_name, _SERVER_NAME) if server else table.parse("name", parse_name),
        placements=_parse_placements(table, gpu_count)
        if gpu is None
        else (_parse_instance_placement(table, gpu),),
        executable=table.parse("executable", parse_name, ""),
        comm=table.parse("comm", parse_name, ""),
        types=_TYPES[kind],
        is_mps_server=server,
        user=table.parse("user", parse_name, "root"),
        uid=table.parse("uid", integer(0, 2**32 - 2), 0),
        pid=table.parse("pid", integer(2, _MAX_PID), None),
        memory=table.parse("memory", size, 0),
        load=table.parse("load", parse_ratio, 0),
        noise=table.parse("noise", parse_percent_points, 0),
        memory_load=table.parse("memory_load", parse_ratio, 0),
        encoder=table.parse("encoder", parse_ratio, 0),
        decoder=table.parse("decoder", parse_ratio, 0),
        intensity=table.parse("intensity", parse_ratio, WHOLE),
        busy=table.parse("busy", parse_positive_duration, 0),
        quiet=table.parse("quiet", parse_positive_duration, 0),
        start=table.parse("start", parse_duration, 0),
        stop=table.parse("stop", parse_duration, FOREVER),
        every=every,
        duration=table.parse("for", parse_positive_duration, FOREVER),
        jitter=table.parse("jitter", parse_duration, 0),
        age=table.parse("age", parse_duration, 0),
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
    found: list[PlacementSpec] = []
    for path, value in table.items("gpus"):
        try:
            index = integer(0, gpu_count - 1)(value)
        except ValueError as error:
            raise table.error(path.removeprefix(f"{table.path}."), str(error)) from None
        if PlacementSpec(index) in found:
            raise table.error("gpus", f"GPU {index} is listed twice")
        found.append(PlacementSpec(index))
    if not found:
        raise table.error("gpus", "expected a list of GPU indices")
    return tuple(found)


def _parse_instance_placement(table: ScenarioTable, gpu: int) -> PlacementSpec:
    gi = table.parse("gi", integer(0, 63), None)
    ci = table.parse("ci", integer(0, 63), 0)
    if gi is None and table.has("ci"):
        raise table.error("ci", "ci requires gi")
    return PlacementSpec(gpu, gi, ci)


def parse_placement(table: ScenarioTable, gpu_count: int) -> PlacementSpec:
    """Parse the keys `gpu` and, for an Instance, `gi` and `ci`."""
    return _parse_instance_placement(table, table.parse("gpu", integer(0, gpu_count - 1)))


def parse_pod(table: ScenarioTable) -> PodSpec:
    """Parse the mapping of the key `pod`."""
    pod = ScenarioTable(
        table.raw("pod"), table.path_of("pod"), ("namespace", "name", "container", "uid", "known_after")
    )
    return PodSpec(
        namespace=pod.parse("namespace", parse_name),
        name=pod.parse("name", parse_name),
        container=pod.parse("container", parse_name, "main"),
        uid=pod.parse("uid", parse_name, ""),
        known_after=pod.parse("known_after", parse_duration, 0),
    )


def _parse_owner(table: ScenarioTable) -> OwnerSpec:
    named = [key for key in _OWNERS if table.has(key)]
    if len(named) > 1:
        raise table.error(named[1], f"a process has one owner, and {named[0]} is set already")
    if not named:
        return None
    if named[0] == "pod":
        return parse_pod(table)
    if named[0] == "unit":
        return UnitSpec(table.parse("unit", parse_name))
    if named[0] == "slurm":
        job = ScenarioTable(table.raw("slurm"), table.path_of("slurm"), ("job", "step"))
        return SlurmSpec(job.parse("job", parse_name), job.parse("step", text, "0"))
    container = ScenarioTable(table.raw("container"), table.path_of("container"), ("name", "runtime", "id"))
    return ContainerSpec(
        name=container.parse("name", parse_name),
        runtime=container.parse("runtime", parse_name, "docker"),
        id=container.parse("id", parse_name, ""),
    )
