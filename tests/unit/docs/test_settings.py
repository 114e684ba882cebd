"""The tables of settings in docs/configuration.md are those of the program."""

from __future__ import annotations

import runpy

from documentation import DOCS, ROOT


def test_the_tables_of_settings_are_up_to_date() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(ROOT / "dev" / "write_settings.py"))["page"]
    assert page(text) == text, "run `make docs`"
