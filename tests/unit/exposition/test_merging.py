from __future__ import annotations

import pytest

from gpuledger.exposition.merging import check_family_specs, merge_families
from gpuledger.model.family import Family, FamilySpec

X = FamilySpec("x", "gauge", "help", ("gpu",))
Y = FamilySpec("y", "gauge", "help", ("gpu",))


def test_the_first_value_of_a_series_is_kept():
    (merged,) = merge_families([Family(X, {("0",): 1}), Family(X, {("0",): 2, ("1",): 3})])
    assert merged.samples == {("0",): 1, ("1",): 3}


def test_families_are_in_order_of_first_appearance():
    merged = merge_families([Family(Y), Family(X), Family(Y), Family(X)])
    assert [family.spec for family in merged] == [Y, X]


def test_three_families_of_one_spec_are_merged():
    (merged,) = merge_families(Family(X, {(str(n),): n}) for n in range(3))
    assert merged.samples == {("0",): 0, ("1",): 1, ("2",): 2}


def test_the_given_families_are_not_modified():
    first, second = Family(X, {("0",): 1}), Family(X, {("1",): 2})
    merge_families([first, second])
    assert (first.samples, second.samples) == ({("0",): 1}, {("1",): 2})


def test_two_specs_with_one_name_are_rejected():
    with pytest.raises(ValueError, match="family x has two different declarations"):
        merge_families([Family(X), Family(FamilySpec("x", "counter", "help", ("gpu",)))])


@pytest.mark.parametrize(
    ("specs", "wrong"),
    [
        ([X, FamilySpec("x", "gauge", "other help", ("gpu",))], "family x has two different declarations"),
        ([FamilySpec("x_total", "counter", ""), FamilySpec("x", "gauge", "")], "would both be x in OpenM"),
        ([FamilySpec("x", "counter", ""), FamilySpec("x_total", "counter", "")], "would both be x in OpenM"),
        ([FamilySpec("x_info", "info", ""), FamilySpec("x", "gauge", "")], "would both be x in OpenMetrics"),
        ([FamilySpec("x_total", "counter", ""), FamilySpec("x_created", "gauge", "")], "both be x_created"),
        ([FamilySpec("9x", "gauge", "")], "'9x' is not a valid metric name"),
        ([FamilySpec("x y", "gauge", "")], "'x y' is not a valid metric name"),
        ([FamilySpec("x\n", "gauge", "")], "is not a valid metric name"),
        ([FamilySpec("x", "gauge", "", ("pod-name",))], "family x: 'pod-name' is not a valid label name"),
        ([FamilySpec("x", "gauge", "", ("__name__",))], "family x: '__name__' is not a valid label name"),
    ],
)
def test_specs_that_cannot_share_a_page_are_rejected_at_startup(specs, wrong):
    with pytest.raises(ValueError, match=wrong):
        check_family_specs(specs)


def test_a_family_shared_by_two_dialects_is_not_a_conflict():
    check_family_specs([X, Y, X, FamilySpec("x", "gauge", "help", ("gpu",))])


def test_a_gauge_named_info_does_not_use_the_name_without_info():
    check_family_specs([FamilySpec("gpu_process_info", "gauge", ""), FamilySpec("gpu_process", "gauge", "")])
