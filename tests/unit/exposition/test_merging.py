from __future__ import annotations

import pytest

from gpuledger.exposition.merging import check_specs, merge
from gpuledger.model.family import Family, FamilySpec

X = FamilySpec("x", "gauge", "help", ("gpu",))
Y = FamilySpec("y", "gauge", "help", ("gpu",))


def test_the_first_telling_of_a_series_stands():
    (told,) = merge([Family(X, {("0",): 1}), Family(X, {("0",): 2, ("1",): 3})])
    assert told.samples == {("0",): 1, ("1",): 3}


def test_families_keep_the_order_of_their_first_telling():
    told = merge([Family(Y), Family(X), Family(Y), Family(X)])
    assert [family.spec for family in told] == [Y, X]


def test_three_tellings_join():
    (told,) = merge(Family(X, {(str(n),): n}) for n in range(3))
    assert told.samples == {("0",): 0, ("1",): 1, ("2",): 2}


def test_the_given_families_are_left_as_they_are():
    first, second = Family(X, {("0",): 1}), Family(X, {("1",): 2})
    merge([first, second])
    assert (first.samples, second.samples) == ({("0",): 1}, {("1",): 2})


def test_two_specs_of_one_name_are_refused():
    with pytest.raises(ValueError, match="family x is declared in two ways"):
        merge([Family(X), Family(FamilySpec("x", "counter", "help", ("gpu",)))])


@pytest.mark.parametrize(
    ("specs", "wrong"),
    [
        ([X, FamilySpec("x", "gauge", "other help", ("gpu",))], "family x is declared in two ways"),
        ([FamilySpec("x_total", "counter", ""), FamilySpec("x", "gauge", "")], "would both be x in OpenM"),
        ([FamilySpec("x", "counter", ""), FamilySpec("x_total", "counter", "")], "would both be x in OpenM"),
        ([FamilySpec("x_info", "info", ""), FamilySpec("x", "gauge", "")], "would both be x in OpenMetrics"),
        ([FamilySpec("x_total", "counter", ""), FamilySpec("x_created", "gauge", "")], "both be x_created"),
        ([FamilySpec("9x", "gauge", "")], "'9x' is not a metric name"),
        ([FamilySpec("x y", "gauge", "")], "'x y' is not a metric name"),
        ([FamilySpec("x\n", "gauge", "")], "is not a metric name"),
        ([FamilySpec("x", "gauge", "", ("pod-name",))], "family x: 'pod-name' is not a label name"),
        ([FamilySpec("x", "gauge", "", ("__name__",))], "family x: '__name__' is not a label name"),
    ],
)
def test_specs_that_cannot_share_a_page_are_refused_at_start(specs, wrong):
    with pytest.raises(ValueError, match=wrong):
        check_specs(specs)


def test_a_family_that_two_dialects_share_is_no_clash():
    check_specs([X, Y, X, FamilySpec("x", "gauge", "help", ("gpu",))])


def test_a_gauge_that_ends_in_info_takes_no_other_name():
    check_specs([FamilySpec("gpu_process_info", "gauge", ""), FamilySpec("gpu_process", "gauge", "")])
