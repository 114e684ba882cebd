"""docs/architecture.md agrees with the code."""

from __future__ import annotations

import re
import runpy
import tomllib

import pytest

from documentation import DOCS, ROOT
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DialectSettings

PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py|[a-z_]+/(?:[a-z_]+/)*)`", PAGE)))


def test_the_picture_is_drawn_from_the_present_code() -> None:
    drawn = runpy.run_path(str(ROOT / "dev" / "draw_architecture.py"))["draw"]()
    assert (DOCS / "pictures" / "architecture.svg").read_text(encoding="utf-8") == drawn, "run `make docs`"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_page_names_exists(name: str) -> None:
    assert (ROOT / "src" / "gpuledger" / name).exists() or (ROOT / name).exists()


def test_the_page_lists_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "gpuledger").glob("*/__init__.py")}
    rows = PAGE[PAGE.index("## The packages") :]
    assert set(re.findall(r"^\| `([a-z]+)` \|", rows, re.MULTILINE)) == packages


DIALECTS = create_dialects(DialectSettings(), "0")
MODULES = {
    "a dialect never imports another": {
        ".".join(type(getattr(dialect, "created", dialect)).__module__.split(".")[:3])
        for dialect in DIALECTS.values()
    },
    "a source never imports another": {
        f"gpuledger.sources.{file.parent.name}"
        for file in (ROOT / "src/gpuledger/sources").glob("*/__init__.py")
    },
}


@pytest.mark.parametrize("name", MODULES)
def test_an_import_contract_has_every_dialect_and_source(name: str) -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (modules,) = (contract["modules"] for contract in linter["contracts"] if contract["name"] == name)
    assert set(modules) == MODULES[name]


@pytest.mark.parametrize("page", ["architecture.md", "concepts/glossary.md"])
def test_the_terms_link_to_the_list_of_dialects(page: str) -> None:
    path = DOCS / page
    (row,) = re.findall(r"^\| dialect \|.*", path.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
    (link,) = re.findall(r"\]\((.*?)\)", row)
    listed = (path.parent / link).read_text(encoding="utf-8")
    assert re.findall(r"^## \w+: `/metrics/(\w+)`", listed, re.MULTILINE) == list(DIALECTS)


def test_the_development_page_names_existing_files() -> None:
    text = (DOCS / "development.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|yaml|tpl|toml|c))`", text))
    missing = {
        name for name in named if not (ROOT / "src/gpuledger" / name).exists() and not (ROOT / name).exists()
    }
    assert len(named) > 30
    assert missing == set()
