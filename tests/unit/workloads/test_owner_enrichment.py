"""Owners found by cgroup, completed with Slurm jobs."""

from __future__ import annotations

import pytest

from gpuledger.model.workload import Workload
from gpuledger.workloads.owner_resolution import OwnerFacts, enrich_owner
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs

SLUID = "sEKNKTV3WPV500"
ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
NLP = SlurmJob("9", user="bob", account="nlp", partition="gpu")
JOBS = SlurmJobs([SlurmJob("4242", sluid=SLUID, user="alice"), SlurmJob("7", user="bob"), SlurmJob("8"), NLP])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            Workload(kind="slurm", job=SLUID, step="0", user="root", found_by="cgroup"),
            Workload(kind="slurm", job="4242", step="0", user="alice", found_by="cgroup"),
        ),
        (Workload(kind="slurm", job="7", user="root"), Workload(kind="slurm", job="7", user="bob")),
        (
            Workload(kind="pod", pod_uid="u", job=SLUID, user="root"),
            Workload(kind="pod", pod_uid="u", job="4242", user="root"),
        ),
        (
            Workload(kind="slurm", job="9", user="bob"),
            Workload(kind="slurm", job="9", user="bob", slurm_account="nlp", partition="gpu"),
        ),
    ],
)
def test_facts_of_other_indexes_are_added(given: Workload, found: Workload) -> None:
    assert enrich_owner(given, OwnerFacts(jobs=JOBS)) == found


@pytest.mark.parametrize(
    "given",
    [
        Workload(kind="slurm", job="7", user="bob"),
        Workload(kind="slurm", job="8", user="carol"),
        Workload(kind="slurm", job="9", user="bob", slurm_account="nlp", partition="gpu"),
        Workload(kind="slurm", job="99", user="root"),
        Workload(kind="job", job="7", runtime="pbs", user="root"),
        Workload(kind="container", container="lxc-one", runtime="lxc"),
        Workload(kind="container", container_id=ID, missing="container_name"),
        Workload(kind="pod", container_id=ID, missing="pod_name"),
        Workload(kind="user", user="alice"),
        Workload(),
    ],
)
def test_an_owner_without_new_facts_is_the_same_object(given: Workload) -> None:
    assert enrich_owner(given, OwnerFacts(jobs=JOBS)) is given


def test_without_indexes_nothing_is_added() -> None:
    given = Workload(kind="slurm", job=SLUID)
    assert enrich_owner(given, OwnerFacts()) is given
