"""Every exported field, on a card of each architecture, in both schemas, byte for byte.

Readings come from the test NVML library through source, ledger and dialect. `make goldens` writes the golden
files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS, Collectors, Column
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.dcgm.field_tables import FIELDS
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.exposition import text
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import NodeState
from nvml.cards import CARDS
from nvml.machine import Machine

FOLDER = Path(__file__).parents[3] / "golden" / "dcgm"
EVERY_METRIC = Collectors(tuple(Column(field, is_label=False) for field in FIELDS if field.type != "text"))


@pytest.fixture(params=CARDS)
def card(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def state(card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeState:
    """The state after the second tick, because rates and means need two."""
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus = [CARDS[card]()]
    required = DcgmDialect(DcgmSettings(), EVERY_METRIC).required_quantities
    machine.tick(required)
    seen = machine.tick(required)
    return NodeState(seen.unix, seen.source, seen, Ledger(LedgerSettings()).post(seen))


@pytest.mark.parametrize("schema", ["4.8", "4.9"])
def test_the_page_of_each_architecture_equals_the_golden_file(
    card: str, state: NodeState, schema: str
) -> None:
    dialect = DcgmDialect(DcgmSettings(schema=schema), EVERY_METRIC)  # type: ignore[arg-type]
    found = text.encode_text(dialect.families(state)).decode()
    golden = FOLDER / f"{card}-{schema}.prom"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8"), "is the new one right? run `make goldens`"
    assert all(family.samples for family in read_text(found))


MIG_ON = {"DCGM_FI_DEV_MIG_MODE": "1", "DCGM_FI_DEV_MIG_MAX_SLICES": "7"}
MIG_OFF = {"DCGM_FI_DEV_MIG_MODE": "0", "DCGM_FI_DEV_MIG_MAX_SLICES": "0"}
MIG: dict[str, dict[str, str]] = {
    "ampere": MIG_OFF,
    "hopper": MIG_OFF,
    "ampere-mig": {
        **MIG_ON,
        "DCGM_FI_DEV_MIG_GI_INFO": "1:4g.40gb,2:3g.40gb",
        "DCGM_FI_DEV_MIG_CI_INFO": "1/0:4g.40gb,2/0:3g.40gb",
    },
    "hopper-mig": {
        **MIG_ON,
        "DCGM_FI_DEV_MIG_GI_INFO": "1:3g.40gb,2:2g.20gb",
        "DCGM_FI_DEV_MIG_CI_INFO": "1/0:3g.40gb,2/0:1c.2g.20gb,2/1:1c.2g.20gb",
    },
}


def test_mig_labels_exist_only_on_mig_gpus(card: str, state: NodeState) -> None:
    families = {
        family.spec.name: family for family in DcgmDialect(DcgmSettings(), DEFAULT_COLLECTORS).families(state)
    }
    family = families["DCGM_FI_DEV_POWER_USAGE"]
    (values,) = family.samples
    labels = dict(zip(family.spec.labels, values, strict=True))
    assert {key: value for key, value in labels.items() if "_MIG_" in key} == MIG.get(card, {})
