"""The page of the smi dialect: with NVML every known column is served, or the page says why it is not."""

from __future__ import annotations

import runpy
from pathlib import Path

from gpuledger.dialects.smi.fields import HEADERS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "smi.md").read_text(encoding="utf-8")
WRITER = runpy.run_path(str(ROOT / "dev" / "write_smi_columns.py"))
# Known headers that neither NVML backend serves, by the start of their names.
ONLY_NVIDIA_SMI = ("kmd_version", "module.", "power_smoothing.", "clocks_throttle_reasons.")


def test_the_table_of_columns_is_generated() -> None:
    assert WRITER["page"](PAGE) == PAGE, "run `make docs`"


def test_a_known_column_is_served_with_nvml_or_has_a_reason() -> None:
    served, absent = WRITER["served"](), WRITER["ABSENT"]
    assert served.keys().isdisjoint(absent)
    unexplained = {header for header in HEADERS if not header.startswith(ONLY_NVIDIA_SMI)} - absent.keys()
    assert unexplained <= served.keys()
    assert {header for header in served if not header.startswith(ONLY_NVIDIA_SMI)} <= set(HEADERS)
