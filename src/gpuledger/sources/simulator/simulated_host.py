"""The simulated host: start time, program, user, cgroup and owner of each process."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.workload import Workload
from gpuledger.sources.simulator.gpu_timeline import ProcessRun
from gpuledger.sources.simulator.hardware import hash_text, hex_digits, make_uuid
from gpuledger.sources.simulator.scenario import (
    SECOND,
    ContainerSpec,
    OwnerSpec,
    PodSpec,
    SlurmSpec,
    UnitSpec,
)

BOOT_ID = "simulated"
FOUND_BY = "simulator"
_TICK = SECOND // 100
_COMM_BYTES = 15


def process_start(run: ProcessRun, uptime: int, unix: float) -> ProcessStart:
    """Return the start of a process; `uptime` (microseconds) and `unix` (seconds) are those of time 0."""
    began = run.start - run.spec.age
    return ProcessStart(BOOT_ID, (uptime + began) // _TICK, unix + began / SECOND)


class SimulatedHost:
    """Builds the HostFacts of runs, with and without pod names, and caches them while the run exists."""

    def __init__(self, seed: int, uptime: int, unix: float) -> None:
        self._seed = seed
        self._uptime = uptime
        self._unix = unix
        self._known: WeakKeyDictionary[ProcessRun, dict[bool, HostFacts]] = WeakKeyDictionary()

    def facts(self, run: ProcessRun, at: int) -> HostFacts:
        """Return the facts known about a run at `at`; pod names are missing until `known_after`."""
        owner = run.spec.owner
        named = not isinstance(owner, PodSpec) or at >= run.start + owner.known_after
        known = self._known.setdefault(run, {})
        if named not in known:
            known[named] = self._build_facts(run, named)
        return known[named]

    def workload(self, owner: OwnerSpec, number: int, user: str, named: bool = True) -> Workload:
        """Build the Workload of an owner; with `named` false, a pod has only its ids."""
        if isinstance(owner, PodSpec):
            return self._build_pod_workload(owner, number, named)
        if isinstance(owner, SlurmSpec):
            workload = Workload("slurm", job=owner.job, step=owner.step)
        elif isinstance(owner, UnitSpec):
            workload = Workload("unit", unit=owner.name)
        elif isinstance(owner, ContainerSpec):
            identity = owner.id or hex_digits(64, self._seed, hash_text(owner.name))
            workload = Workload(
                "container", container=owner.name, container_id=identity, runtime=owner.runtime
            )
        else:
            workload = Workload("user")
        return replace(workload, user=user, found_by=FOUND_BY)

    def _build_pod_workload(self, pod: PodSpec, number: int, named: bool) -> Workload:
        name = pod.name.replace("{n}", str(number))
        identity = hash_text(f"{pod.namespace}/{name}")
        uid = pod.uid or make_uuid(self._seed, identity)
        container_id = hex_digits(64, self._seed, identity, hash_text(pod.container))
        anonymous = Workload(
            "pod", pod_uid=uid, container_id=container_id, runtime="containerd", found_by=FOUND_BY
        )
        if not named:
            return replace(anonymous, missing="pod_name")
        return replace(anonymous, namespace=pod.namespace, pod=name, container=pod.container)

    def _build_facts(self, run: ProcessRun, named: bool) -> HostFacts:
        spec = run.spec
        program = spec.executable or (spec.name if spec.name.startswith("/") else f"/usr/bin/{spec.name}")
        workload = self.workload(spec.owner, run.number, spec.user, named)
        comm = spec.comm or program.rsplit("/", 1)[-1]
        return HostFacts(
            start=process_start(run, self._uptime, self._unix),
            executable=program,
            comm=comm.encode()[:_COMM_BYTES].decode("utf-8", "ignore"),
            uid=spec.uid,
            user=spec.user,
            cgroup=_cgroup(workload, spec.uid),
            workload=workload,
        )


def _cgroup(workload: Workload, uid: int) -> str:
    paths = {
        "pod": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
        f"{workload.pod_uid.replace('-', '_')}.slice/cri-containerd-{workload.container_id}.scope",
        "slurm": f"/system.slice/slurmstepd.scope/job_{workload.job}/step_{workload.step}/user/task_0",
        "unit": f"/system.slice/{workload.unit}",
        "container": f"/system.slice/{workload.runtime}-{workload.container_id}.scope",
        "user": f"/user.slice/user-{uid}.slice/session-1.scope",
    }
    return f"0::{paths[workload.kind]}\n"
