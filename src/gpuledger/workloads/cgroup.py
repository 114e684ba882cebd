"""From the text of /proc/PID/cgroup to the owner it names: pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from gpuledger.model.text import clean_name, unit_unescaped
from gpuledger.workloads.forms import FORMS, Form

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
