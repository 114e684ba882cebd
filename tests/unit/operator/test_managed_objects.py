"""The known objects: states arrive in any order, and differences from the desired content are found."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.operator.kinds import MANAGED_BY, object_key
from gpuledger.operator.managed_objects import ManagedObjects, foreign_entries_patch

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
            "labels": {MANAGED_BY: FIELD_MANAGER},
            "ownerReferences": [OWNER],
        },
        "data": data,
    }


def desired(**data: str) -> Json:
    body = config_map(**data)
    return {**body, "metadata": {key: body["metadata"][key] for key in ("name", "namespace", "labels")}}


KEY = object_key(config_map())


def test_the_newest_state_wins_in_any_order() -> None:
    for order in permutations([1, 2, 3]):
        owned = ManagedObjects()
        for version in order:
            owned.record_object(config_map(version, a=f"{version}"))
        assert (owned.get(KEY) or {})["data"] == {"a": "3"}


def test_a_deleted_object_does_not_reappear_with_an_older_state() -> None:
    owned = ManagedObjects()
    owned.record_object(config_map(1))
    owned.remove_object(config_map(5))
    owned.record_object(config_map(4))
    assert owned.get(KEY) is None
    # The same if the deletion was reported first.
    other = ManagedObjects()
    other.remove_object(config_map(5))
    other.record_object(config_map(4))
    assert other.get(KEY) is None


def test_the_deletion_of_an_earlier_object_of_the_same_name_is_ignored() -> None:
    owned = ManagedObjects()
    owned.record_object(config_map(5, uid="new"))
    owned.remove_object(config_map(4, uid="old"))
    assert owned.get(KEY) is not None


def test_an_object_without_the_label_is_removed() -> None:
    owned = ManagedObjects()
    owned.record_object(config_map(1))
    bare = config_map(2)
    bare["metadata"]["labels"] = {}
    owned.record_object(bare)
    assert owned.get(KEY) is None


def test_a_listing_removes_only_older_objects() -> None:
    woken: list[str] = []
    owned = ManagedObjects(woken.append)
    owned.record_object(config_map(7))
    owned.apply_listing("ConfigMap", [], version=6)
    assert owned.get(KEY) is not None
    woken.clear()
    owned.apply_listing("ConfigMap", [], version=8)
    assert owned.get(KEY) is None
    assert woken == ["m-1"]


def test_listings_of_other_kinds_do_not_remove_it() -> None:
    owned = ManagedObjects()
    owned.record_object(config_map(1))
    owned.apply_listing("Service", [], version=8)
    assert owned.get(KEY) is not None


def test_an_object_needs_an_apply_until_it_was_applied() -> None:
    owned = ManagedObjects()
    owned.record_object(config_map(1, a="1"))
    assert owned.is_new_content(desired(a="1"))
    assert owned.needs_apply(desired(a="1"))
    owned.record_apply(desired(a="1"), config_map(2, a="1"))
    assert not owned.is_new_content(desired(a="1"))
    assert not owned.needs_apply(desired(a="1"))
    assert owned.needs_apply(desired(a="2"))


def test_a_value_that_the_server_normalizes_needs_no_apply() -> None:
    owned = ManagedObjects()
    owned.record_apply(desired(a="1000m"), config_map(2, a="1"))
    assert not owned.needs_apply(desired(a="1000m"))


def test_a_changed_desired_field_needs_an_apply() -> None:
    owned = ManagedObjects()
    owned.record_apply(desired(a="1"), config_map(2, a="1"))
    owned.record_object(config_map(3, a="2"))
    assert owned.needs_apply(desired(a="1"))
    assert not owned.is_new_content(desired(a="1")), "a repair, not a change of the spec"


def test_a_deleted_object_needs_an_apply() -> None:
    owned = ManagedObjects()
    owned.record_apply(desired(a="1"), config_map(2, a="1"))
    owned.remove_object(config_map(3))
    assert owned.needs_apply(desired(a="1"))


def test_additions_of_others_need_no_apply() -> None:
    owned = ManagedObjects()
    owned.record_apply(desired(a="1"), config_map(2, a="1"))
    noted = config_map(3, a="1")
    noted["metadata"]["annotations"] = {"note": "x"}
    owned.record_object({**noted, "status": {"ready": 3}})
    assert not owned.needs_apply(desired(a="1"))


def test_an_additional_entry_in_an_exclusive_mapping_needs_an_apply() -> None:
    owned = ManagedObjects()
    owned.record_apply(desired(a="1"), config_map(2, a="1"))
    owned.record_object(config_map(3, a="1", b="2"))
    assert owned.needs_apply(desired(a="1"))
    assert foreign_entries_patch(config_map(3, a="1", b="2"), desired(a="1")) == {"data": {"b": None}}


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
        (
            {"jobTemplate": {"spec": {"template": {"spec": {"nodeSelector": {"a": "1"}}}}}},
            {"jobTemplate": {"spec": {"template": {"spec": {}}}}},
            {"spec": {"jobTemplate": {"spec": {"template": {"spec": {"nodeSelector": {"a": None}}}}}}},
        ),
        ({"replicas": 3}, {"replicas": 3}, {}),
    ],
    ids=["a service's selector", "a set's selector", "a node selector", "that of Jobs", "no such mapping"],
)
def test_foreign_entries_of_exclusive_mappings_are_deleted(live: Json, ours: Json, patch: Json) -> None:
    assert foreign_entries_patch({"spec": live}, {"spec": ours}) == patch


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(spec=st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_applied_content_needs_no_apply(spec: Json) -> None:
    owned = ManagedObjects()
    body = {**desired(), "spec": spec}
    owned.record_apply(body, {**config_map(2), "spec": spec})
    assert not owned.needs_apply(body)
