from __future__ import annotations

import pytest

from gpuledger.exposition.text import encode_text, format_number
from gpuledger.model.family import Family, FamilySpec


def family(type_="gauge", name="gpu_x", labels=("gpu",), samples=None, help_="What it is."):
    return Family(FamilySpec(name, type_, help_, labels), samples or {})


def test_a_family_is_help_type_and_samples_in_order():
    one_family = family(samples={("1",): 2.5, ("0",): 1})
    assert encode_text([one_family]) == (
        b'# HELP gpu_x What it is.\n# TYPE gpu_x gauge\ngpu_x{gpu="1"} 2.5\ngpu_x{gpu="0"} 1\n'
    )


def test_a_family_without_labels_has_no_braces():
    assert encode_text([family(labels=(), samples={(): 3})]).endswith(b"\ngpu_x 3\n")


def test_a_family_without_samples_is_omitted():
    assert encode_text([family()]) == b""


def test_an_empty_page_is_empty():
    assert encode_text([]) == b""


@pytest.mark.parametrize(
    ("type_", "written"),
    [("gauge", "gauge"), ("counter", "counter"), ("info", "gauge"), ("unknown", "untyped")],
)
def test_types_are_mapped_to_those_of_the_format(type_, written):
    assert f"# TYPE gpu_x {written}\n".encode() in encode_text([family(type_, samples={("0",): 1})])


def test_a_counter_named_without_total_keeps_its_name_and_type():
    page = encode_text([family("counter", "my_gpu_process_energy_joules", samples={("0",): 1.5})])
    assert b"# TYPE my_gpu_process_energy_joules counter\n" in page
    assert b'\nmy_gpu_process_energy_joules{gpu="0"} 1.5\n' in page


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (0.0, "0"),
        (1.0, "1"),
        (True, "1"),
        (-3.0, "-3"),
        (0.1, "0.1"),
        (85899345920.0, "85899345920"),
        (85899345920, "85899345920"),
        (1e300, "1e+300"),
        (5e-324, "5e-324"),
        (1721.0625, "1721.0625"),
        (float("nan"), ""),
        (float("inf"), ""),
        (float("-inf"), ""),
    ],
)
def test_numbers_are_formatted_shortest_and_exactly(value, written):
    assert format_number(value) == written


def test_a_value_that_is_not_finite_is_omitted():
    page = encode_text([family(samples={("0",): float("nan"), ("1",): 1.0, ("2",): float("inf")})])
    assert [line for line in page.splitlines() if not line.startswith(b"#")] == [b'gpu_x{gpu="1"} 1']


def test_a_family_without_finite_values_is_omitted():
    assert encode_text([family(samples={("0",): float("nan")})]) == b""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a\\b", rb"a\\b"),
        ('say "hi"', rb"say \"hi\""),
        ("two\nlines", rb"two\nlines"),
        ("\\n", rb"\\n"),
        ("}{,= #", b"}{,= #"),
        ("größe", "größe".encode()),
        ("", b""),
    ],
)
def test_only_special_characters_of_label_values_are_escaped(value, written):
    line = encode_text([family(samples={(value,): 1})]).splitlines()[-1]
    assert line == b'gpu_x{gpu="' + written + b'"} 1'


def test_escaping_one_label_value_does_not_change_others():
    page = encode_text([family(labels=("a", "b"), samples={("x", 'q"'): 1, ("%s", "y"): 2})])
    assert page.endswith(b'gpu_x{a="x",b="q\\""} 1\ngpu_x{a="%s",b="y"} 2\n')


def test_help_keeps_quotes_and_escapes_line_feeds_and_backslashes():
    page = encode_text([family(help_='a "b"\n\\c', samples={("0",): 1})])
    assert page.startswith(b'# HELP gpu_x a "b"\\n\\\\c\n')


def test_a_lone_surrogate_is_replaced():
    assert b'gpu_x{gpu="a?"} 1' in encode_text([family(samples={("a\udc80",): 1})])


def test_a_sample_with_the_wrong_number_of_label_values_raises_an_error():
    with pytest.raises(TypeError):
        encode_text([family(samples={("0", "1"): 1})])


def test_two_families_of_one_spec_are_rendered_together():
    other = family(name="gpu_y", samples={("0",): 5})
    page = encode_text([family(samples={("0",): 1}), other, family(samples={("1",): 2})])
    assert page.count(b"# TYPE gpu_x") == 1
    assert b'gpu_x{gpu="0"} 1\ngpu_x{gpu="1"} 2\n' in page
