"""Masking of identifiers in the text of /proc/PID/cgroup, with the same masks as in the owner's labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gpuledger.model.text import clean_name, unescape_unit_name
from gpuledger.sources.replay.masks import Masks

_UUID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_WORDS: Final = r"(?:kubelet|kubepods|burstable|besteffort|guaranteed)"
_RUNTIMES: Final = (
    r"cri-containerd|crio(?:-conmon)?|conmon|docker|libpod(?:-(?:payload|conmon))?|nerdctl|containerd|moby"
)

# Names before the full id of a container, beside `_RUNTIMES`.
_OTHER_RUNTIMES: Final = re.compile(r"runc|crun|youki|runsc|kata|sysbox|balena|apptainer|systemd|run")

# Segments that are the same on every machine.
_PLAIN: Final = re.compile(
    rf"|\.\.|(?:{_WORDS}-)*{_WORDS}(?:\.slice)?|(?:{_RUNTIMES})"
    r"|(?:system|user|machine|init|session|app|background|podruntime|runtime|docker)\.(?:slice|scope)"
    r"|user|system|init|default|k8s\.io|actions_job|ecs|lxc|lxc\.payload|lxc\.monitor|openrc|slurm|libpod_parent"
    r"|slurmstepd\.scope|task_(?:\d+|special)|supervisor|payload|container|session-c?\d+\.scope"
    r"|pbs_jobs\.service|jobid|jobs|pbspro|pbspro\.slice|torque|htcondor|machine|lsf|nomad|share|reserve"
    r"|(?:nomad|share|reserve|qemu)\.slice"
)

SegmentRule = tuple[re.Pattern[str], Callable[[re.Match[str], Masks], str]]


def _build_rules() -> tuple[SegmentRule, ...]:
    """Build the rules for one path segment: a pattern and a masking function; the first match applies.

    Names are shortened as in the model, so that a name gets the same mask in both.
    """
    rows: tuple[tuple[str, Callable[[re.Match[str], Masks], str]], ...] = (
        (rf"(.*-)?pod({_UUID})(\.slice)?", _mask_pod),
        (
            rf"({_RUNTIMES})-([0-9a-f]{{12,64}})(\.scope)?",
            lambda found, masks: f"{found[1]}-{_mask_container_id(found[2], masks)}{found[3] or ''}",
        ),
        (r"[0-9a-f]{12,64}|[0-9a-f]{32}-\d{6,20}", lambda found, masks: _mask_container_id(found[0], masks)),
        (r"user-(\d{1,10})\.slice", lambda found, masks: f"user-{_mask_uid(found[1], masks)}.slice"),
        (
            r"(user-libpod_pod_)([0-9a-f]{64})\.slice",
            lambda found, masks: f"{found[1]}{_mask_container_id(found[2], masks)}.slice",
        ),
        (r"user@(\d{1,10})\.service", lambda found, masks: f"user@{_mask_uid(found[1], masks)}.service"),
        (r"uid_(\d{1,10})", lambda found, masks: f"uid_{_mask_uid(found[1], masks)}"),
        (r"job_(\d+)", lambda found, masks: f"job_{masks.job(found[1])}"),
        (r"s[0-9A-HJKMNP-TV-Z]{13}", lambda found, masks: masks.job(found[0])),
        (r"job\.(\d{1,20})(\.\d+\.\d+)", lambda found, masks: f"job.{masks.job(found[1])}{found[2]}"),
        (
            r"imp-shell-(\d+)-(f[1-9A-HJ-NP-Za-km-z]{1,12})\.service",
            lambda found, masks: f"imp-shell-{found[1]}-{masks.job(found[2])}.service",
        ),
        (
            rf"({_UUID})\.(.+?)(\.scope)?",
            lambda found, masks: f"{masks.job(found[1])}.{masks.step(clean_name(found[2]))}{found[3] or ''}",
        ),
        (
            r"pbspro-(\d.*)\.slice",
            lambda found, masks: (
                f"pbspro-{_escape_dashes(masks.job(clean_name(unescape_unit_name(found[1]))))}.slice"
            ),
        ),
        (
            r"condor_(.*)_(slot\d+(?:_\d+)?(?:@.+)?)",
            lambda found, masks: f"condor_{masks.name('dir', found[1])}_{masks.unit(clean_name(found[2]))}",
        ),
        (r"step_(.+)", lambda found, masks: f"step_{masks.step(clean_name(found[1]))}"),
        (r"slurm_(.+)", lambda found, masks: f"slurm_{masks.name('node', found[1])}"),
        (
            r"(lxc\.(?:payload|monitor)\.|machine-(?:qemu|lxc)\\x2d\d+\\x2d|machine-|systemd-nspawn@)(.+?)(\.scope|\.service)?",
            lambda found, masks: f"{found[1]}{_mask_container_name(found[2], masks)}{found[3] or ''}",
        ),
        (
            r"((?:qemu-\d+-|lxc-\d+-)?)(.+)(\.libvirt-(?:qemu|lxc))",
            lambda found, masks: f"{found[1]}{_mask_container_name(found[2], masks)}{found[3]}",
        ),
        (
            r"([^/:]+)-([0-9a-f]{64})\.scope",
            lambda found, masks: (
                f"{_mask_runtime(found[1], masks)}-{_mask_container_id(found[2], masks)}.scope"
            ),
        ),
        (r"openrc\.(.+)", lambda found, masks: f"openrc.{masks.unit(clean_name(found[1]))}"),
        (r".+\.(?:service|scope|slice|socket|mount)", lambda found, masks: masks.unit(clean_name(found[0]))),
    )
    return tuple((re.compile(pattern, re.ASCII | re.DOTALL), mask) for pattern, mask in rows)


def _mask_pod(found: re.Match[str], masks: Masks) -> str:
    prefix, uid, slice_ = found[1] or "", found[2], found[3] or ""
    if prefix and not _PLAIN.fullmatch(prefix.removesuffix("-")):
        prefix = f"{masks.name('slice', prefix)}-"
    masked = masks.hexadecimal("pod-uid", uid.replace("_", "-"))
    return f"{prefix}pod{masked.replace('-', '_') if '_' in uid else masked}{slice_}"


def _mask_container_id(identity: str, masks: Masks) -> str:
    return masks.hexadecimal("container-id", identity)


def _mask_uid(uid: str, masks: Masks) -> str:
    return str(masks.uid(int(uid)))


def _mask_container_name(name: str, masks: Masks) -> str:
    return masks.container(clean_name(unescape_unit_name(name)))


def _mask_runtime(name: str, masks: Masks) -> str:
    return name if _OTHER_RUNTIMES.fullmatch(name) else masks.name("runtime", name)


def _mask_machine(segment: str, masks: Masks) -> str:
    """Mask `NUMBER.scope` of a virtual machine of Proxmox."""
    number, dot, suffix = segment.partition(".")
    return f"{masks.container(number)}{dot}{suffix}" if suffix == "scope" else masks.name("cgroup", segment)


_RULES: Final = _build_rules()
# A segment below one of these is always a name.
_NAMED_BELOW: Final[dict[str, Callable[[str, Masks], str]]] = {
    "lxc": _mask_container_name,
    "lxc.payload": _mask_container_name,
    "lxc.monitor": _mask_container_name,
    "openrc": lambda name, masks: masks.unit(clean_name(name)),
    **dict.fromkeys(("jobid", "jobs", "pbspro", "torque"), lambda name, masks: masks.job(clean_name(name))),
    "ecs": lambda name, masks: masks.name("task", name),
    "qemu.slice": _mask_machine,
    "lsf": lambda name, masks: masks.name("cluster", name),
}


def mask_cgroup(text: str, masks: Masks) -> str:
    """Mask the path of each line, segment by segment; segments that are not known as harmless are masked."""
    return "\n".join(_mask_line(line, masks) for line in text.split("\n"))


def _mask_line(line: str, masks: Masks) -> str:
    hierarchy, first, rest = line.partition(":")
    controllers, second, path = rest.partition(":")
    if not second:
        return masks.name("cgroup", line)
    deleted = " (deleted)" if path.endswith(" (deleted)") else ""
    masked: list[str] = []
    parent = ""
    for segment in path.removesuffix(deleted).split("/"):
        masked.append(_mask_segment(segment, parent, masks))
        parent = segment
    return f"{hierarchy}{first}{controllers}{second}{'/'.join(masked)}{deleted}"


def _mask_segment(segment: str, parent: str, masks: Masks) -> str:
    if parent in _NAMED_BELOW and segment:
        return _NAMED_BELOW[parent](segment, masks)
    if _PLAIN.fullmatch(segment):
        return segment
    for pattern, mask in _RULES:
        if found := pattern.fullmatch(segment):
            return mask(found, masks)
    # `SLICE:cri-containerd:ID`. Unit names of D-Bus have colons too, but match a rule above.
    if ":" in segment:
        return ":".join(_mask_segment(part, "", masks) for part in segment.split(":"))
    return masks.name("cgroup", segment)


def _escape_dashes(name: str) -> str:
    r"""Escape dashes as systemd does (`\x2d`); masks contain no other character that needs it."""
    return name.replace("-", r"\x2d")
