"""pmon covers 4 GPUs by default, later 16: those beyond are queried by their indexes."""

from __future__ import annotations

import pytest

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.loop_mode import ReportReader
from gpuledger.sources.smi.queries import SmiQueries

HEAD = """# gpu        pid  type    sm   mem   enc   dec   command
# Idx          #   C/G     %     %     %     %   name
"""


class LimitedPmon:
    """A pmon of a machine of `count` GPUs that covers `limit` of them. GPUs that are `silent` have no row."""

    def __init__(self, count: int, limit: int, silent: frozenset[int] = frozenset()) -> None:
        self.count, self.limit, self.silent = count, limit, silent
        self.failure: CommandResult | None = None
        self.findings = SourceFindings()
        self.calls: list[str] = []
        self.clock = FakeClock()
        command = Command("nvidia-smi")
        self.queries = SmiQueries(command, 9.0, self.clock, self, ReportReader(command, 9.0, None))

    def __call__(self, words: tuple[str, ...], timeout: float) -> CommandResult:
        chosen = words[words.index("-i") + 1] if "-i" in words else ""
        self.calls.append(chosen)
        if chosen and self.failure:
            return self.failure
        gpus = [int(index) for index in chosen.split(",")] if chosen else list(range(self.count))
        if chosen and len(gpus) > self.limit:
            return CommandResult(f"Not supported on more than {self.limit} devices.\n".encode(), exit_code=3)
        rows = [
            # The first GPU has no process.
            f" {gpu} {100 + gpu if gpu else '-'} {'C' if gpu else '-'} {gpu or '-'} 1 - - run\n"
            for gpu in gpus[: self.limit]
            if gpu not in self.silent
        ]
        return CommandResult((HEAD + "".join(rows)).encode())

    def read(self, *indexes: int) -> dict[int, float | None]:
        """The SM time of the process on each GPU."""
        self.findings = SourceFindings()
        usage = self.queries.query_pmon(frozenset(indexes), self.findings)
        return {gpu: found.sm for (gpu, pid), found in usage.items() if pid == 100 + gpu}


@pytest.mark.parametrize(
    ("limit", "calls"),
    [(16, [""]), (8, [""]), (4, ["", "4,5,6,7"]), (3, ["", "3,4,5", "6,7"]), (1, ["", *"1234567"])],
)
def test_every_gpu_with_a_process_has_its_usage(limit: int, calls: list[str]) -> None:
    pmon = LimitedPmon(8, limit)
    assert pmon.read(*range(1, 8)) == {gpu: gpu / 100 for gpu in range(1, 8)}
    assert pmon.calls == calls


def test_gpus_without_processes_cost_no_call() -> None:
    pmon = LimitedPmon(20, 4)
    assert set(pmon.read(1, 2)) == {1, 2, 3}
    assert set(pmon.read(1, 17)) == {1, 2, 3, 17}
    assert pmon.calls == ["", "", "17"]


def test_a_gpu_that_pmon_does_not_list_is_queried_once_a_minute() -> None:
    pmon = LimitedPmon(8, 4, frozenset({5}))
    for _ in range(3):
        assert set(pmon.read(1, 5, 6)) == {1, 2, 3, 6}
    assert pmon.calls == ["", "5,6", "", "6", "", "6"]
    pmon.clock.advance(61)
    pmon.read(5, 6)
    assert pmon.calls[-1] == "5,6"


def test_output_that_is_no_table_causes_no_further_call() -> None:
    pmon = LimitedPmon(8, 0)
    assert pmon.read(1, 2) == {}
    assert pmon.calls == [""]


def test_a_further_call_that_fails_costs_no_other_gpu_and_is_reported() -> None:
    pmon = LimitedPmon(8, 4)
    pmon.failure = CommandResult(b"", b"Unknown Error\n", exit_code=255)
    assert set(pmon.read(1, 5)) == {1, 2, 3}
    (failure,) = pmon.findings.failures
    assert (failure.part, failure.detail.partition(":")[0]) == ("utilization", "pmon")
