"""The catalogue: names by the rules of the field, documented from code."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from gpuledger.agent.families import SPECS as AGENT
from gpuledger.cli.main import main
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition.merging import check_specs
from gpuledger.model.errors import UsageError
from gpuledger.model.family import FamilySpec
from gpuledger.model.quantities import QUANTITIES
from gpuledger.operator.families import SPECS as OPERATOR

EVERY = dialects(DialectSettings(), "0.0.0")
SPECS = list(chain.from_iterable(dialect.specs for dialect in EVERY.values()))


def test_a_family_has_one_declaration_whichever_dialect_tells_it() -> None:
    check_specs([*SPECS, *AGENT, *OPERATOR])


@pytest.mark.parametrize("spec", [*EVERY["native"].specs, *AGENT, *OPERATOR], ids=lambda spec: spec.name)
def test_names_of_our_own_follow_the_conventions(spec: FamilySpec) -> None:
    assert re.fullmatch(r"gpuledger_[a-z][a-z0-9_]*[a-z0-9]", spec.name)
    assert spec.name.endswith("_total") == (spec.type == "counter")
    assert spec.name.endswith("_info") == (spec.type == "info")
    assert spec.help.endswith(".")
    overwritten = {"instance", "job", "__name__"} & set(spec.labels)
    assert not overwritten, "honor_labels would lose the scrape target"


def test_dialects_are_taken_by_name_each_once_and_a_slip_is_told_the_nearest() -> None:
    assert known(["native", "smi", "native"], EVERY) == ("native", "smi")
    with pytest.raises(UsageError, match=r"unknown dialect 'natve'.*native"):
        known(["natve"], EVERY)


def test_docs_are_made_from_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--format", "markdown"]) == 0
    written = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert written.read_text(encoding="utf-8") == capsys.readouterr().out, "run `make docs`"


def test_every_quantity_is_known_by_its_key_alone() -> None:
    assert all(key == quantity.key for key, quantity in QUANTITIES.items())
