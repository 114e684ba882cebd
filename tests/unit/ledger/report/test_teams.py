"""Teams of owners."""

from __future__ import annotations

import json

import pytest

from gpuledger.ledger.report.teams import Team, find_team, parse_teams
from gpuledger.model.settings import InvalidElement
from gpuledger.model.workload import UNKNOWN, Workload

TEAMS = parse_teams(
    [
        {"team": "vision", "namespace": ["vision-*", "images"]},
        {"team": "nlp", "slurm_account": "nlp", "user": ["mira", "jo"]},
        {"team": "lab", "label:group": "lab-?", "namespace": "shared"},
        {"team": "batch", "job": "nightly"},
        {"team": "people", "user": "*"},
        {"team": "edge", "node": "edge-*", "pod": "*"},
    ]
)
POD = Workload(kind="pod", namespace="vision-prod", pod="train-0", user="root")


@pytest.mark.parametrize(
    ("owner", "node", "team"),
    [
        (POD, "", "vision"),
        (Workload(kind="pod", namespace="images", pod="a"), "", "vision"),
        (Workload(kind="pod", namespace="Images", pod="a"), "", ""),
        (Workload(kind="slurm", job="7", user="jo", slurm_account="nlp"), "", "nlp"),
        # All keys of an entry must match; the first entry that matches counts.
        (Workload(kind="slurm", job="7", user="jo", slurm_account="cfd"), "", "people"),
        (Workload(kind="slurm", job="7", user="eve", slurm_account="nlp"), "", "people"),
        (Workload(kind="pod", namespace="shared", pod="a", labels=(("group", "lab-1"),)), "", "lab"),
        (Workload(kind="pod", namespace="shared", pod="a", labels=(("group", "lab-12"),)), "", ""),
        (
            Workload(kind="pod", namespace="x", pod="a", controller_kind="Job", controller="nightly"),
            "",
            "batch",
        ),
        (Workload(kind="user", user="dan"), "", "people"),
        # The users inside pods are not users of the machine.
        (Workload(kind="pod", namespace="x", pod="a", user="dan"), "", ""),
        (Workload(kind="pod", namespace="x", pod="a"), "edge-7", "edge"),
        # A name that is not known matches no pattern.
        (UNKNOWN, "", ""),
        (UNKNOWN, "edge-7", ""),
    ],
)
def test_the_first_entry_that_matches_an_owner_counts(owner: Workload, node: str, team: str) -> None:
    assert find_team(TEAMS, owner, node) == team


def test_a_json_text_is_the_same_list() -> None:
    entries = [{"team": "a", "namespace": ["x", "y-*"]}, {"team": "b", "user": "1000"}]
    assert parse_teams(json.dumps(entries)) == parse_teams(entries)
    assert parse_teams('[{"team": "b", "user": 1000}]') == (Team("b", (("user", ("1000",)),)),)


@pytest.mark.parametrize("value", ["", None, [], "[]"])
def test_no_teams(value: object) -> None:
    assert parse_teams(value) == ()


REFUSED = [
    ([{"namespace": "x"}], "entry 1 has no team: add its name, such as team: vision"),
    ([{"team": "", "namespace": "x"}], "entry 1 has no team: add its name, such as team: vision"),
    ([{"team": ["a"], "namespace": "x"}], "entry 1 has no team: add its name, such as team: vision"),
    ([{}], "entry 1 has no team: add its name, such as team: vision"),
    (
        [{"team": "a"}],
        "entry 1 (team a) would match every owner: add a key, such as namespace or user, or remove the entry",
    ),
    (
        [{"team": "a", "namespce": "x"}],
        "entry 1 (team a): unknown key 'namespce'; did you mean 'namespace'?",
    ),
    (
        [{"team": "a", "label:": "x"}],
        "entry 1 (team a): unknown key 'label:'; did you mean 'label:NAME'?",
    ),
    (
        [{"team": "a", "user": ""}],
        "entry 1 (team a): user: expected a name or a pattern such as vision-*, or a list of them",
    ),
    (
        [{"team": "a", "user": [{"b": 1}]}],
        "entry 1 (team a): user: expected a name or a pattern such as vision-*, or a list of them",
    ),
    (
        [{"team": "a", "user": []}],
        "entry 1 (team a): user: the list is empty, so that the entry matches nothing; add a name",
    ),
    (["vision"], "entry 1 (vision): expected a mapping with team and other keys"),
    (
        [{"team": "a", "namespace": "x"}, {"team": "b", "namespace": "x"}],
        "entry 2 (team b, namespace x): it never counts, because entry 1 (team a, namespace x) matches the "
        "same first; remove it, or move the narrower entry up",
    ),
    (
        [{"team": "a", "namespace": "x-*"}, {"team": "b", "namespace": ["y", "x-1"]}],
        "entry 2 (team b, namespace y or x-1): namespace x-1 never counts, because entry 1 (team a, "
        "namespace x-*) matches the same first; remove it, or move the narrower entry up",
    ),
    (
        [{"team": "a", "user": "mira"}, {"team": "b", "slurm_account": "nlp", "user": ["jo", "mira"]}],
        "entry 2 (team b, slurm_account nlp, user jo or mira): user mira never counts, because entry 1 (team "
        "a, user mira) matches the same first; remove it, or move the narrower entry up",
    ),
    (
        [{"team": "a", "user": "*"}, {"team": "c", "unit": "x"}, {"team": "b", "user": "b?b"}],
        "entry 3 (team b, user b?b): it never counts, because entry 1 (team a, user *) matches the same "
        "first; remove it, or move the narrower entry up",
    ),
]


@pytest.mark.parametrize(("value", "error"), REFUSED)
def test_a_wrong_entry_is_named_in_one_line(value: object, error: str) -> None:
    with pytest.raises(InvalidElement) as refused:
        parse_teams(value)
    assert str(refused.value) == error


@pytest.mark.parametrize("value", ["vision", "{", 5, {"team": "a"}, '{"team": "a"}', "[" * 100_000])
def test_what_is_no_list_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a list of entries, such as "):
        parse_teams(value)


def test_a_key_twice_in_json_is_refused() -> None:
    with pytest.raises(InvalidElement, match="an entry has a key twice"):
        parse_teams('[{"team": "a", "user": "x", "user": "y"}]')


@pytest.mark.parametrize(
    "value",
    [
        [{"team": "a", "namespace": "x"}, {"team": "b", "namespace": "x-*"}],
        [{"team": "a", "namespace": "x", "user": "u"}, {"team": "b", "namespace": "x"}],
        [{"team": "a", "namespace": "a*"}, {"team": "b", "namespace": "*b"}],
        [{"team": "a", "namespace": "x"}, {"team": "a", "user": "x"}],
        [
            {"team": "a", "namespace": "x", "user": "u"},
            {"team": "b", "namespace": ["x", "y"], "user": ["u", "v"]},
        ],
        [{"team": "a", "user": "bob"}, {"team": "b", "user": "*"}],
    ],
)
def test_entries_that_overlap_are_accepted_if_each_name_can_count(value: object) -> None:
    assert len(parse_teams(value)) == 2
