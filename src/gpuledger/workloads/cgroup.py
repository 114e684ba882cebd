"""Parses the text of /proc/PID/cgroup into the owner that it names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

from gpuledger.model.text import clean_name, unescape_unit_name

# A pod UID is a UUID (the systemd driver writes underscores, because "-" separates slices), or, for a static
# pod, the MD5 of its manifest: 32 hex digits (`kubernetes.io/config.hash`).
_UID = (
    r"(?P<pod_uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}"
    r"|[0-9a-f]{32})"
)
# Shortened ids are accepted only in unambiguous forms.
_ID = r"(?P<container_id>[0-9a-f]{12,64})"
_FULL_ID = r"(?P<container_id>[0-9a-f]{64})"
_NAME = r"(?P<container>[^/]+)"
_STEP = r"(?:/step_(?P<step>[^/]+))?"
# 1234.server, 1234[7].server of an array.
_PBS_JOB = r"(?P<job>\d{1,20}[^/]*)"
_NOMAD_TASK = r"(?P<job>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(?P<step>[^/]+?)"
# A 64-bit number in Crockford's base 32, which has no I, L, O and U, behind an s: sEKNKTV3WPV500.
_SLUID = r"(?P<job>s[0-9A-HJKMNP-TV-Z]{13})"


class CgroupForm(NamedTuple):
    """One known form of one or more whole path segments.

    A colon separates segments too: a runtime with the cgroupfs driver turns a path meant for systemd into
    `SLICE:cri-containerd:ID`.

    `scope` is what the form names: pod, cri (a container that only Kubernetes creates), container, slurm, job
    (of another batch system, named by `runtime`), user (a login slice), unit, or nothing (known but without
    an owner: consumed so that no other form matches it). Named groups are fields of CgroupOwner. `where`
    documents which software writes the form.
    """

    scope: str
    pattern: str
    where: str
    runtime: str = ""

    def compiled(self) -> re.Pattern[str]:
        """The pattern, anchored at the end of a segment; digits and hex are ASCII only."""
        return re.compile(rf"(?:{self.pattern})(?=[/:]|\Z)", re.ASCII)


CGROUP_FORMS = (
    # Monitors of container runtimes carry the id of the container but run outside it.
    CgroupForm(
        "nothing", r"(?:crio-|libpod-)?conmon(?:-[^/]+)?", "cri-o and Podman: conmon beside its container"
    ),
    CgroupForm("nothing", r"lxc\.monitor(?:[./][^/]+)?", "LXC: the monitor of a container"),
    # A pod of Podman is no container: `podman ps` lists only those in it.
    CgroupForm("nothing", r"libpod_parent/[0-9a-f]{64}(?=/libpod-)", "Podman, cgroupfs driver: a pod"),
    CgroupForm(
        "pod", rf"(?:[^/:]*-)?pod{_UID}\.slice", "Kubernetes, systemd driver, any prefix (kind: kubelet-)"
    ),
    CgroupForm("pod", rf"pod{_UID}", "Kubernetes, cgroupfs driver, any quality of service"),
    CgroupForm(
        "cri", rf"cri-containerd-{_ID}\.scope", "containerd under Kubernetes, systemd driver", "containerd"
    ),
    CgroupForm("cri", rf"cri-containerd:{_ID}", "containerd under Kubernetes, drivers mixed", "containerd"),
    CgroupForm("cri", rf"crio-{_ID}(?:\.scope)?", "cri-o, both drivers", "cri-o"),
    CgroupForm("cri", rf"crio:{_ID}", "cri-o, drivers mixed", "cri-o"),
    CgroupForm("container", rf"docker-{_ID}\.scope", "Docker, systemd driver, rootless too", "docker"),
    CgroupForm("container", rf"docker/{_ID}", "Docker, cgroupfs driver", "docker"),
    CgroupForm("container", rf"docker:{_ID}", "Docker, drivers mixed", "docker"),
    CgroupForm("container", rf"actions_job/{_ID}", "GitHub Actions runner: job containers", "docker"),
    CgroupForm("container", rf"ecs/[^/]+/{_FULL_ID}", "Amazon ECS on EC2, cgroupfs driver", "docker"),
    CgroupForm(
        "container", r"ecs/[^/]+/(?P<container_id>[0-9a-f]{32}-\d{6,20})", "Amazon ECS on Fargate", "docker"
    ),
    CgroupForm(
        "container",
        rf"libpod-(?:payload-)?{_ID}(?:\.scope)?",
        "Podman: both drivers, crun's split cgroups, Quadlet units",
        "podman",
    ),
    CgroupForm("container", rf"nerdctl-{_ID}\.scope", "nerdctl, systemd driver", "containerd"),
    CgroupForm(
        "container", rf"(?:default|k8s\.io|moby)/{_FULL_ID}", "containerd: ctr, by namespace", "containerd"
    ),
    CgroupForm("container", rf"lxc\.payload[./]{_NAME}", "LXC 4 and later, LXD, Incus", "lxc"),
    CgroupForm("container", rf"lxc/{_NAME}", "LXC 3 and before, Proxmox", "lxc"),
    CgroupForm(
        "container",
        rf"machine-qemu\\x2d\d+\\x2d{_NAME}\.scope",
        "libvirt: a virtual machine (its QEMU is what the driver lists under vGPU)",
        "qemu",
    ),
    CgroupForm(
        "container",
        rf"machine-lxc\\x2d\d+\\x2d{_NAME}\.scope",
        "libvirt: a container of its LXC driver",
        "lxc",
    ),
    CgroupForm(
        "container",
        r"(?:qemu-\d+-)?(?P<container>[^/]+)\.libvirt-qemu",
        "libvirt without systemd-machined: a virtual machine",
        "qemu",
    ),
    CgroupForm(
        "container",
        r"(?:lxc-\d+-)?(?P<container>[^/]+)\.libvirt-lxc",
        "libvirt without systemd-machined: a container",
        "lxc",
    ),
    CgroupForm(
        "container",
        r"qemu\.slice/(?P<container>\d{1,10})\.scope",
        "Proxmox: a virtual machine, by its number",
        "qemu",
    ),
    CgroupForm(
        "container", rf"machine-{_NAME}\.scope", "systemd-nspawn and other registered machines", "nspawn"
    ),
    CgroupForm(
        "container", rf"systemd-nspawn@{_NAME}\.service", "systemd-nspawn started by its unit", "nspawn"
    ),
    CgroupForm("container", _FULL_ID, "a container id alone: cgroupfs pods, --cgroup-parent"),
    CgroupForm(
        "container",
        rf"[^/:]+-{_FULL_ID}\.scope",
        "any other runtime, systemd driver: runc, youki, balenaEngine",
    ),
    CgroupForm(
        "slurm",
        r"slurm(?:_[^/]+)?/uid_(?P<uid>\d{1,10})/job_(?P<job>\d{1,20})" + _STEP,
        "Slurm on cgroup v1; slurm_NODE with several slurmd on one machine",
    ),
    CgroupForm(
        "slurm",
        r"(?:[^/]+_)?slurmstepd\.scope/job_(?P<job>\d{1,20})" + _STEP,
        "Slurm on cgroup v2; NODE_slurmstepd.scope with several slurmd",
    ),
    CgroupForm(
        "slurm",
        rf"(?:[^/]+_)?slurmstepd\.scope/{_SLUID}" + _STEP,
        "Slurm 26.05 on cgroup v2: the SLUID in place of the job id, unless CgroupJobIdPaths=yes. The path "
        "has no job number",
    ),
    CgroupForm(
        "slurm",
        r"(?:\.\./)+(?:uid_(?P<uid>\d{1,10})/)?job_(?P<job>\d{1,20})" + _STEP,
        "Slurm seen from a cgroup namespace inside another job",
    ),
    CgroupForm(
        "slurm",
        rf"(?:\.\./)+{_SLUID}/step_(?P<step>[^/]+)",
        "Slurm 26.05 seen from a cgroup namespace inside another job",
    ),
    CgroupForm(
        "job", rf"pbs_jobs\.service/jobid/{_PBS_JOB}", "PBS Professional, OpenPBS on cgroup v1", "pbs"
    ),
    CgroupForm(
        "job",
        rf"pbs_jobs\.service/jobs/{_PBS_JOB}",
        "PBS Professional on cgroup v2; the path has the number in place of the index of an array job",
        "pbs",
    ),
    CgroupForm("job", rf"pbspro(?:\.service/jobid)?/{_PBS_JOB}", "PBS Professional 13 and 14", "pbs"),
    CgroupForm(
        "job", r"pbspro\.slice/pbspro-(?P<job>\d{1,20}[^/]*)\.slice", "PBS Professional 18, systemd", "pbs"
    ),
    CgroupForm("job", rf"torque/{_PBS_JOB}", "TORQUE 6", "torque"),
    CgroupForm("job", r"lsf/[^/]+/job\.(?P<job>\d{1,20})\.\d+\.\d+", "IBM Spectrum LSF: lsf/CLUSTER", "lsf"),
    CgroupForm(
        "job",
        r"imp-shell-\d+-(?P<job>f[1-9A-HJ-NP-Za-km-z]{1,12})\.service",
        "Flux with sdexec, as a unit of the service manager of Flux's own user; the id is in base 58",
        "flux",
    ),
    CgroupForm(
        "job",
        rf"nomad\.slice/(?:(?:share|reserve)\.slice/)?{_NOMAD_TASK}\.scope",
        "Nomad on cgroup v2: the allocation and the task",
        "nomad",
    ),
    CgroupForm("job", rf"nomad/(?:(?:share|reserve)/)?{_NOMAD_TASK}", "Nomad on cgroup v1", "nomad"),
    CgroupForm(
        "unit",
        r"htcondor/condor_[^/]*_(?P<unit>slot\d+(?:_\d+)?(?:@[^/]+)?)",
        "HTCondor: a slot; which job runs in it is not in the path",
        "htcondor",
    ),
    CgroupForm("user", r"user-(?P<uid>\d{1,10})\.slice", "systemd-logind: everything of a login"),
    CgroupForm("user", r"user@(?P<uid>\d{1,10})\.service", "systemd: a user's own service manager"),
    CgroupForm("user", r"user-libpod_pod_[0-9a-f]{64}\.slice", "Podman, rootless, older: a pod of Podman"),
    CgroupForm(
        "unit", r"(?P<unit>[^/]+\.(?:service|scope))", "systemd: a service, or a scope such as session-3"
    ),
    CgroupForm("unit", r"openrc[./](?P<unit>[^/]+)", "OpenRC services"),
)


_COMPILED_FORMS = tuple((form, form.compiled()) for form in CGROUP_FORMS)

_SEPARATOR = re.compile("[/:]")
# PATH_MAX, and far more segments than any system nests. The owner is at the beginning of the path; the limits
# keep users who can create cgroups from slowing down the tick.
_MAX_PATH = 4096
_MAX_SEGMENTS = 128

# By precedence: if the lines of one process name several owners, the first of these kinds wins.
OWNER_KINDS = ("pod", "slurm", "job", "container", "unit", "user", "unknown")


@dataclass(slots=True)
class CgroupOwner:
    """The owner that a cgroup path names; unknown fields are empty.

    `kind` is one of OWNER_KINDS. `uid` is the user of the enclosing login or job, which can differ from the
    uid of the process (sudo, user namespaces); of a Flux job it is Flux's own. `container` is a name, set
    only if paths contain names (LXC, nspawn). `job` is a Slurm job id, or a SLUID if Slurm writes that; for
    kind `job` it is the id as written by the batch system that `runtime` names. `missing` is the reason why
    the owner is incomplete. `outer` is the pod, job, container or login in which this pod or container runs
    (kind, k3k, Docker in Docker, rootless Podman). `inner_container` is the id of a container that runs
    inside the pod's container.
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
    inner_container: str = ""
    outer: CgroupOwner | None = None


def parse_cgroup(text: str) -> CgroupOwner:
    """The owner that the lines of /proc/PID/cgroup name (cgroup v1, v2 and hybrid alike).

    Each line is parsed separately. Of several owners the first by OWNER_KINDS wins, of equal kinds the one
    with more fields (v1 controllers stop at different depths). Never raises.
    """
    paths = tuple(dict.fromkeys(_paths(text)))
    found = [_parse_path(path) for path in paths]
    best = min(found, key=_rank, default=CgroupOwner())
    owner: CgroupOwner | None = best
    while owner is not None:
        owner.missing = _missing(owner, paths)
        owner = owner.outer
    return best


def _paths(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        # hierarchy:controllers:path; the path may contain colons.
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            yield parts[2].removesuffix(" (deleted)")[:_MAX_PATH]


def _parse_path(path: str) -> CgroupOwner:
    walk = _PathWalk()
    offset = 1
    for _ in range(_MAX_SEGMENTS):
        if offset >= len(path):
            break
        for form, pattern in _COMPILED_FORMS:
            if match := pattern.match(path, offset):
                walk.enter(form, match)
                offset = match.end() + 1
                break
        else:
            separator = _SEPARATOR.search(path, offset)
            offset = separator.end() if separator else len(path)
    return walk.result()


class _PathWalk:
    """Walks one path from the outside in. The deepest owner wins, except below a pod's container.

    A pod or container within another owner keeps that one as `outer`. Users create and name cgroups below
    their login, and pods below their own: a pod or job there is no evidence, a container is one of the login.
    """

    def __init__(self) -> None:
        self._owner = CgroupOwner()
        self._in_pod = False
        self._in_login = False
        self._job_kind = ""

    def enter(self, form: CgroupForm, match: re.Match[str]) -> None:
        """Record the segments that matched `form`."""
        groups = match.groupdict()
        if self._is_untrusted(form):
            return
        if form.scope == "pod":
            self._enter_pod(groups)
        elif form.scope in ("cri", "container"):
            self._enter_container(form, groups)
        elif form.scope in ("slurm", "job"):
            self._enter_job(form, groups)
        elif form.scope == "user":
            self._in_login = self._in_login or not self._contained
            self._set_uid(groups.get("uid"))
        elif form.scope == "unit" and not self._contained and not self._owner.unit:
            self._owner.unit = clean_name(groups["unit"])
            self._owner.runtime = form.runtime

    def result(self) -> CgroupOwner:
        """The owner with its kind. Drops the unit of a pod or a job: it is only the runtime's daemon."""
        owner = self._owner
        owner.kind = self._kind()
        if owner.kind in ("pod", "slurm", "job"):
            owner.unit = ""
        return owner

    def _is_untrusted(self, form: CgroupForm) -> bool:
        if form.scope in ("slurm", "job"):
            # A unit of Flux is checked by the uid of its processes.
            return self._in_pod or (self._in_login and form.runtime != "flux")
        return form.scope in ("pod", "cri") and self._in_login

    def _enter_pod(self, groups: dict[str, str]) -> None:
        pod_uid = groups["pod_uid"].replace("_", "-")
        if pod_uid != self._owner.pod_uid:
            self._enclose()
        owner = self._owner
        owner.pod_uid = pod_uid
        owner.container_id = owner.container = owner.runtime = owner.inner_container = ""
        self._in_pod = True

    def _enclose(self) -> None:
        """Keep the owner so far: what follows runs inside it."""
        kind = self._kind()
        if kind in ("pod", "slurm", "job", "container", "user"):
            self._owner.outer = replace(self._owner, kind=kind, unit="")

    def _enter_container(self, form: CgroupForm, groups: dict[str, str]) -> None:
        owner = self._owner
        if owner.container_id and owner.container_id == groups.get("container_id"):
            # Named twice, as by Podman's split cgroups.
            return
        if self._in_pod and (owner.container_id or "container_id" not in groups):
            owner.inner_container = groups.get("container_id") or owner.inner_container
            return
        if not self._in_pod and (self._contained or self._kind() == "user"):
            self._enclose()
        owner.container_id = groups.get("container_id") or ""
        owner.container = clean_name(unescape_unit_name(groups.get("container") or ""))
        owner.runtime = form.runtime
        self._in_pod = self._in_pod or form.scope == "cri"

    def _enter_job(self, form: CgroupForm, groups: dict[str, str]) -> None:
        owner = self._owner
        owner.job = clean_name(unescape_unit_name(groups["job"]))
        owner.step = clean_name(groups.get("step") or "")
        self._job_kind = form.scope
        if form.runtime and not self._contained:
            owner.runtime = form.runtime
        self._set_uid(groups.get("uid"))

    def _set_uid(self, uid: str | None) -> None:
        # Inside a container, uids belong to the container.
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
            return self._job_kind
        if owner.container_id or owner.container:
            return "container"
        if self._in_login:
            return "user"
        return "unit" if owner.unit else "unknown"


def _rank(owner: CgroupOwner) -> tuple[int, int]:
    known = sum(value not in ("", None) for value in astuple(owner))
    return (OWNER_KINDS.index(owner.kind), -known)


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
