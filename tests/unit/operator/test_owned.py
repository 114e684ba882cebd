"""What was made, as it is known: news in any order, and whether any of it differs from what is wanted."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.kubernetes.access import MANAGER
from gpuledger.operator.kinds import MANAGED_BY, key_of
from gpuledger.operator.owned import Owned, strangers

Json = dict[str, Any]
OWNER = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "GpuMonitor", "name": "main", "uid": "m-1"}


def config_map(version: int = 1, uid: str = "o-1", **data: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "c",
            "namespace": "n",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {MANAGED_BY: MANAGER},
            "ownerReferences": [OWNER],
        },
        "data": data,
    }


def wanted(**data: str) -> Json:
    body = config_map(**data)
    return {**body, "metadata": {key: body["metadata"][key] for key in ("name", "namespace", "labels")}}


KEY = key_of(config_map())


def test_the_newest_state_stands_whatever_comes_first() -> None:
    for order in permutations([1, 2, 3]):
        owned = Owned()
        for version in order:
            owned.take(config_map(version, a=f"{version}"))
        assert (owned.get(KEY) or {})["data"] == {"a": "3"}


def test_what_is_deleted_does_not_come_back_with_late_news() -> None:
    owned = Owned()
    owned.take(config_map(1))
    owned.forget(config_map(5))
    owned.take(config_map(4))
    assert owned.get(KEY) is None
    # Nor where the deletion was the first news.
    other = Owned()
    other.forget(config_map(5))
    other.take(config_map(4))
    assert other.get(KEY) is None


def test_another_object_of_the_same_name_is_another() -> None:
    owned = Owned()
    owned.take(config_map(5, uid="new"))
    owned.forget(config_map(4, uid="old"))
    assert owned.get(KEY) is not None


def test_what_has_lost_the_label_is_not_seen_any_more() -> None:
    owned = Owned()
    owned.take(config_map(1))
    bare = config_map(2)
    bare["metadata"]["labels"] = {}
    owned.take(bare)
    assert owned.get(KEY) is None


def test_a_list_tells_what_is_gone_but_not_what_came_after_it() -> None:
    woken: list[str] = []
    owned = Owned(woken.append)
    owned.take(config_map(7))
    owned.settle("ConfigMap", [], version=6)
    assert owned.get(KEY) is not None
    woken.clear()
    owned.settle("ConfigMap", [], version=8)
    assert owned.get(KEY) is None
    assert woken == ["m-1"]


def test_lists_of_other_kinds_say_nothing_of_it() -> None:
    owned = Owned()
    owned.take(config_map(1))
    owned.settle("Service", [], version=8)
    assert owned.get(KEY) is not None


def test_it_has_to_be_applied_until_it_was() -> None:
    owned = Owned()
    owned.take(config_map(1, a="1"))
    assert owned.is_new(wanted(a="1"))
    assert owned.differs(wanted(a="1"))
    owned.agree(wanted(a="1"), config_map(2, a="1"))
    assert not owned.is_new(wanted(a="1"))
    assert not owned.differs(wanted(a="1"))
    assert owned.differs(wanted(a="2"))


def test_what_the_server_writes_in_its_own_way_is_no_difference() -> None:
    owned = Owned()
    owned.agree(wanted(a="1000m"), config_map(2, a="1"))
    assert not owned.differs(wanted(a="1000m"))


def test_a_hand_on_what_was_wanted_is_a_difference() -> None:
    owned = Owned()
    owned.agree(wanted(a="1"), config_map(2, a="1"))
    owned.take(config_map(3, a="2"))
    assert owned.differs(wanted(a="1"))
    assert not owned.is_new(wanted(a="1")), "a repair, not a change of mind"


def test_what_is_gone_is_a_difference() -> None:
    owned = Owned()
    owned.agree(wanted(a="1"), config_map(2, a="1"))
    owned.forget(config_map(3))
    assert owned.differs(wanted(a="1"))


def test_what_others_add_beside_it_is_none() -> None:
    owned = Owned()
    owned.agree(wanted(a="1"), config_map(2, a="1"))
    noted = config_map(3, a="1")
    noted["metadata"]["annotations"] = {"note": "x"}
    owned.take({**noted, "status": {"ready": 3}})
    assert not owned.differs(wanted(a="1"))


def test_where_every_entry_counts_one_more_is_a_difference() -> None:
    owned = Owned()
    owned.agree(wanted(a="1"), config_map(2, a="1"))
    owned.take(config_map(3, a="1", b="2"))
    assert owned.differs(wanted(a="1"))
    assert strangers(config_map(3, a="1", b="2"), wanted(a="1")) == {"data": {"b": None}}


@pytest.mark.parametrize(
    ("live", "ours", "patch"),
    [
        ({"selector": {"a": "1", "b": "2"}}, {"selector": {"a": "1"}}, {"spec": {"selector": {"b": None}}}),
        ({"selector": {"matchLabels": {"a": "1"}, "x": {}}}, {"selector": {"matchLabels": {"a": "1"}}}, {}),
        (
            {"template": {"spec": {"nodeSelector": {"a": "1"}}}},
            {"template": {"spec": {}}},
            {"spec": {"template": {"spec": {"nodeSelector": {"a": None}}}}},
        ),
        ({"replicas": 3}, {"replicas": 3}, {}),
    ],
    ids=["a service's selector", "a set's selector", "a node selector", "nothing of the kind"],
)
def test_entries_of_others_are_taken_away_where_all_are_ours(live: Json, ours: Json, patch: Json) -> None:
    assert strangers({"spec": live}, {"spec": ours}) == patch


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(spec=st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_whatever_was_agreed_on_does_not_differ(spec: Json) -> None:
    owned = Owned()
    body = {**wanted(), "spec": spec}
    owned.agree(body, {**config_map(2), "spec": spec})
    assert not owned.differs(body)
