"""The one judgement of what is wrong with a GPU, for metrics, API, page, `/health` and `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gpuledger.model import quantities as q
from gpuledger.model.checks import Finding, Subject, fails, warning, works
from gpuledger.model.devices import NVIDIA, Instance
from gpuledger.model.down_reasons import describe_down, down_remedy
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import ThrottleRow, XidRow
from gpuledger.model.snapshot import Reading, nvlinks
from gpuledger.model.xids import XID_ACTIONS, Level, find_xid, xid_advice


class GpuProblem(NamedTuple):
    """One thing that is wrong with a GPU.

    `label` names it in a few words, `summary` ends a sentence about the GPU, and `remedy` says what to do.
    `failure`: do it now; `warning`: the GPU is slower or will fail; `info`: it can stay as it is. `since` is
    unix seconds, None if unknown; it happened `times` times. `ratio` is the share of `observed` seconds.
    """

    kind: str
    level: Level
    label: str
    summary: str
    remedy: str
    since: float | None = None
    times: int = 1
    ratio: float | None = None
    observed: float | None = None

    def __str__(self) -> str:
        """The summary with since when, how often, and the share of the observed part of the last hour."""
        text = self.summary
        if self.since is not None:
            moment = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            text += f" {'at' if self.kind == 'xid' else 'since'} {moment}"
        if self.kind == "xid" and self.times > 1:
            text += f", {self.times} times"
        if self.ratio is not None and self.observed is not None:
            minutes = self.observed / 60
            part = "hour" if minutes >= _FULL_HOUR else f"{max(minutes, 1):.0f} min"
            text += f", for {self.ratio:.0%} of the last {part}"
        return text


# Minutes: the last hour ends within a bucket of a minute.
_FULL_HOUR: Final = 59
_REBOOT: Final = "move its jobs away and reboot; if it happens again, replace the card"
_RESET: Final = "move its jobs away and run `nvidia-smi --gpu-reset -i {gpu}` as root, or reboot"
_REPLACE: Final = "drain the node, test the card with NVIDIA's field diagnostic, and replace it"
_SLOT: Final = (
    "reseat the card, check riser and slot, and look for PCIe (AER) errors in the kernel log; if the slot or "
    "its BIOS setting allows no more, this is all that it can do"
)
# nvmlDeviceGpuRecoveryAction_t: what the driver requests, and what to do.
_DRAIN_AND_RESET: Final = 4
_RECOVERY: Final = {
    1: ("a GPU reset", "stop its processes and run `nvidia-smi --gpu-reset -i {gpu}` as root"),
    2: ("a reboot of the machine", "drain the machine and reboot it"),
    3: (
        "that peer-to-peer traffic ends",
        "stop its processes that use other GPUs, then do what the driver requests next (`nvidia-smi -q`)",
    ),
    _DRAIN_AND_RESET: (
        "that its work ends, and a reset",
        "let its processes end, start no others, then reset it",
    ),
    5: ("recovery of the IMEX domain", "restart nvidia-imex on the nodes of the domain"),
    6: ("a reset of its bus", "drain the machine and reset the PCI bus, or reboot"),
    7: ("a reboot of the whole system", "drain the machine and reboot it"),
}
# Below this ratio of the last minutes a GPU is not reported as throttled: clocks always vary.
_LEAST_THROTTLING: Final = 0.05
_THROTTLING: Final = {
    "thermal": (
        "slows down because it is hot",
        "check fans, air flow and dust, and the temperature of the room",
        (q.THERMAL_VIOLATION, q.SOFTWARE_THERMAL_TIME),
    ),
    "power_brake": (
        "is slowed down by the power brake signal of the server",
        "check the power supplies and the power limits of the server",
        (q.POWER_BRAKE_TIME,),
    ),
    "hardware_slowdown": (
        "is slowed down by its hardware: heat, or the power brake signal",
        "check cooling and power supplies",
        (),
    ),
    "reliability": (
        "slows down to stay reliable",
        "look for Xids in the kernel log, and test the card",
        (q.RELIABILITY_VIOLATION,),
    ),
}
# Seconds for which an Xid is a problem, and for which it is still shown.
_XID_FRESH: Final = 3600.0
_XID_SHOWN: Final = 86_400.0
_LEVELS: Final = ("failure", "warning", "info")

# A check returns its problem, None if all is well, and raises _Unknown if that is not known.
Check = Callable[[Reading], GpuProblem | None]


class _Unknown(Exception):
    """The driver does not report what the check needs."""


def _known(reading: Reading, quantity: Quantity) -> int:
    value = reading.get(quantity)
    if value is None:
        raise _Unknown
    return int(value)


def _down(reading: Reading) -> GpuProblem | None:
    if reading.up:
        return None
    reason = reading.down_reason
    return GpuProblem(
        "down", "failure", "Down", describe_down(reason), down_remedy(reason, reading.device.gpu.pci_bus_id)
    )


def _recovery(reading: Reading) -> GpuProblem | None:
    action = _known(reading, q.RECOVERY_ACTION)
    if not action:
        return None
    what, remedy = _RECOVERY.get(action, (f"action {action}", "see the recovery action in `nvidia-smi -q`"))
    summary = f"needs recovery: the driver requests {what}"
    # After a drain only: the GPU works at reduced capacity until its reset.
    level: Level = "warning" if action == _DRAIN_AND_RESET else "failure"
    return GpuProblem("recovery_action", level, "Needs recovery", summary, remedy)


def _remap_failure(reading: Reading) -> GpuProblem | None:
    if not _known(reading, q.ROW_REMAP_FAILURE):
        return None
    summary = "has a memory row with errors that could not be remapped"
    return GpuProblem("row_remap_failure", "failure", "Memory row not remapped", summary, _REPLACE)


def _remap_pending(reading: Reading) -> GpuProblem | None:
    if not _known(reading, q.ROW_REMAP_PENDING):
        return None
    summary = "has a memory row with errors that is remapped at the next reset"
    return GpuProblem("row_remap_pending", "warning", "Memory remap pending", summary, _RESET)


def _retirement_pending(reading: Reading) -> GpuProblem | None:
    if not _known(reading, q.RETIRED_PAGES_PENDING):
        return None
    summary = "has a memory page with errors that is retired at the next reset"
    return GpuProblem("retired_pages_pending", "warning", "Page retirement pending", summary, _RESET)


def _uncorrected_errors(reading: Reading) -> GpuProblem | None:
    errors = _known(reading, q.ECC_UNCORRECTED_VOLATILE)
    if not errors:
        return None
    noun = "memory error" if errors == 1 else "memory errors"
    summary = f"had {errors} {noun} that ECC could not correct since the driver was loaded"
    remedy = _RESET if reading.device.gpu.vendor == NVIDIA else _REBOOT
    return GpuProblem("ecc_uncorrected", "warning", "Uncorrected ECC errors", summary, remedy, times=errors)


def _width(reading: Reading) -> GpuProblem | None:
    width, most = _known(reading, q.PCIE_WIDTH), _known(reading, q.PCIE_WIDTH_MAX)
    if width >= most:
        return None
    summary = f"uses {width} of the {most} PCIe lanes that card and slot have"
    return GpuProblem("pcie_width", "warning", f"PCIe x{width} of x{most}", summary, _SLOT)


def _generation(reading: Reading) -> GpuProblem | None:
    now, most = _known(reading, q.PCIE_GENERATION), _known(reading, q.PCIE_GENERATION_MAX)
    if now >= most:
        return None
    # An idle GPU lowers the generation.
    if not _known(reading, q.PCIE_LINK_BUSY):
        raise _Unknown
    summary = f"is busy, but its PCIe link runs at generation {now} of the {most} that card and slot can do"
    return GpuProblem("pcie_generation", "warning", f"PCIe gen {now} of {most}", summary, _SLOT)


def _links(reading: Reading) -> GpuProblem | None:
    up, down = nvlinks(reading, q.NVLINKS_UP), nvlinks(reading, q.NVLINKS_DOWN)
    if up is None or down is None:
        raise _Unknown
    # All down: they are not connected, or not set up.
    if not up or not down:
        return None
    names = ", ".join(map(str, down))
    noun = "NVLink" if len(down) == 1 else "NVLinks"
    summary = f"has {noun} {names} down while {len(up)} others are up"
    remedy = (
        "look for Xid 74 or 144 to 150 in the kernel log, check the bridge or the NVSwitch, and reset the "
        "GPUs; where no bridge is installed for these links, this is expected"
    )
    return GpuProblem("nvlink", "warning", f"{noun} {names} down", summary, remedy)


_CHECKS: Final[dict[str, Check]] = {
    "down": _down,
    "recovery_action": _recovery,
    "row_remap_failure": _remap_failure,
    "row_remap_pending": _remap_pending,
    "retired_pages_pending": _retirement_pending,
    "ecc_uncorrected": _uncorrected_errors,
    "pcie_width": _width,
    "pcie_generation": _generation,
    "nvlink": _links,
}


def judge_gpu(reading: Reading, throttling: Iterable[ThrottleRow] = ()) -> dict[str, GpuProblem | None]:
    """The problem of each kind, None where all is well; kinds of which nothing is known are missing.

    Empty for an Instance: its GPU is judged.
    """
    found: dict[str, GpuProblem | None] = {}
    if isinstance(reading.device, Instance):
        return found
    for kind, check in _CHECKS.items():
        try:
            problem = check(reading)
        except _Unknown:
            continue
        if problem is not None:
            gpu = reading.device.pci_bus_id or str(reading.device.index)
            problem = problem._replace(remedy=problem.remedy.replace("{gpu}", gpu))
        found[kind] = problem
    rows = {row.reason: row for row in throttling}
    for reason, (summary, remedy, quantities) in _THROTTLING.items():
        row = rows.get(reason)
        if row is not None or any(quantity in reading.values for quantity in quantities):
            kind = f"{reason}_throttling"
            found[kind] = None if row is None else _throttled(kind, summary, remedy, row)
    return found


def _throttled(kind: str, summary: str, remedy: str, row: ThrottleRow) -> GpuProblem | None:
    if row.since is None or row.recent < _LEAST_THROTTLING:
        return None
    problem = GpuProblem(kind, "warning", kind.replace("_", " ").capitalize(), summary, remedy)
    # A single reading does not say since when.
    if not row.observed:
        return problem
    return problem._replace(since=row.since, ratio=row.ratio, observed=row.observed)


def find_problems(
    reading: Reading, throttling: Iterable[ThrottleRow], xids: Sequence[XidRow], unix: float
) -> list[GpuProblem]:
    """All problems of a GPU at the time `unix`, the worst first, with its Xids of the last day."""
    found = [one for one in judge_gpu(reading, throttling).values() if one is not None]
    if reading.down_reason == "RESET_REQUIRED":
        # The driver says it twice.
        found = [one for one in found if one.kind != "recovery_action"]
    if not isinstance(reading.device, Instance):
        gpu = reading.device.gpu
        found += xid_problems(gpu.uuid, gpu.pci_bus_id, xids, unix)
    return worst_first(found)


def worst_first(problems: Iterable[GpuProblem]) -> list[GpuProblem]:
    """The problems by level; those of one level keep their order."""
    return sorted(problems, key=lambda one: _LEVELS.index(one.level))


def xid_problems(uuid: str, bus_id: str, xids: Sequence[XidRow], unix: float) -> Iterator[GpuProblem]:
    """Each Xid of a GPU with its count in the last day, the newest first, without those to ignore."""
    mine = [row for row in xids if row.uuid == uuid and unix - row.last <= _XID_SHOWN]
    newest = {row.xid: row for row in mine}
    for row in sorted(newest.values(), key=lambda row: -row.last):
        xid = find_xid(row.xid)
        if xid.action != "IGNORE":
            level = XID_ACTIONS[xid.action].level if unix - row.last <= _XID_FRESH else "info"
            times = sum(one.times for one in mine if one.xid == row.xid)
            yield GpuProblem(
                "xid",
                level,
                f"Xid {row.xid}",
                f"reported Xid {row.xid}: {xid.meaning}",
                xid_advice(row.xid, bus_id),
                row.last,
                times,
            )


HEALTH_CHECK: Final = "gpu.health"


def health_findings(index: int, problems: Iterable[GpuProblem]) -> Iterator[Finding]:
    """The lines of `doctor` for the problems of the GPU with this index."""
    for problem in problems:
        subject = Subject(HEALTH_CHECK, f"GPU {index}")
        if problem.level == "info":
            yield works(*subject, f"it {problem}; {problem.remedy}")
        else:
            verdict = fails if problem.level == "failure" else warning
            yield verdict(*subject, f"it {problem}", problem.remedy)
