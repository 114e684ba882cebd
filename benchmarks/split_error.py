"""Compares the error of billed GPU time with that of two other methods, on the same scripted GPUs.

    python benchmarks/split_error.py [--write docs/concepts/ledgers.md]

The script of a GPU says who has it at each moment of an hour, to a tenth of a second. True time: an owner has
the fraction of the GPU that is allocated to it, used or not; what allocations leave is split equally over the
owners with a process there; a lost GPU has no owner. The methods:

- gpuledger: the time ledger with the basis `allocation`, one tick per second.
- OpenCost: the container's request of nvidia.com/gpu, times its hours from the first to the last minute in
  which Prometheus has it as running (1m resolution; one minute if there is only one), as in
  `applyGPUsAllocated` and `calculateStartAndEnd` of pkg/costmodel/allocation_helpers.go. A replica counts as
  actual / virtual GPUs, as pkg/costmodel/metrics.go intends. MIG profiles are other resources
  (nvidia.com/mig-*), which it does not read.
- DCGM label: dcgm-exporter with KUBERNETES_VIRTUAL_GPUS: each pod of a device has a sample of it every 30 s
  (the default of --collect-interval), which counts as 30 s of the device; that of a MIG instance by its SMs.

Errors are of owners with more than a minute of true time, in percent of it. `sum` is the time that is billed
to all owners in percent of their true time.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import mean

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from builders import gpu, instance  # noqa: E402  (after the path is set)
from gpuledger.model.devices import Instance  # noqa: E402  (as above)
from gpuledger.model.session import ALLOCATION  # noqa: E402  (as above)
from time_helpers import Has, Period, Runs, Truth, play, pod, user  # noqa: E402  (as above)

MARKS = ("<!-- splits: begin -->", "<!-- splits: end -->")
HOUR = 3600.0
MICRO = 1_000_000
LEAST = 60
RESOLUTION, SAMPLE = 60.0, 30.0
SMS = 132
CARD = gpu(0, sm_count=SMS)
WHOLE = Fraction(1)
SERVER = "nvidia-cuda-mps-server"
# Seconds by owner.
Billed = Mapping[str, float]


def size(has: Has) -> Fraction:
    """Return the part of the GPU that an allocation is."""
    part = Fraction(has.device.sm_count or 0, SMS) if isinstance(has.device, Instance) else WHOLE
    return part * (has.fraction or WHOLE)


def covered(periods: Iterable[Period], at: float) -> bool:
    """Whether a moment is in one of the periods."""
    return any(begins <= at < ends for begins, ends in periods)


def true_time(truth: Truth) -> Billed:
    """Return the true seconds of each owner, from the script alone."""
    edges = {0.0, HOUR, *(edge for period in truth.lost for edge in period)}
    for one in parts_of(truth):
        edges |= {max(0.0, min(edge, HOUR)) for edge in (one.begins, one.ends)}
    moments = sorted(edges)
    found: defaultdict[str, float] = defaultdict(float)
    for at, until in pairwise(moments):
        if covered(truth.lost, at):
            continue
        parts: defaultdict[str, Fraction] = defaultdict(Fraction)
        for has in truth.has:
            if has.begins <= at < has.ends:
                parts[owner_name(has)] += size(has)
        running = {
            owner_name(one) for one in truth.runs if one.begins <= at < one.ends and one.name != SERVER
        }
        guests = running - parts.keys()
        left = WHOLE - sum(parts.values())
        for name in guests:
            parts[name] = left / len(guests)
        for name, part in parts.items():
            found[name] += float(part) * (until - at)
    return found


def parts_of(truth: Truth) -> list[Has | Runs]:
    """Return all allocations and processes of a script."""
    return [*truth.has, *truth.runs]


def owner_name(one: Has | Runs) -> str:
    """Return the name under which the owner is billed."""
    return one.owner.pod or one.owner.user


def by_ledger(truth: Truth, _: random.Random) -> Billed:
    """Bill what the time ledger posts."""
    billed = play(truth, range(int(HOUR) + 1)).seconds(ALLOCATION)
    return {name: amount / MICRO for name, amount in billed.items()}


def by_opencost(truth: Truth, chance: random.Random) -> Billed:
    """Bill the request of each container from its first to its last sample."""
    offset = chance.uniform(0, RESOLUTION)
    found: defaultdict[str, float] = defaultdict(float)
    for has in truth.has:
        points = [
            point * RESOLUTION
            for point in range(int(HOUR / RESOLUTION) + 1)
            if has.begins <= point * RESOLUTION - offset < has.ends
        ]
        if points and not isinstance(has.device, Instance):
            found[owner_name(has)] += float(size(has)) * ((points[-1] - points[0]) or RESOLUTION)
    return found


def by_dcgm_label(truth: Truth, chance: random.Random) -> Billed:
    """Bill the whole device for each sample with the label of the pod."""
    offset = chance.uniform(0, SAMPLE)
    found: defaultdict[str, float] = defaultdict(float)
    for number in range(int(HOUR / SAMPLE)):
        at = offset + number * SAMPLE
        if covered(truth.lost, at) or covered(truth.stopped, at):
            continue
        for has in truth.has:
            if has.begins <= at < has.ends:
                found[owner_name(has)] += float(size(replace(has, fraction=WHOLE))) * SAMPLE
    return found


METHODS: dict[str, Callable[[Truth, random.Random], Billed]] = {
    "gpuledger": by_ledger,
    "OpenCost": by_opencost,
    "DCGM label": by_dcgm_label,
}


def moment(chance: random.Random, low: float, high: float) -> float:
    """Return a random second, to a tenth."""
    return round(chance.uniform(low, high), 1)


def exclusive(chance: random.Random) -> Truth:
    """A pod that runs on a whole GPU for a part of the hour."""
    begins, ends = moment(chance, 0, 900), moment(chance, 1800, HOUR)
    return Truth(CARD, [Has(pod("a"), WHOLE, begins, ends)], [Runs(pod("a"), begins, ends)])


def reserved(chance: random.Random) -> Truth:
    """A pod that keeps a GPU and runs something for some minutes only."""
    ends, runs = moment(chance, 1800, HOUR), moment(chance, 120, 1200)
    return Truth(CARD, [Has(pod("a"), WHOLE, -HOUR, ends)], [Runs(pod("a"), runs, runs + 300)])


def short(chance: random.Random) -> Truth:
    """Pods that take a whole GPU one after the other, for 20 to 150 seconds each."""
    has: list[Has] = []
    at = 0.0
    while (ends := at + moment(chance, 20, 150)) < HOUR:
        has.append(Has(pod(f"job-{len(has)}"), WHOLE, at, ends))
        at = ends + moment(chance, 5, 30)
    return Truth(CARD, has, [Runs(one.owner, one.begins, one.ends) for one in has])


def replicas(chance: random.Random) -> Truth:
    """Two to four pods with one of four replicas each, which come and go."""
    has = [
        Has(pod(f"p{n}"), Fraction(1, 4), moment(chance, 0, 1200), moment(chance, 1500, HOUR))
        for n in range(chance.randint(2, 4))
    ]
    return Truth(CARD, has, [Runs(one.owner, one.begins + 5, one.ends) for one in has])


def mps(chance: random.Random) -> Truth:
    """The same beside a pod that has a replica all the time, with an MPS server for all of them."""
    truth = replicas(chance)
    has = [Has(pod("p0"), Fraction(1, 4), -HOUR), *truth.has[1:]]
    clients = [Runs(one.owner, one.begins, one.ends, types="M+C") for one in has]
    return Truth(CARD, has, [Runs(user("root"), -HOUR, name=SERVER), *clients])


def mig(chance: random.Random) -> Truth:
    """Three of four MIG instances, allocated to pods that come and go; one pod runs nothing."""
    cuts = [
        instance(CARD, gi, index=index, sm_count=sms, profile=profile)
        for index, (gi, sms, profile) in enumerate(
            [(2, 60, "3g.40gb"), (3, 32, "2g.20gb"), (9, 16, "1g.10gb"), (10, 16, "1g.10gb")]
        )
    ]
    has = [
        Has(pod(f"p{n}"), WHOLE, moment(chance, 0, 900), moment(chance, 1800, HOUR), device=part)
        for n, part in enumerate(cuts[:3])
    ]
    runs = [Runs(one.owner, one.begins, one.ends, device=one.device) for one in has[1:]]
    return Truth(CARD, has, runs, instances=cuts)


def logins(chance: random.Random) -> Truth:
    """Two to four users without a scheduler, who come and go."""
    runs = [
        Runs(user(f"u{n}"), moment(chance, 0, 1200), moment(chance, 1500, HOUR))
        for n in range(chance.randint(2, 4))
    ]
    return Truth(CARD, (), runs)


def guest(chance: random.Random) -> Truth:
    """A pod with a whole GPU that another user computes on."""
    begins = moment(chance, 0, 1200)
    runs = [Runs(pod("a"), -HOUR), Runs(user("guest"), begins, moment(chance, 1500, HOUR))]
    return Truth(CARD, [Has(pod("a"), WHOLE, -HOUR)], runs)


def crash(chance: random.Random) -> Truth:
    """A pod with processes that crash and start again, then another pod."""
    change = moment(chance, 1200, 2400)
    edges = sorted(moment(chance, 60, change) for _ in range(6))
    runs = [Runs(pod("a"), begins, ends) for begins, ends in zip(edges[::2], edges[1::2], strict=True)]
    has = [Has(pod("a"), WHOLE, -HOUR, change), Has(pod("b"), WHOLE, change + 7.5)]
    return Truth(CARD, has, [*runs, Runs(pod("b"), change + 9)])


def lost(chance: random.Random) -> Truth:
    """A pod on a GPU that is lost for some minutes."""
    begins = moment(chance, 600, 1800)
    period = (begins, begins + moment(chance, 120, 600))
    return Truth(CARD, [Has(pod("a"), WHOLE, -HOUR)], [Runs(pod("a"), -HOUR)], lost=[period])


def restart(chance: random.Random) -> Truth:
    """A pod, while the program that reads the GPU is stopped for two minutes."""
    begins = moment(chance, 600, 1800)
    return Truth(
        CARD, [Has(pod("a"), WHOLE, -HOUR)], [Runs(pod("a"), -HOUR)], stopped=[(begins, begins + 120)]
    )


KINDS = {
    "exclusive": exclusive,
    "reserved, mostly idle": reserved,
    "short pods": short,
    "4 replicas": replicas,
    "4 replicas, MPS": mps,
    "MIG": mig,
    "no scheduler": logins,
    "guest on an allocated GPU": guest,
    "crashes": crash,
    "lost GPU": lost,
    "exporter stopped for 2m": restart,
}


def compare(make: Callable[[random.Random], Truth], seeds: int) -> Iterable[tuple[str, float, float]]:
    """Yield method, billed and true seconds of each owner of the GPUs of one kind."""
    for seed in range(seeds):
        truth = make(random.Random(seed))
        true = true_time(truth)
        owners = true.keys() | {owner_name(one) for one in parts_of(truth)}
        for method, bill in METHODS.items():
            billed = bill(truth, random.Random(seed))
            for name in sorted(owners):
                yield method, billed.get(name, 0.0), true.get(name, 0.0)


def table(seeds: int) -> Iterable[str]:
    """Yield the lines of the Markdown table."""
    yield "| scenario | owners | method | mean error % | worst error % | billed GPU-hours | sum % |"
    yield "|---|---|---|---|---|---|---|"
    for kind, make in KINDS.items():
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for method, billed, true in compare(make, seeds):
            found[method].append((billed, true))
        for method, pairs in found.items():
            errors = [abs(billed - true) / true * 100 for billed, true in pairs if true > LEAST]
            billed_sum, true_sum = (sum(each) for each in zip(*pairs, strict=True))
            figures = (mean(errors), max(errors), billed_sum / HOUR, billed_sum / true_sum * 100)
            shown = " | ".join(f"{figure:.1f}" for figure in figures)
            yield f"| {kind} | {len(errors)} | {method} | {shown} |"


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--seeds", type=int, default=20, help="GPUs of each kind")
    given = flags.parse_args()
    print_table(table(given.seeds), given.write, MARKS)


if __name__ == "__main__":
    main()
