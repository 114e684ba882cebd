"""From the text of /proc/PID/cgroup to the owner it names: pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from gpuledger.model.text import clean_name, unit_unescaped

# A pod UID is a UUID (systemd's driver writes underscores, for "-" is its hierarchy), or, for a static
# pod, the MD5 of its manifest: 32 hex digits (`kubernetes.io/config.hash`).
_UID = (
    r"(?P<pod_uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}"
    r"|[0-9a-f]{32})"
)
# Shortened ids are believed only where the words around them leave no doubt.
_ID = r"(?P<container_id>[0-9a-f]{12,64})"
_FULL_ID = r"(?P<container_id>[0-9a-f]{64})"
_NAME = r"(?P<container>[^/]+)"
_STEP = r"(?:/step_(?P<step>[^/]+))?"
# 1234.server, 1234[7].server of an array.
_PBS_JOB = r"(?P<job>\d{1,20}[^/]*)"
# A 64-bit number in Crockford's base 32, which has no I, L, O and U, behind an s: sEKNKTV3WPV500.
_SLUID = r"(?P<job>s[0-9A-HJKMNP-TV-Z]{13})"


@dataclass(frozen=True, slots=True)
class Form:
    """One form of one or more whole path segments.

    A colon parts segments too: `SLICE:cri-containerd:ID` is what a runtime with the cgroupfs driver makes
    of a path meant for systemd.

    `scope` is what it stands for: pod, cri (a container that only Kubernetes makes), container, slurm, job
    (of another batch system, which `runtime` names), user (a login's slice), unit, or nothing (known and
    meaningless: consumed so that no other form takes it). Named groups are the fields of CgroupOwner. `seen`
    tells where the form is met.
    """

    scope: str
    pattern: str
    seen: str
    runtime: str = ""

    def compiled(self) -> re.Pattern[str]:
        """The pattern, ending at the end of a segment; digits and hex are ASCII only."""
        return re.compile(rf"(?:{self.pattern})(?=[/:]|\Z)", re.ASCII)


FORMS = (
    # Monitors of container runtimes carry the id of the container but stand outside it.
    Form("nothing", r"(?:crio-|libpod-)?conmon(?:-[^/]+)?", "cri-o and Podman: conmon beside its container"),
    Form("nothing", r"lxc\.monitor(?:[./][^/]+)?", "LXC: the monitor of a container"),
    Form("pod", rf"(?:[^/:]*-)?pod{_UID}\.slice", "Kubernetes, systemd driver, any prefix (kind: kubelet-)"),
    Form("pod", rf"pod{_UID}", "Kubernetes, cgroupfs driver, any quality of service"),
    Form("cri", rf"cri-containerd-{_ID}\.scope", "containerd under Kubernetes, systemd driver", "containerd"),
    Form("cri", rf"cri-containerd:{_ID}", "containerd under Kubernetes, drivers mixed", "containerd"),
    Form("cri", rf"crio-{_ID}(?:\.scope)?", "cri-o, both drivers", "cri-o"),
    Form("cri", rf"crio:{_ID}", "cri-o, drivers mixed", "cri-o"),
    Form("container", rf"docker-{_ID}\.scope", "Docker, systemd driver, rootless too", "docker"),
    Form("container", rf"docker/{_ID}", "Docker, cgroupfs driver", "docker"),
    Form("container", rf"docker:{_ID}", "Docker, drivers mixed", "docker"),
    Form("container", rf"actions_job/{_ID}", "GitHub Actions runner: job containers", "docker"),
    Form("container", rf"ecs/[^/]+/{_FULL_ID}", "Amazon ECS on EC2, cgroupfs driver", "docker"),
    Form(
        "container", r"ecs/[^/]+/(?P<container_id>[0-9a-f]{32}-\d{6,20})", "Amazon ECS on Fargate", "docker"
    ),
    Form(
        "container",
        rf"libpod-(?:payload-)?{_ID}(?:\.scope)?",
        "Podman: both drivers, crun's split cgroups, Quadlet units",
        "podman",
    ),
    Form("container", rf"nerdctl-{_ID}\.scope", "nerdctl, systemd driver", "containerd"),
    Form("container", rf"(?:default|k8s\.io|moby)/{_FULL_ID}", "containerd: ctr, by namespace", "containerd"),
    Form("container", rf"lxc\.payload[./]{_NAME}", "LXC 4 and later, LXD, Incus", "lxc"),
    Form("container", rf"lxc/{_NAME}", "LXC 3 and before, Proxmox", "lxc"),
    Form(
        "container",
        rf"machine-qemu\\x2d\d+\\x2d{_NAME}\.scope",
        "libvirt: a virtual machine (its QEMU is what the driver lists under vGPU)",
        "qemu",
    ),
    Form(
        "container",
        rf"machine-lxc\\x2d\d+\\x2d{_NAME}\.scope",
        "libvirt: a container of its LXC driver",
        "lxc",
    ),
    Form(
        "container",
        r"(?:qemu-\d+-)?(?P<container>[^/]+)\.libvirt-qemu",
        "libvirt without systemd-machined: a virtual machine",
        "qemu",
    ),
    Form(
        "container",
        r"(?:lxc-\d+-)?(?P<container>[^/]+)\.libvirt-lxc",
        "libvirt without systemd-machined: a container",
        "lxc",
    ),
    Form("container", rf"machine-{_NAME}\.scope", "systemd-nspawn and other registered machines", "nspawn"),
    Form("container", rf"systemd-nspawn@{_NAME}\.service", "systemd-nspawn started by its unit", "nspawn"),
    Form("container", _FULL_ID, "a container id alone: cgroupfs pods, --cgroup-parent"),
    Form(
        "slurm",
        r"slurm(?:_[^/]+)?/uid_(?P<uid>\d{1,10})/job_(?P<job>\d{1,20})" + _STEP,
        "Slurm on cgroup v1; slurm_NODE with several slurmd on one machine",
    ),
    Form(
        "slurm",
        r"(?:[^/]+_)?slurmstepd\.scope/job_(?P<job>\d{1,20})" + _STEP,
        "Slurm on cgroup v2; NODE_slurmstepd.scope with several slurmd",
    ),
    Form(
        "slurm",
        rf"(?:[^/]+_)?slurmstepd\.scope/{_SLUID}" + _STEP,
        "Slurm 26.05 on cgroup v2: the SLUID in place of the job id, unless CgroupJobIdPaths=yes. The job is "
        "told by its SLUID: the number is not in the path",
    ),
    Form(
        "slurm",
        r"(?:\.\./)+(?:uid_(?P<uid>\d{1,10})/)?job_(?P<job>\d{1,20})" + _STEP,
        "Slurm seen from a cgroup namespace inside another job",
    ),
    Form(
        "slurm",
        rf"(?:\.\./)+{_SLUID}/step_(?P<step>[^/]+)",
        "Slurm 26.05 seen from a cgroup namespace inside another job",
    ),
    Form("job", rf"pbs_jobs\.service/jobid/{_PBS_JOB}", "PBS Professional, OpenPBS on cgroup v1", "pbs"),
    Form(
        "job",
        rf"pbs_jobs\.service/jobs/{_PBS_JOB}",
        "PBS Professional on cgroup v2; the path has the number in place of the index of an array job",
        "pbs",
    ),
    Form("job", rf"pbspro(?:\.service/jobid)?/{_PBS_JOB}", "PBS Professional 13 and 14", "pbs"),
    Form("job", r"pbspro\.slice/pbspro-(?P<job>\d{1,20}[^/]*)\.slice", "PBS Professional 18, systemd", "pbs"),
    Form("job", rf"torque/{_PBS_JOB}", "TORQUE 6", "torque"),
    Form(
        "unit",
        r"htcondor/condor_[^/]*_(?P<unit>slot\d+(?:_\d+)?(?:@[^/]+)?)",
        "HTCondor: a slot; which job runs in it is not in the path",
        "htcondor",
    ),
    Form("user", r"user-(?P<uid>\d{1,10})\.slice", "systemd-logind: everything of a login"),
    Form("user", r"user@(?P<uid>\d{1,10})\.service", "systemd: a user's own service manager"),
    Form("unit", r"(?P<unit>[^/]+\.(?:service|scope))", "systemd: a service, or a scope such as session-3"),
    Form("unit", r"openrc[./](?P<unit>[^/]+)", "OpenRC services"),
)


_COMPILED = tuple((form, form.compiled()) for form in FORMS)

_SEPARATOR = re.compile("[/:]")
# PATH_MAX; and far more than the parts that any system nests. Owners stand at the beginning, and who may make
# cgroups of his own must not make the tick read them for long.
_LONGEST = 4096
_MOST_PARTS = 128

# When the lines of one process name several owners, the first of these kinds is its owner.
KINDS = ("pod", "slurm", "job", "container", "unit", "user", "unknown")


@dataclass(slots=True)
class CgroupOwner:
    """What a cgroup path says; empty is not said.

    `kind` is one of KINDS. `uid` is the user of the login or job that it stands in, which the uid of the
    process need not be (sudo, user namespaces). `container` is a name only where paths bear names (LXC,
    nspawn). `job` is a Slurm job id, or a SLUID where Slurm writes that; of kind `job` it is the id in the
    words of the batch system that `runtime` names. `missing` says why no more is known.
    """

    kind: str = "unknown"
    pod_uid: str = ""
    container_id: str = ""
    container: str = ""
    runtime: str = ""
    job: str = ""
    step: str = ""
    unit: str = ""
    uid: int | None = None
    missing: str = ""


def owner(text: str) -> CgroupOwner:
    """The owner that the lines of /proc/PID/cgroup name (cgroup v1, v2 and hybrid alike).

    Each line is read by itself; of several owners the first by KINDS stands, of equal kinds the one of
    which more is said (v1 controllers stop at different depths). Never raises.
    """
    paths = tuple(dict.fromkeys(_paths(text)))
    found = [_read_path(path) for path in paths]
    best = min(found, key=_rank, default=CgroupOwner())
    best.missing = _missing(best, paths)
    return best


def _paths(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        # hierarchy:controllers:path; the path itself may hold colons.
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            yield parts[2].removesuffix(" (deleted)")[:_LONGEST]


def _read_path(path: str) -> CgroupOwner:
    walk = _Walk()
    at = 1
    for _ in range(_MOST_PARTS):
        if at >= len(path):
            break
        for form, pattern in _COMPILED:
            if match := pattern.match(path, at):
                walk.enter(form, match)
                at = match.end() + 1
                break
        else:
            at = _next_segment(path, at)
    return walk.result()


def _next_segment(path: str, at: int) -> int:
    end = _SEPARATOR.search(path, at)
    return end.end() if end else len(path)


class _Walk:
    """Walks one path from the outside in: the deepest stands, short of what runs inside a pod's container."""

    def __init__(self) -> None:
        self._owner = CgroupOwner()
        self._in_pod = False
        self._in_login = False
        self._batch = ""

    def enter(self, form: Form, match: re.Match[str]) -> None:
        """Take what the next known segments say."""
        said = match.groupdict()
        if form.scope == "pod":
            self._enter_pod(said)
        elif form.scope in ("cri", "container"):
            self._enter_container(form, said)
        elif form.scope in ("slurm", "job"):
            self._enter_job(form, said)
        elif form.scope == "user":
            self._in_login = self._in_login or not self._contained
            self._take_uid(said["uid"])
        elif form.scope == "unit" and not self._contained and not self._owner.unit:
            self._owner.unit = clean_name(said["unit"])
            self._owner.runtime = form.runtime

    def result(self) -> CgroupOwner:
        """The owner with its kind; a unit beside a pod or a job is only its runtime's daemon."""
        owner = self._owner
        owner.kind = self._kind()
        if owner.kind in ("pod", "slurm", "job"):
            owner.unit = ""
        return owner

    def _enter_pod(self, said: dict[str, str]) -> None:
        owner = self._owner
        owner.pod_uid = said["pod_uid"].replace("_", "-")
        owner.container_id = owner.container = owner.runtime = ""
        self._in_pod = True

    def _enter_container(self, form: Form, said: dict[str, str]) -> None:
        owner = self._owner
        if self._in_pod and (owner.container_id or "container_id" not in said):
            return
        owner.container_id = said.get("container_id") or ""
        owner.container = clean_name(unit_unescaped(said.get("container") or ""))
        owner.runtime = form.runtime
        self._in_pod = self._in_pod or form.scope == "cri"

    def _enter_job(self, form: Form, said: dict[str, str]) -> None:
        owner = self._owner
        owner.job = clean_name(unit_unescaped(said["job"]))
        owner.step = clean_name(said.get("step") or "")
        self._batch = form.scope
        if form.runtime and not self._contained:
            owner.runtime = form.runtime
        self._take_uid(said.get("uid"))

    def _take_uid(self, uid: str | None) -> None:
        # Inside a container the numbers of users are the container's own.
        if uid and not self._contained and self._owner.uid is None:
            self._owner.uid = int(uid)

    @property
    def _contained(self) -> bool:
        return self._in_pod or bool(self._owner.container_id or self._owner.container)

    def _kind(self) -> str:
        owner = self._owner
        if self._in_pod:
            return "pod"
        if owner.job:
            return self._batch
        if owner.container_id or owner.container:
            return "container"
        if self._in_login:
            return "user"
        return "unit" if owner.unit else "unknown"


def _rank(owner: CgroupOwner) -> tuple[int, int]:
    said = sum(value not in ("", None) for value in astuple(owner))
    return (KINDS.index(owner.kind), -said)


def _missing(owner: CgroupOwner, paths: tuple[str, ...]) -> str:
    if owner.kind == "pod":
        return "pod_name"
    if owner.kind == "container" and not owner.container:
        return "container_name"
    if owner.kind != "unknown":
        return ""
    if any(path.startswith("/..") for path in paths):
        return "cgroup_namespace"
    return "unknown_cgroup" if any(path != "/" for path in paths) else "no_cgroup"
