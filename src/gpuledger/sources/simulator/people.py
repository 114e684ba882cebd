"""What the simulated host knows of its processes: start, program, user, cgroup and owner."""

from __future__ import annotations

from gpuledger.model.process import HostFacts, Start
from gpuledger.model.workload import Workload
from gpuledger.sources.simulator.hardware import hexadecimal, number_of, uuid_text
from gpuledger.sources.simulator.scenario import SECOND, Container, Owner, Pod, Slurm, Unit
from gpuledger.sources.simulator.timeline import Run

BOOT_ID = "simulated"
FOUND_BY = "simulator"
_TICK = SECOND // 100
_COMM_BYTES = 15
_REMEMBERED = 1024


def start_of(run: Run, uptime: int, unix: float) -> Start:
    """When the process began; `uptime` (microseconds) and `unix` (seconds) are those of time 0."""
    began = run.start - run.spec.age
    return Start(BOOT_ID, (uptime + began) // _TICK, unix + began / SECOND)


class People:
    """HostFacts of runs, made once per run and state of knowledge."""

    def __init__(self, seed: int, uptime: int, unix: float) -> None:
        self._seed = seed
        self._uptime = uptime
        self._unix = unix
        self._known: dict[tuple[Run, bool], HostFacts] = {}

    def facts(self, run: Run, at: int) -> HostFacts:
        """What is known of a run at `at`; pod names come late when the scenario says so."""
        owner = run.spec.owner
        named = not isinstance(owner, Pod) or at >= run.start + owner.known_after
        key = (run, named)
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = self._facts(run, named)
        return self._known[key]

    def workload(self, owner: Owner, number: int, user: str, named: bool = True) -> Workload:
        """The Workload of an owner; a pod whose names are not known yet has its ids alone."""
        if isinstance(owner, Pod):
            return self._pod(owner, number, named)
        if isinstance(owner, Slurm):
            return Workload("slurm", job=owner.job, step=owner.step, user=user, found_by=FOUND_BY)
        if isinstance(owner, Unit):
            return Workload("unit", unit=owner.name, user=user, found_by=FOUND_BY)
        if isinstance(owner, Container):
            identity = owner.id or hexadecimal(64, self._seed, number_of(owner.name))
            return Workload(
                "container",
                container=owner.name,
                container_id=identity,
                runtime=owner.runtime,
                user=user,
                found_by=FOUND_BY,
            )
        return Workload("user", user=user, found_by=FOUND_BY)

    def _pod(self, pod: Pod, number: int, named: bool) -> Workload:
        name = pod.name.replace("{n}", str(number))
        identity = number_of(f"{pod.namespace}/{name}")
        uid = pod.uid or uuid_text(self._seed, identity)
        container_id = hexadecimal(64, self._seed, identity, number_of(pod.container))
        if not named:
            return Workload(
                "pod",
                pod_uid=uid,
                container_id=container_id,
                runtime="containerd",
                found_by=FOUND_BY,
                missing="pod_name",
            )
        return Workload(
            "pod",
            namespace=pod.namespace,
            pod=name,
            container=pod.container,
            pod_uid=uid,
            container_id=container_id,
            runtime="containerd",
            found_by=FOUND_BY,
        )

    def _facts(self, run: Run, named: bool) -> HostFacts:
        spec = run.spec
        program = spec.executable or (spec.name if spec.name.startswith("/") else f"/usr/bin/{spec.name}")
        workload = self.workload(spec.owner, run.number, spec.user, named)
        comm = spec.comm or program.rsplit("/", 1)[-1]
        return HostFacts(
            start=start_of(run, self._uptime, self._unix),
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
