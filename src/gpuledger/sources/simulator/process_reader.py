"""The part of a scenario file that says which processes there are, where, when and whose."""

from __future__ import annotations

from gpuledger.model.process import ProcessType
from gpuledger.model.settings import choice, integer, size, text
from gpuledger.sources.simulator import table
from gpuledger.sources.simulator.scenario import (
    FOREVER,
    WHOLE,
    Container,
    Owner,
    Place,
    Pod,
    ProcessSpec,
    Slurm,
    Unit,
)
from gpuledger.sources.simulator.table import Table

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
# Keys of a process under its GPU, and of one that stands apart because it sits on several.
SEATED = (*_COMMON, *_OWNERS, "gi", "ci")
FREE = (*_COMMON, *_OWNERS, "gpus")

_C, _G, _M = ProcessType.COMPUTE, ProcessType.GRAPHICS, ProcessType.MPS
_TYPES = {
    "C": frozenset({_C}),
    "G": frozenset({_G}),
    "C+G": frozenset({_C, _G}),
    "mps-client": frozenset({_M, _C}),
    "mps-server": frozenset({_C}),
}
_SERVER_NAME = "nvidia-cuda-mps-server"
_LARGEST_PID = 2**22


def read_process(given: Table, gpu: int | None, gpus: int) -> ProcessSpec:
    """One process; `gpu` is the GPU it stands under, None where the file names its `gpus` (of so many)."""
    kind = given.take("type", choice(*_TYPES), "C")
    server = kind == "mps-server"
    every = given.take("every", table.positive_span, 0)
    spec = ProcessSpec(
        name=given.take("name", table.name, _SERVER_NAME) if server else given.take("name", table.name),
        places=_places(given, gpus) if gpu is None else (_instance_place(given, gpu),),
        executable=given.take("executable", table.name, ""),
        comm=given.take("comm", table.name, ""),
        types=_TYPES[kind],
        is_mps_server=server,
        user=given.take("user", table.name, "root"),
        uid=given.take("uid", integer(0, 2**32 - 2), 0),
        pid=given.take("pid", integer(2, _LARGEST_PID), None),
        memory=given.take("memory", size, 0),
        load=given.take("load", table.ratio, 0),
        noise=given.take("noise", table.points, 0),
        memory_load=given.take("memory_load", table.ratio, 0),
        encoder=given.take("encoder", table.ratio, 0),
        decoder=given.take("decoder", table.ratio, 0),
        intensity=given.take("intensity", table.ratio, WHOLE),
        busy=given.take("busy", table.positive_span, 0),
        quiet=given.take("quiet", table.positive_span, 0),
        start=given.take("start", table.span, 0),
        stop=given.take("stop", table.span, FOREVER),
        every=every,
        lasting=given.take("for", table.positive_span, FOREVER),
        jitter=given.take("jitter", table.span, 0),
        age=given.take("age", table.span, 0),
        owner=_owner(given),
    )
    _check_times(given, spec)
    if server and (spec.load or spec.encoder or spec.decoder):
        raise given.fail("load", "an MPS server does no work of its own; give it to its clients")
    return spec


def _check_times(given: Table, spec: ProcessSpec) -> None:
    if spec.stop <= spec.start:
        raise given.fail("stop", "a time after the start is wanted")
    if bool(spec.busy) != bool(spec.quiet):
        raise given.fail("busy" if spec.quiet else "quiet", "busy and quiet go together")
    if spec.every and spec.lasting == FOREVER:
        raise given.fail("for", "a process that comes again must end: say how long it lasts")
    if spec.jitter and not spec.every:
        raise given.fail("jitter", "jitter belongs to every")
    if spec.jitter > spec.every:
        raise given.fail("jitter", "at most the time of every is wanted")
    if spec.every and spec.lasting > 100 * spec.every:
        raise given.fail("for", "at most 100 times every is wanted")
    if spec.every and spec.pid is not None and spec.lasting + spec.jitter > spec.every:
        raise given.fail("pid", "runs that overlap cannot share a pid")


def _places(given: Table, gpus: int) -> tuple[Place, ...]:
    found: list[Place] = []
    for path, value in given.items("gpus"):
        try:
            index = integer(0, gpus - 1)(value)
        except ValueError as error:
            raise given.fail(path.removeprefix(f"{given.path}."), str(error)) from None
        if Place(index) in found:
            raise given.fail("gpus", f"GPU {index} stands there twice")
        found.append(Place(index))
    if not found:
        raise given.fail("gpus", "a list of GPU indices is wanted")
    return tuple(found)


def _instance_place(given: Table, gpu: int) -> Place:
    gi = given.take("gi", integer(0, 63), None)
    ci = given.take("ci", integer(0, 63), 0)
    if gi is None and given.has("ci"):
        raise given.fail("ci", "an instance is named by gi and ci")
    return Place(gpu, gi, ci)


def read_place(given: Table, gpus: int) -> Place:
    """The device named by `gpu`, and `gi` and `ci` for an Instance."""
    return _instance_place(given, given.take("gpu", integer(0, gpus - 1)))


def read_pod(given: Table) -> Pod:
    """The pod under the key `pod`."""
    pod = Table(given.raw("pod"), given.at("pod"), ("namespace", "name", "container", "uid", "known_after"))
    return Pod(
        namespace=pod.take("namespace", table.name),
        name=pod.take("name", table.name),
        container=pod.take("container", table.name, "main"),
        uid=pod.take("uid", table.name, ""),
        known_after=pod.take("known_after", table.span, 0),
    )


def _owner(given: Table) -> Owner:
    named = [key for key in _OWNERS if given.has(key)]
    if len(named) > 1:
        raise given.fail(named[1], f"a process has one owner, and {named[0]} is given")
    if not named:
        return None
    if named[0] == "pod":
        return read_pod(given)
    if named[0] == "unit":
        return Unit(given.take("unit", table.name))
    if named[0] == "slurm":
        job = Table(given.raw("slurm"), given.at("slurm"), ("job", "step"))
        return Slurm(job.take("job", table.name), job.take("step", text, "0"))
    box = Table(given.raw("container"), given.at("container"), ("name", "runtime", "id"))
    return Container(
        name=box.take("name", table.name),
        runtime=box.take("runtime", table.name, "docker"),
        id=box.take("id", table.name, ""),
    )
