"""The text of /proc/PID/cgroup with its identifiers masked: the same owner's parts, under the same masks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gpuledger.model.text import clean_name, unit_unescaped
from gpuledger.sources.replay.masks import Masks

_UUID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_WORDS: Final = r"(?:kubelet|kubepods|burstable|besteffort|guaranteed)"
_RUNTIMES: Final = (
    r"cri-containerd|crio(?:-conmon)?|conmon|docker|libpod(?:-(?:payload|conmon))?|nerdctl|containerd|moby"
)

# Segments that are the same on every machine.
_PLAIN: Final = re.compile(
    rf"|\.\.|(?:{_WORDS}-)*{_WORDS}(?:\.slice)?|(?:{_RUNTIMES})"
    r"|(?:system|user|machine|init|session|app|background|podruntime|runtime|docker)\.(?:slice|scope)"
    r"|user|system|init|default|k8s\.io|actions_job|ecs|lxc|lxc\.payload|lxc\.monitor|openrc|slurm|libpod_parent"
    r"|slurmstepd\.scope|task_(?:\d+|special)|supervisor|payload|container|session-c?\d+\.scope"
    r"|pbs_jobs\.service|jobid|jobs|pbspro|pbspro\.slice|torque|htcondor|machine"
)

Rule = tuple[re.Pattern[str], Callable[[re.Match[str], Masks], str]]


def _rules() -> tuple[Rule, ...]:
    """Forms of one segment: the pattern, and the segment with its identifiers masked. The first fits.

    Names are cut as they are in the model, so that the same one gets the same mask there and here.
    """
    rows: tuple[tuple[str, Callable[[re.Match[str], Masks], str]], ...] = (
        (rf"(.*-)?pod({_UUID})(\.slice)?", _pod),
        (
            rf"({_RUNTIMES})-([0-9a-f]{{12,64}})(\.scope)?",
            lambda found, masks: f"{found[1]}-{_id(found[2], masks)}{found[3] or ''}",
        ),
        (r"[0-9a-f]{12,64}|[0-9a-f]{32}-\d{6,20}", lambda found, masks: _id(found[0], masks)),
        (r"user-(\d{1,10})\.slice", lambda found, masks: f"user-{_uid(found[1], masks)}.slice"),
        (r"user@(\d{1,10})\.service", lambda found, masks: f"user@{_uid(found[1], masks)}.service"),
        (r"uid_(\d{1,10})", lambda found, masks: f"uid_{_uid(found[1], masks)}"),
        (r"job_(\d+)", lambda found, masks: f"job_{masks.job(found[1])}"),
        (r"s[0-9A-HJKMNP-TV-Z]{13}", lambda found, masks: masks.job(found[0])),
        (
            r"pbspro-(\d.*)\.slice",
            lambda found, masks: f"pbspro-{_escaped(masks.job(clean_name(unit_unescaped(found[1]))))}.slice",
        ),
        (
            r"condor_(.*)_(slot\d+(?:_\d+)?(?:@.+)?)",
            lambda found, masks: f"condor_{masks.name('dir', found[1])}_{masks.unit(clean_name(found[2]))}",
        ),
        (r"step_(.+)", lambda found, masks: f"step_{masks.step(clean_name(found[1]))}"),
        (r"slurm_(.+)", lambda found, masks: f"slurm_{masks.name('node', found[1])}"),
        (
            r"(lxc\.(?:payload|monitor)\.|machine-(?:qemu|lxc)\\x2d\d+\\x2d|machine-|systemd-nspawn@)(.+?)(\.scope|\.service)?",
            lambda found, masks: f"{found[1]}{_container(found[2], masks)}{found[3] or ''}",
        ),
        (
            r"((?:qemu-\d+-|lxc-\d+-)?)(.+)(\.libvirt-(?:qemu|lxc))",
            lambda found, masks: f"{found[1]}{_container(found[2], masks)}{found[3]}",
        ),
        (r"openrc\.(.+)", lambda found, masks: f"openrc.{masks.unit(clean_name(found[1]))}"),
        (r".+\.(?:service|scope|slice|socket|mount)", lambda found, masks: masks.unit(clean_name(found[0]))),
    )
    return tuple((re.compile(pattern, re.ASCII | re.DOTALL), mask) for pattern, mask in rows)


def _pod(found: re.Match[str], masks: Masks) -> str:
    prefix, uid, slice_ = found[1] or "", found[2], found[3] or ""
    if prefix and not _PLAIN.fullmatch(prefix.removesuffix("-")):
        prefix = f"{masks.name('slice', prefix)}-"
    masked = masks.hexadecimal("pod-uid", uid.replace("_", "-"))
    return f"{prefix}pod{masked.replace('-', '_') if '_' in uid else masked}{slice_}"


def _id(identity: str, masks: Masks) -> str:
    return masks.hexadecimal("container-id", identity)


def _uid(uid: str, masks: Masks) -> str:
    return str(masks.uid(int(uid)))


def _container(name: str, masks: Masks) -> str:
    return masks.name("container", clean_name(unit_unescaped(name)))


_RULES: Final = _rules()
# Below these a segment is a name, whatever it looks like.
_NAMED_BELOW: Final[dict[str, Callable[[str, Masks], str]]] = {
    "lxc": _container,
    "lxc.payload": _container,
    "lxc.monitor": _container,
    "openrc": lambda name, masks: masks.unit(clean_name(name)),
    **dict.fromkeys(("jobid", "jobs", "pbspro", "torque"), lambda name, masks: masks.job(clean_name(name))),
    "ecs": lambda name, masks: masks.name("task", name),
}


def mask_cgroup(text: str, masks: Masks) -> str:
    """Each line with its path masked, segment by segment; what is not known to be harmless is masked."""
    return "\n".join(_line(line, masks) for line in text.split("\n"))


def _line(line: str, masks: Masks) -> str:
    hierarchy, first, rest = line.partition(":")
    controllers, second, path = rest.partition(":")
    if not second:
        return masks.name("cgroup", line)
    deleted = " (deleted)" if path.endswith(" (deleted)") else ""
    masked: list[str] = []
    before = ""
    for segment in path.removesuffix(deleted).split("/"):
        masked.append(_segment(segment, before, masks))
        before = segment
    return f"{hierarchy}{first}{controllers}{second}{'/'.join(masked)}{deleted}"


def _segment(segment: str, before: str, masks: Masks) -> str:
    if before in _NAMED_BELOW and segment:
        return _NAMED_BELOW[before](segment, masks)
    if _PLAIN.fullmatch(segment):
        return segment
    for pattern, mask in _RULES:
        if found := pattern.fullmatch(segment):
            return mask(found, masks)
    # `SLICE:cri-containerd:ID`; units of D-Bus have colons too, and were met above.
    if ":" in segment:
        return ":".join(_segment(part, "", masks) for part in segment.split(":"))
    return masks.name("cgroup", segment)


def _escaped(name: str) -> str:
    r"""Do systemd's `\xNN` for the one character of stand-ins that needs it."""
    return name.replace("-", r"\x2d")
