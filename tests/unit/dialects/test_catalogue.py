"""The declared families: naming conventions, uniqueness and generated documentation."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from gpuledger.agent.families import SPECS as AGENT
from gpuledger.cli.main import main
from gpuledger.dialects.catalogue import DIALECT_NAMES, check_dialect_names, create_dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition.merging import check_family_specs
from gpuledger.model.errors import UsageError
from gpuledger.model.family import FamilySpec
from gpuledger.model.quantities import QUANTITIES
from gpuledger.operator.families import SPECS as OPERATOR

EVERY = create_dialects(DialectSettings(), "0.0.0")
SPECS = list(chain.from_iterable(dialect.specs for dialect in EVERY.values()))


def test_a_family_has_one_declaration_in_all_dialects() -> None:
    check_family_specs([*SPECS, *AGENT, *OPERATOR])


@pytest.mark.parametrize("spec", [*EVERY["native"].specs, *AGENT, *OPERATOR], ids=lambda spec: spec.name)
def test_names_of_gpuledger_families_follow_the_conventions(spec: FamilySpec) -> None:
    assert re.fullmatch(r"gpuledger_[a-z][a-z0-9_]*[a-z0-9]", spec.name)
    assert spec.name.endswith("_total") == (spec.type == "counter")
    assert spec.name.endswith("_info") == (spec.type == "info")
    assert spec.help.endswith(".")
    overwritten = {"instance", "job", "__name__"} & set(spec.labels)
    assert not overwritten, "honor_labels would lose the scrape target"


def test_the_names_of_all_dialects_are_listed_in_order() -> None:
    assert tuple(EVERY) == DIALECT_NAMES


def test_dialect_names_are_deduplicated_and_a_typo_gets_a_suggestion() -> None:
    assert check_dialect_names(["native", "smi", "native"], EVERY) == ("native", "smi")
    with pytest.raises(UsageError, match=r"unknown dialect 'natve'.*native"):
        check_dialect_names(["natve"], EVERY)


def test_the_metrics_documentation_is_generated_from_the_specs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--format", "markdown"]) == 0
    written = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert written.read_text(encoding="utf-8") == capsys.readouterr().out, "run `make docs`"


def test_the_keys_of_quantities_are_unique() -> None:
    assert all(key == quantity.key for key, quantity in QUANTITIES.items())
