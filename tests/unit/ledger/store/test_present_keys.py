"""The keys that a report of a range offers: those with names; of bills, then workloads, then hardware."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from builders import gpu, process
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.present_keys import PresentKey, best_key, present_keys
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run
from report_helpers import folded

CARD, OTHER, QUARTER = gpu(0), gpu(1), 900
FIRST = int(UNIX // QUARTER)
PODS = [Workload("pod", f"team-{n}", f"p-{n}", "c", user="root") for n in range(2)]
JOBS = [Workload("slurm", job=str(n), user=f"u-{n % 2}", slurm_account="nlp") for n in range(4)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path)
    yield found
    found.store.close()


def post(run: Run, *owners: Workload, allocated: Workload | None = None, seconds: float = 5.0) -> None:
    """Some readings of two Gpus, of which the owners share the first."""
    processes = [process(CARD, n, ticks=n, workload=owner) for n, owner in enumerate(owners, 1)]
    allocations = () if allocated is None else (Allocation(OTHER, allocated),)
    for _ in range(6):
        run.tick({CARD: 0, OTHER: 0}, processes, seconds, allocations=allocations)


def keys_of(file: Path, since: int = 0, until: int = 2**30, **options: object) -> dict[str, int]:
    with closing(History(file)) as history:
        return dict(present_keys(history, since, until, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("owners", "expected", "best"),
    [
        (PODS, ["namespace", "pod", "gpu", "command"], "namespace"),
        (JOBS, ["job", "slurm_account", "user", "gpu", "command"], "job"),
        (JOBS[:1], ["job", "slurm_account", "user", "gpu", "command"], "gpu"),
        ([Workload("user", user="ada"), Workload("user", user="bob")], ["user", "gpu", "command"], "user"),
        (
            [Workload("container", container=name) for name in "ab"],
            ["container", "gpu", "command"],
            "container",
        ),
        ([Workload("unit", unit="a.service", user="root")], ["user", "unit", "gpu", "command"], "gpu"),
        (
            [replace(PODS[0], labels=(("tier", "gold"),))],
            ["namespace", "label:tier", "pod", "gpu", "command"],
            "gpu",
        ),
        (
            [replace(PODS[0], controller_kind="Job", controller="train")],
            ["job", "namespace", "pod", "gpu", "command"],
            "gpu",
        ),
        (
            [replace(one, queue=f"q-{n}", namespace="ml") for n, one in enumerate(PODS)],
            ["namespace", "queue", "pod", "gpu", "command"],
            "queue",
        ),
        (
            [replace(one, job_name="relax", array_job="40") for one in JOBS],
            ["job", "slurm_account", "user", "job_name", "array_job", "gpu", "command"],
            "job",
        ),
        ([], ["gpu"], "gpu"),
    ],
)
def test_keys_with_names_are_offered_and_the_first_with_several_is_best(
    run: Run, owners: list[Workload], expected: list[str], best: str
) -> None:
    post(run, *owners)
    found = keys_of(run.store.file)
    assert list(found) == expected
    assert best_key([PresentKey(*one) for one in found.items()]) == best


def test_names_are_counted_once(run: Run) -> None:
    post(run, *JOBS)
    found = keys_of(run.store.file)
    assert (found["job"], found["user"], found["slurm_account"], found["gpu"]) == (4, 2, 1, 2)


def test_teams_and_allocations_without_a_process_count(run: Run) -> None:
    post(run, PODS[0], allocated=PODS[1])
    teams = parse_teams([{"team": "a", "namespace": "team-0"}, {"team": "b", "namespace": "team-1"}])
    found = keys_of(run.store.file, teams=teams)
    assert (found["team"], found["namespace"], found["command"]) == (2, 2, 1)
    assert "team" not in keys_of(run.store.file)


def test_only_names_of_the_range_are_offered_also_after_folding(run: Run, tmp_path: Path) -> None:
    post(run, *PODS)
    for _ in range(60):
        run.tick({CARD: 0, OTHER: 0}, (), 59.0)
    post(run, *JOBS)
    for file in (run.store.file, folded(run.store.file, run.clock.now_unix, tmp_path / "folded.db")):
        with closing(History(file)) as history:
            begins = int(history.last // QUARTER) // 4 * 4
        assert "job" not in keys_of(file, 0, FIRST // 4 * 4 + 4)
        assert keys_of(file, 0, FIRST // 4 * 4 + 4)["namespace"] == 2
        assert "namespace" not in keys_of(file, begins)
        assert keys_of(file, begins)["job"] == 4


def test_without_any_key_reports_are_by_owner() -> None:
    assert best_key([]) == "owner"
