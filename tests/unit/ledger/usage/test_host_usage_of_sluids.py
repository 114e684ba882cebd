"""CPU time of a Slurm job of which the cgroup has a SLUID, while its number becomes known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from builders import snapshot
from gpuledger.ledger.usage.host_usage import HostPeriod, HostRecorder
from gpuledger.model.snapshot import CgroupUsage
from gpuledger.model.workload import Workload

NUMBERED = Workload("slurm", job="7", user="ann", found_by="cgroup")
# The job is requeued: a second cgroup with another SLUID and the same number.
SLUIDS = ("s5K1KKYAYG5D00", "s5K1KKYAYG5D01")
# At each tick: which cgroup is there, whether the number is known, and whether the program restarted.
TICKS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12)


def record(ticks: Sequence[tuple[bool, bool, bool]]) -> tuple[list[HostPeriod], list[int]]:
    """The stored periods, and the last value of the counter of each cgroup."""
    recorder, stored, counters, unix = HostRecorder(), dict[int, HostPeriod](), [0, 0], 1_700_000_000.0
    ticks = sorted(ticks, key=lambda tick: tick[0])
    for second, is_numbered, restarts in ticks:
        unix += 10
        if restarts:
            recorder = HostRecorder()
            kept = sorted(stored.values(), key=lambda period: (period.ends, period.number))
            recorder.resume(map(replace, kept), max(stored, default=0) + 1, unix - 10)
        counters[second] += 1000 if second else 5_000_000
        sluid = SLUIDS[second]
        owner = NUMBERED if is_numbered else replace(NUMBERED, job=sluid)
        usage = CgroupUsage(owner, counters[second], sluid=sluid)
        seen = snapshot(unix=unix)
        recorder.post(replace(seen, elapsed=unix, cgroups=(usage,)))
        stored |= {period.number: replace(period) for period in recorder.take_changed()}
    return list(stored.values()), counters


@given(TICKS)
@example([(False, False, False), (False, True, False)])
@example([(False, True, False), (True, False, False), (True, True, False)])
def test_the_cpu_time_of_a_cgroup_counts_once(ticks: list[tuple[bool, bool, bool]]) -> None:
    stored, counters = record([(second, is_numbered, False) for second, is_numbered, _ in ticks])
    assert sum(period.total_cpu or 0 for period in stored) == sum(counters)


@given(TICKS)
@example([(False, False, False), (False, True, True), (False, False, True)])
def test_a_number_that_becomes_known_has_all_cpu_time_also_over_restarts(
    ticks: list[tuple[bool, bool, bool]],
) -> None:
    stored, counters = record([*ticks, (False, True, False), (True, True, False)])
    assert {period.owner.job for period in stored} == {"7"}
    assert sum(period.total_cpu or 0 for period in stored) == sum(counters)
