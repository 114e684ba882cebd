"""The thresholds of advice on receipts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gpuledger.model.settings import ReloadPolicy, choice, duration, number, setting

# The rules of advice, in the order of their priority.
UNUSED_GPU, LATE_START, IDLE_SINCE, HELD_MEMORY = "unused_gpu", "late_start", "idle_since", "held_memory"
SMALLER_GPU, WAITING, THROTTLED, HOST_MEMORY = "smaller_gpu", "waiting_for_input", "throttled", "host_memory"
RULE_NAMES: Final = (
    *(UNUSED_GPU, LATE_START, IDLE_SINCE, HELD_MEMORY),
    *(SMALLER_GPU, WAITING, THROTTLED, HOST_MEMORY),
)


def _rules(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else [part.strip() for part in str(value).split(",")]
    return tuple(choice(*RULE_NAMES)(part) for part in parts if part != "")


@dataclass(frozen=True)
class AdviceSettings:
    """When a receipt gives advice. docs/receipts.md explains each rule."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    without: tuple[str, ...] = setting(
        "advice.without",
        _rules,
        (),
        f"rules that give no advice, separated by commas: {', '.join(RULE_NAMES)}",
        metavar="RULES",
    )
    unused: float = setting(
        "advice.unused",
        duration("s", lowest=60.0),
        600.0,
        "rule unused_gpu: a GPU that no engine used in this time or longer",
    )
    late_start: float = setting(
        "advice.late_start",
        duration("s", lowest=60.0),
        900.0,
        "rule late_start: this time or longer from having a GPU to its first use",
    )
    idle_since: float = setting(
        "advice.idle_since",
        duration("s", lowest=60.0),
        3600.0,
        "rule idle_since: this time or longer since the last use of a GPU",
    )
    held_memory: float = setting(
        "advice.held_memory",
        duration("s", lowest=60.0),
        3600.0,
        "rule held_memory: this time or longer without use, between uses, while processes keep GPU memory",
    )
    smaller_gpu: float = setting(
        "advice.smaller_gpu",
        number(0.0, 1.0),
        0.15,
        "rule smaller_gpu: mean SM utilization of at most this ratio",
        metavar="RATIO",
    )
    waiting: float = setting(
        "advice.waiting_for_input",
        number(0.0, 1.0),
        0.3,
        "rule waiting_for_input: mean SM utilization of at most this ratio while the CPUs are busy",
        metavar="RATIO",
    )
    throttled: float = setting(
        "advice.throttled",
        number(0.0, 1.0),
        0.1,
        "rule throttled: the clocks are reduced for power or heat for at least this part of the time",
        metavar="RATIO",
    )
    host_memory: float = setting(
        "advice.host_memory",
        number(0.0, 1.0),
        0.5,
        "rule host_memory: a job used at most this part of its memory on the node",
        metavar="RATIO",
    )
    shortest: float = setting(
        "advice.shortest",
        duration("s", lowest=0.0),
        300.0,
        "no advice on less time than this",
    )
