"""The user and the facts of a Slurm job, by what its processes say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.slurm.job_identity import (
    ProcessIdentity,
    find_job_uid,
    find_user,
    job_facts,
    job_number,
)

LENA, MIRA, ROOT = 812345, 812346, 0


def process(
    uid: int | None, *, says: int | None = None, first: bool = False, **variables: str
) -> ProcessIdentity:
    """A process of a uid, with the SLURM_JOB_UID that it `says`; other variables are without `SLURM_JOB_`."""
    found = {f"SLURM_JOB_{name}": value for name, value in variables.items()}
    if says is not None:
        found["SLURM_JOB_UID"] = str(says)
    return ProcessIdentity(uid, found, first)


@pytest.mark.parametrize(
    ("processes", "uid"),
    [
        ([process(LENA, says=LENA)], LENA),
        # A process with the variables of another job.
        ([process(LENA, says=MIRA)], LENA),
        ([process(LENA)], LENA),
        ([process(ROOT), process(LENA, says=LENA)], LENA),
        # sudo within the job, with the job's variables and with those of root.
        ([process(LENA, says=LENA), process(ROOT, says=LENA)], LENA),
        ([process(LENA, says=LENA), process(ROOT, says=ROOT)], LENA),
        ([process(ROOT, says=LENA)], None),
        ([process(ROOT, says=ROOT)], ROOT),
        ([process(ROOT)], None),
        # sudo -u mira, which claims the job.
        ([process(LENA, says=LENA, first=True), process(MIRA, says=MIRA)], LENA),
        ([process(LENA, says=LENA), process(MIRA, says=MIRA)], None),
        ([process(LENA), process(MIRA)], None),
        ([process(None, says=LENA)], None),
        ([], None),
    ],
)
def test_the_user_of_a_job_is_that_of_processes_that_agree_with_their_variables(
    processes: list[ProcessIdentity], uid: int | None
) -> None:
    assert find_job_uid(processes) == uid


def name_of(*processes: ProcessIdentity, known: dict[int, str] | None = None) -> str:
    names = {ROOT: "root", **(known or {})}
    uids = {name: uid for uid, name in names.items()}
    return find_user(LENA, processes, lambda uid: names.get(uid, str(uid)), uids.get)


@pytest.mark.parametrize(
    ("processes", "known", "name"),
    [
        ([process(LENA, says=LENA, USER="lena")], {}, "lena"),
        ([process(LENA, USER="lena")], {}, "lena"),
        # The machine's own name counts, also after a rename.
        ([process(LENA, says=LENA, USER="lena")], {LENA: "lena.m"}, "lena.m"),
        ([process(MIRA, says=MIRA, USER="mira")], {}, str(LENA)),
        ([process(LENA, says=MIRA, USER="mira")], {}, str(LENA)),
        # Names of other users of this machine.
        ([process(LENA, says=LENA, USER="root")], {}, str(LENA)),
        ([process(LENA, says=LENA, USER="mira")], {MIRA: "mira"}, str(LENA)),
        # One of them was changed.
        ([process(LENA, says=LENA, USER="lena"), process(LENA, says=LENA, USER="boss")], {}, str(LENA)),
        ([], {}, str(LENA)),
    ],
)
def test_the_job_names_a_user_whom_the_machine_does_not_know(
    processes: list[ProcessIdentity], known: dict[int, str], name: str
) -> None:
    assert name_of(*processes, known=known) == name


def test_a_job_of_an_unknown_user_has_no_name() -> None:
    assert find_user(None, [process(LENA, USER="lena")], str, lambda _: None) == ""


def test_facts_are_believed_only_from_processes_of_the_jobs_user() -> None:
    own = process(LENA, says=LENA, ID="7", ACCOUNT="chem", PARTITION="gpu", NAME="relax")
    foreign = process(MIRA, says=MIRA, ID="8", ACCOUNT="bio", PARTITION="cpu", NAME="other")
    facts = {"account": "chem", "partition": "gpu", "name": "relax", "array_job": "", "array_task": ""}
    assert job_facts(LENA, [own, foreign, process(ROOT, says=LENA, ACCOUNT="bio")]) == facts
    assert job_number(LENA, [own, foreign]) == "7"
    assert set(job_facts(None, [own]).values()) == {""}


@pytest.mark.parametrize("variable", ["ACCOUNT", "PARTITION", "NAME", "USER", "ID"])
def test_what_slurmstepd_started_decides(variable: str) -> None:
    """A task can change its variables for the processes that it starts."""
    own = {"ID": "7", "ACCOUNT": "chem", "PARTITION": "gpu", "NAME": "relax", "USER": "lena"}
    first = process(LENA, says=LENA, first=True, **own)
    changed = process(LENA, says=LENA, **{**own, variable: "9"})
    for processes in ([first], [first, changed], [changed, first]):
        assert list(job_facts(LENA, processes).values()) == ["chem", "gpu", "relax", "", ""]
        assert (job_number(LENA, processes), name_of(*processes)) == ("7", "lena")


def test_a_variable_that_slurmstepd_did_not_write_is_not_believed() -> None:
    own = process(LENA, says=LENA, first=True, ACCOUNT="chem")
    added = ProcessIdentity(LENA, {"SLURM_JOB_UID": str(LENA), "SLURM_ARRAY_JOB_ID": "40"})
    assert job_facts(LENA, [own, added])["array_job"] == ""
    # Slurm's own sleep of the extern step has none of its variables.
    assert job_facts(LENA, [process(LENA, first=True), added])["array_job"] == "40"


@pytest.mark.parametrize(
    "other", [process(MIRA, says=MIRA, first=True, ACCOUNT="bio"), process(ROOT, first=True)]
)
def test_what_slurmstepd_started_for_another_user_decides_nothing(other: ProcessIdentity) -> None:
    own = process(LENA, says=LENA, ACCOUNT="chem")
    assert job_facts(LENA, [other, own])["account"] == "chem"


def test_the_task_of_an_array_has_its_array_and_number() -> None:
    variables = {"SLURM_JOB_UID": str(LENA), "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}
    facts = job_facts(LENA, [ProcessIdentity(LENA, variables)])
    assert (facts["array_job"], facts["array_task"]) == ("40", "3")


UIDS = st.sampled_from([None, ROOT, LENA, MIRA])
PROCESSES = st.lists(
    st.builds(
        lambda uid, says, first, account: process(uid, says=says, first=first, ACCOUNT=account),
        UIDS,
        UIDS,
        st.booleans(),
        st.sampled_from(["chem", "bio"]),
    )
)


@given(PROCESSES)
def test_no_process_of_another_user_changes_a_fact(processes: list[ProcessIdentity]) -> None:
    own = [one for one in processes if one.uid == LENA]
    assert job_facts(LENA, processes) == job_facts(LENA, own)
