"""docs/architecture.md agrees with the code."""

from __future__ import annotations

import re
import runpy

import pytest

from documentation import DOCS, ROOT
from gpuledger.dialects.catalogue import DIALECT_NAMES

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


@pytest.mark.parametrize("page", ["architecture.md", "concepts/glossary.md"])
def test_the_terms_link_to_the_list_of_dialects(page: str) -> None:
    path = DOCS / page
    (row,) = re.findall(r"^\| dialect \|.*", path.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
    (link,) = re.findall(r"\]\((.*?)\)", row)
    listed = (path.parent / link).read_text(encoding="utf-8")
    assert re.findall(r"^## \w+: `/metrics/(\w+)`", listed, re.MULTILINE) == list(DIALECT_NAMES)


def test_the_development_page_names_existing_files() -> None:
    text = (DOCS / "development.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|yaml|tpl|toml|c))`", text))
    missing = {
        name for name in named if not (ROOT / "src/gpuledger" / name).exists() and not (ROOT / name).exists()
    }
    assert len(named) > 30
    assert missing == set()
