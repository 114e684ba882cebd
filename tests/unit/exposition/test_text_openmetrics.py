from __future__ import annotations

import pytest

from gpuledger.exposition.text import encode_openmetrics
from gpuledger.model.family import Family, FamilySpec


def page(type_="gauge", name="gpu_x", *, labels=("gpu",), samples=None, help_="What it is.", unit=""):
    samples = {("0",): 1} if samples is None else samples
    return encode_openmetrics([Family(FamilySpec(name, type_, help_, labels, unit), samples)])


def test_an_empty_page_is_only_eof():
    assert encode_openmetrics([]) == b"# EOF\n"


def test_a_family_without_samples_is_omitted():
    assert page(samples={}) == b"# EOF\n"


def test_a_family_is_type_unit_help_and_samples():
    assert page(name="gpu_held_bytes", unit="bytes") == (
        b"# TYPE gpu_held_bytes gauge\n# UNIT gpu_held_bytes bytes\n# HELP gpu_held_bytes What it is.\n"
        b'gpu_held_bytes{gpu="0"} 1\n# EOF\n'
    )


def test_an_undeclared_unit_is_omitted():
    assert b"UNIT" not in page(name="gpu_held_bytes")


def test_an_empty_help_is_omitted():
    assert b"HELP" not in page(help_="")


@pytest.mark.parametrize(
    ("type_", "name", "declared", "sample"),
    [
        ("gauge", "gpu_x", b"gpu_x gauge", b"gpu_x{"),
        ("gauge", "gpu_process_info", b"gpu_process_info gauge", b"gpu_process_info{"),
        ("counter", "gpu_events_total", b"gpu_events counter", b"gpu_events_total{"),
        ("counter", "gpu_energy_joules", b"gpu_energy_joules unknown", b"gpu_energy_joules{"),
        ("info", "gpu_device_info", b"gpu_device info", b"gpu_device_info{"),
        ("info", "gpu_device", b"gpu_device gauge", b"gpu_device{"),
        ("unknown", "gpu_x", b"gpu_x unknown", b"gpu_x{"),
    ],
)
def test_the_declared_type_fits_the_name_and_samples_keep_their_name(type_, name, declared, sample):
    lines = page(type_, name).splitlines()
    assert lines[0] == b"# TYPE " + declared
    assert lines[-2].startswith(sample)


def test_the_unit_of_a_counter_ends_the_name_without_total():
    lines = page("counter", "gpu_energy_joules_total", unit="joules").splitlines()
    assert lines[1] == b"# UNIT gpu_energy_joules joules"


def test_a_gauge_named_total_has_no_unit():
    assert b"UNIT" not in page("gauge", "gpu_memory_bytes_total", unit="bytes")


def test_help_also_escapes_quotes():
    assert b'# HELP gpu_x a \\"b\\"\\n\\\\c\n' in page(help_='a "b"\n\\c')


def test_label_values_are_escaped():
    assert b'gpu_x{gpu="a\\\\b\\"c\\n"} 1\n' in page(samples={('a\\b"c\n',): 1})


def test_a_value_that_is_not_finite_is_omitted():
    assert page(samples={("0",): float("nan")}) == b"# EOF\n"
