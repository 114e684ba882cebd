"""docs/architecture.md agrees with the code."""

from __future__ import annotations

import re
import runpy

import pytest

from documentation import DOCS, ROOT

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


def test_the_development_page_names_existing_files() -> None:
    text = (DOCS / "development.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|yaml|tpl|toml|c))`", text))
    missing = {
        name for name in named if not (ROOT / "src/gpuledger" / name).exists() and not (ROOT / name).exists()
    }
    assert len(named) > 30
    assert missing == set()
