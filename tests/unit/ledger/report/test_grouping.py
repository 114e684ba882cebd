"""Keys of reports: columns, keys of owners and of the Gpus' own accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.grouping import Grouping, find_grouping
from gpuledger.ledger.report.party import party_of
from gpuledger.ledger.report.report_keys import GROUPINGS, NODE, TEAM
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import UNKNOWN, Workload

GPU = Gpu("GPU-1", 0, "NVIDIA H100")
MIG = Instance("MIG-1", GPU, 1, 0, 0, "1g.10gb")
DEVICES = {"GPU-1": GPU, "MIG-1": MIG}
TEAMS = parse_teams([{"team": "blue", "namespace": "ml"}])
POD = Workload(
    kind="pod",
    namespace="ml",
    pod="train-0",
    container="main",
    user="root",
    labels=(("team", "red"), ("account", "7")),
    controller_kind="Job",
    controller="train",
    queue="gpus",
)
REPLICA = Workload(kind="pod", namespace="ml", pod="web-0", controller_kind="ReplicaSet", controller="web")
BARE = Workload(kind="pod", namespace="ml", pod="bare")
SERVICE = Workload(kind="unit", unit="train.service")
JOB = Workload(
    kind="slurm",
    job="42",
    user="mira",
    slurm_account="nlp",
    partition="gpu",
    job_name="bert",
    array_job="40",
    array_task="2",
)


def grouping(by: str) -> Grouping:
    return find_grouping(by, DEVICES, teams=TEAMS, node_of={"GPU-1": "n1", "MIG-1": "n1"}.__getitem__)


TABLE = [
    ("owner", POD, ("kind", "namespace", "owner"), ("pod", "ml", "train-0")),
    ("namespace", POD, ("namespace",), ("ml",)),
    ("pod", POD, ("namespace", "pod"), ("ml", "train-0")),
    ("container", POD, ("namespace", "pod", "container"), ("ml", "train-0", "main")),
    ("controller", POD, ("namespace", "controller_kind", "controller"), ("ml", "Job", "train")),
    ("controller", BARE, ("namespace", "controller_kind", "controller"), ("", "", "")),
    ("job", POD, ("namespace", "job"), ("ml", "train")),
    ("job", REPLICA, ("namespace", "job"), ("", "")),
    ("job", JOB, ("namespace", "job"), ("", "42")),
    ("user", POD, ("user",), ("",)),
    ("user", JOB, ("user",), ("mira",)),
    ("slurm_account", JOB, ("slurm_account",), ("nlp",)),
    ("partition", JOB, ("partition",), ("gpu",)),
    ("job_name", JOB, ("job_name",), ("bert",)),
    ("array_job", JOB, ("array_job",), ("40",)),
    ("queue", POD, ("queue",), ("gpus",)),
    ("queue", JOB, ("queue",), ("",)),
    ("unit", JOB, ("unit",), ("",)),
    ("unit", SERVICE, ("unit",), ("train.service",)),
    ("command", POD, ("command",), ("python",)),
    ("gpu", POD, ("uuid", "gpu", "model"), ("GPU-1", "0", "NVIDIA H100")),
    ("model", POD, ("model",), ("NVIDIA H100",)),
    ("node", POD, ("node",), ("n1",)),
    ("team", POD, ("team",), ("blue",)),
    ("team", JOB, ("team",), ("",)),
    ("label:team", POD, ("team",), ("red",)),
    ("label:account", POD, ("label:account",), ("7",)),
    ("label:none", POD, ("none",), ("",)),
    # Several keys: each column once.
    ("pod,container", POD, ("namespace", "pod", "container"), ("ml", "train-0", "main")),
    ("team,gpu", POD, ("team", "uuid", "gpu", "model"), ("blue", "GPU-1", "0", "NVIDIA H100")),
    ("gpu,model", POD, ("uuid", "gpu", "model"), ("GPU-1", "0", "NVIDIA H100")),
    ("team,label:team", POD, ("team", "label:team"), ("blue", "red")),
    ("label:team,team", POD, ("label:team", "team"), ("red", "blue")),
    (" user , job ", JOB, ("user", "namespace", "job"), ("mira", "", "42")),
    # The namespace of a job or controller is that of the other keys.
    ("job,namespace", REPLICA, ("namespace", "job"), ("ml", "")),
    ("namespace,job", REPLICA, ("namespace", "job"), ("ml", "")),
    (
        "job,controller",
        REPLICA,
        ("namespace", "job", "controller_kind", "controller"),
        ("ml", "", "ReplicaSet", "web"),
    ),
    (
        "controller,job",
        REPLICA,
        ("namespace", "controller_kind", "controller", "job"),
        ("ml", "ReplicaSet", "web", ""),
    ),
]


@pytest.mark.parametrize(("by", "owner", "columns", "key"), TABLE)
def test_the_columns_and_the_key_of_a_grouping(
    by: str, owner: Workload, columns: tuple[str, ...], key: tuple[str, ...]
) -> None:
    found = grouping(by)
    assert found.columns == columns
    assert found.key(party_of("MIG-1", owner, "python")) == key


def test_every_key_is_in_the_table_above() -> None:
    assert {by for by, *_ in TABLE} > {*GROUPINGS, TEAM, NODE, "label:team"}


@pytest.mark.parametrize(
    ("by", "key"),
    [
        ("namespace", ("",)),
        ("team", ("",)),
        ("gpu", ("GPU-1", "0", "NVIDIA H100")),
        ("model,namespace", ("NVIDIA H100", "")),
        ("owner,node", ("", "", "", "n1")),
        ("team,gpu", ("", "GPU-1", "0", "NVIDIA H100")),
    ],
)
def test_own_accounts_have_what_the_gpu_has(by: str, key: tuple[str, ...]) -> None:
    assert grouping(by).own_key("GPU-1") == key


def test_the_name_is_normalized() -> None:
    assert grouping(" team , gpu").name == "team,gpu"


@pytest.mark.parametrize(
    ("by", "error"),
    [
        ("gpu,gpu", "--by gpu,gpu: gpu is given twice"),
        ("label:a,pod,label:a", "--by label:a,pod,label:a: label:a is given twice"),
        ("team,,gpu", "--by 'team,,gpu' has an empty key: write keys as in --by team,gpu"),
        ("", "--by '' has an empty key: write keys as in --by team,gpu"),
        ("pod,", "--by 'pod,' has an empty key: write keys as in --by team,gpu"),
        ("nmespace", "unknown --by 'nmespace'; did you mean 'namespace'?"),
        ("pod,userr", "unknown --by 'userr'; did you mean 'user'?"),
        ("label:", "--by label: requires a pod label's name, such as --by label:team"),
    ],
)
def test_wrong_keys_are_refused(by: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        grouping(by)
    assert str(refused.value) == error


@pytest.mark.parametrize(("by", "error"), [("pod,team", "no teams are set"), ("node", "needs --prometheus")])
def test_keys_that_need_more_than_the_ledger_say_so(by: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        find_grouping(by, DEVICES)


KINDS = (*GROUPINGS, TEAM, NODE, "label:team", "label:gpu", "label:namespace", "label:period")


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5, unique=True))
def test_columns_are_unique_and_keys_fit_them(kinds: list[str]) -> None:
    found = grouping(",".join(kinds))
    assert len(set(found.columns)) == len(found.columns)
    for owner in (POD, JOB, UNKNOWN):
        assert len(found.key(party_of("MIG-1", owner, "python"))) == len(found.columns)
    assert len(found.own_key("GPU-1")) == len(found.columns)


OWNERS = (POD, REPLICA, BARE, JOB, UNKNOWN)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4, unique=True), st.sampled_from(OWNERS))
def test_a_key_among_others_distinguishes_what_it_distinguishes_alone(
    kinds: list[str], other: Workload
) -> None:
    found = grouping(",".join(kinds))
    for owner in OWNERS:
        pair = [party_of("GPU-1", one, "python") for one in (owner, other)]
        alone = all(len({grouping(kind).key(party) for party in pair}) == 1 for kind in kinds)
        if len({found.key(party) for party in pair}) == 1:
            assert alone
