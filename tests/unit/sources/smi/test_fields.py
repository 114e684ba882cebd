"""Which fields nvidia-smi is asked for."""

from __future__ import annotations

import pytest

from gpuledger.sources.smi.fields import IDENTITY, field_globs, field_names, offered, without

HELP = """List of valid properties to query for the switch "--query-gpu":

"timestamp"
The timestamp of when the query was made.

Section about pci properties
"Enabled" begins a line that is of no field.

"pci.bus_id" or "gpu_bus_id"
PCI bus id as "domain:bus:device.function", in hex.

"pci.baseClass"
  "indented" is no field either.

"fabric.health.bandwidth"
"""


def test_a_field_is_quoted_at_the_start_of_a_line_after_an_empty_one() -> None:
    assert offered(HELP) == ("timestamp", "pci.bus_id", "pci.baseClass", "fabric.health.bandwidth")


@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("\n\n", "\n \n"), ("\n\n", "\n\n\n")])
def test_line_ends_and_blanks_make_no_difference(old: str, new: str) -> None:
    assert offered(HELP.replace(old, new)) == offered(HELP)


def test_an_answer_that_is_no_help_offers_nothing() -> None:
    assert offered("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n") == ()


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("AUTO", ("AUTO",)),
        ("auto", ("AUTO",)),
        ("uuid,power.draw", ("uuid", "power.draw")),
        (" uuid , power.draw,uuid,", ("uuid", "power.draw")),
        (["uuid", "pci.baseClass"], ("uuid", "pci.baseClass")),
    ],
)
def test_field_names_are_a_list_without_repeats(written: object, names: tuple[str, ...]) -> None:
    assert field_names(written) == names


@pytest.mark.parametrize("written", ["", ",", "power draw", "uuid;name", "AUTO,uuid", "power.*", "--help"])
def test_what_is_no_field_name_is_an_error(written: str) -> None:
    with pytest.raises(ValueError, match="AUTO, or fields such as"):
        field_names(written)


def test_what_is_no_glob_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"remapped_rows\.histogram\.\*"):
        field_globs("a[b]")


@pytest.mark.parametrize(
    ("globs", "left"),
    [
        ("", ("uuid", "ecc.mode.current", "ecc.mode.pending", "xecc", "hostname")),
        ("ecc.*", ("uuid", "xecc", "hostname")),
        ("*.pending,hostname", ("uuid", "ecc.mode.current", "xecc")),
        ("ecc.mode", ("uuid", "ecc.mode.current", "ecc.mode.pending", "xecc", "hostname")),
        ("ecc.mode.current", ("uuid", "ecc.mode.pending", "xecc", "hostname")),
        # Who a row is of cannot be left out.
        ("*", ("uuid",)),
        ("uuid,ecc*", ("uuid", "xecc", "hostname")),
    ],
)
def test_a_star_stands_for_anything_and_all_else_for_itself(globs: str, left: tuple[str, ...]) -> None:
    fields = ("uuid", "ecc.mode.current", "ecc.mode.pending", "xecc", "hostname")
    assert without(fields, field_globs(globs)) == left


def test_nothing_of_gpu_info_can_be_left_out() -> None:
    assert without(IDENTITY, ("*",)) == IDENTITY
