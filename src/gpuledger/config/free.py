"""The settings of `gpuledger free`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.ledger.device_choice import ANY, MIG_CHOICES
from gpuledger.model.settings import binary_size, boolean, choice, duration, integer, option, text

_HOUR = 3600.0


@dataclass(frozen=True)
class FreeSettings:
    """Which GPUs to take, and for how long they are reserved."""

    count: int = option("free.count", integer(1, 1024), 1, "how many GPUs")
    memory: int = option(
        "free.memory",
        binary_size,
        0,
        "GPUs with at least this much free memory, such as 20GiB",
        metavar="SIZE",
    )
    model: str = option(
        "free.model",
        text,
        "",
        "GPUs with this in their name or MIG profile, in any case: h100, or a pattern such as '*a100*80gb*'",
        metavar="NAME",
    )
    mig: str = option(
        "free.mig",
        choice(*MIG_CHOICES),
        ANY,
        "MIG instances: any takes one if no whole GPU is free, only takes no whole GPUs, never no instances",
    )
    display: bool = option(
        "free.display", boolean, False, "also GPUs on which a display server draws, if nobody computes there"
    )
    window: float = option(
        "free.for",
        duration("s", lowest=0.0, highest=_HOUR),
        60.0,
        "GPUs that nobody has had for this time: a GPU between two steps of a job looks free for a moment",
    )
    env: bool = option(
        "free.env",
        boolean,
        False,
        "reserve the GPUs and print CUDA_VISIBLE_DEVICES=UUID,...; print nothing, and exit with code 1, if "
        "too few are free",
    )
    reserve: float = option(
        "free.reserve",
        duration("s", lowest=1.0, highest=12 * _HOUR),
        300.0,
        "how long --env reserves: until then, or until a process of yours runs on the GPU",
    )
    wait: float = option(
        "free.wait",
        duration("s", lowest=0.0, highest=7 * 24 * _HOUR),
        0.0,
        "with --env or a command: wait up to this time until enough GPUs are free",
    )
    release: str = option(
        "free.release",
        text,
        "",
        "end your reservations: of these GPUs (UUIDs, comma-separated), or all",
        metavar="UUIDS|all",
    )
    everybody: bool = option(
        "free.everybody", boolean, False, "with --release, for administrators: those of all users"
    )
    anyway: bool = option(
        "free.anyway",
        boolean,
        False,
        "also where a kubelet or slurmd hands out the GPUs; and take GPUs without gpuledger serve, from one "
        "reading and without a reservation",
    )
    format: str = option("free.format", choice("table", "json"), "table", "table or json", metavar="FORM")
