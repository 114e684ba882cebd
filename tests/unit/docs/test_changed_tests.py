"""dev/changed_tests.py: the test files that `make quick` runs for a change."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from documentation import ROOT

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "dev" / "changed_tests.py"))
FILES = {
    "src/gpuledger/ledger/spans.py": "",
    "src/gpuledger/ledger/cells.py": "from gpuledger.ledger import (\n    rows,  # noqa\n    spans,\n)\n",
    "src/gpuledger/ledger/rows.py": "",
    "src/gpuledger/ledger/report.py": "def f():\n    import gpuledger.ledger.cells\n",
    "src/gpuledger/model/core.py": "",
    "tests/helper.py": "from gpuledger.ledger.report import f\n",
    "tests/second_helper.py": "from helper import f\n",
    "tests/unit/ledger/test_spans_law.py": "",
    "tests/unit/ledger/test_report.py": "",
    "tests/unit/model/test_core.py": "from gpuledger.model.core import x\n",
    "tests/unit/web/test_page.py": "from second_helper import f\n",
    "tests/integration/test_books.py": "from gpuledger.ledger.spans import x\n",
}
CHANGES = {
    "src/gpuledger/ledger/spans.py": ["ledger/test_spans_law.py"],
    "src/gpuledger/ledger/report.py": ["ledger/test_report.py", "web/test_page.py"],
    "tests/helper.py": ["web/test_page.py"],
    "tests/unit/web/test_page.py": ["web/test_page.py"],
    # No test imports it: the tests of the modules that do.
    "src/gpuledger/ledger/cells.py": ["ledger/test_report.py", "web/test_page.py"],
    "src/gpuledger/ledger/rows.py": ["ledger/test_report.py", "web/test_page.py"],
    "src/gpuledger/deleted.py": [],
    "docs/agent/page.md": ["docs"],
    "deploy/helm/gpuledger/values.yaml": ["deploy"],
    "src/gpuledger/ledger/settings.py": ["deploy/test_chart_program.py", "docs/test_settings.py"],
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with FILES, as the current directory."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*changed: str) -> list[str]:
    return [name.removeprefix("tests/unit/") for name in SCRIPT["affected_tests"](set(changed))]


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("changed", CHANGES)
def test_a_change_needs_the_nearest_tests(changed: str) -> None:
    assert found(changed) == CHANGES[changed]


def test_a_module_that_most_tests_import_needs_those_in_its_folder(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(SCRIPT["MOST_TESTS"]):
        (tree / f"tests/unit/web/test_{number}.py").write_text("from gpuledger.model.core import x\n")

    assert found("src/gpuledger/model/core.py") == ["model/test_core.py"]
    assert "26 test files import it" in capsys.readouterr().err
