"""Writes the section "All settings" of docs/configuration.md from the declarations.

    python dev/write_settings.py

The section is the end of the page. Everything above its heading is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuledger.app.flags import written_default
from gpuledger.config.commands import GROUPS
from gpuledger.model.settings import Setting, declared_settings

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEADING = "## All settings\n"
INTRODUCTION = """
`make docs` generates these tables. The variable of a setting is `GPULEDGER_` and its key in capitals, with `_` for `.`:
`process.mig_label` is `GPULEDGER_PROCESS_MIG_LABEL`. `doctor` takes all flags of `serve`.
"""  # noqa: E501  (the width of the docs)


def section() -> Iterator[str]:
    """The lines of the section, by group of settings."""
    yield HEADING + INTRODUCTION
    for title, group, commands, _ in GROUPS:
        yield f"### {title[0].upper()}{title[1:]}\n"
        yield f"For {', '.join(f'`{command}`' for command in commands)}.\n"
        yield "| flag | key | default | meaning |\n|---|---|---|---|"
        yield from (row(item, default) for _, item, default in declared_settings(group))
        yield ""


def row(item: Setting, default: object) -> str:
    """A row of the table."""
    flags = ", ".join(f"`{flag}`" for flag in item.flags)
    value = item.metavar or ("BOOL" if item.boolean else "VALUE")
    usual = "" if default in ("", (), None) else f"`{written_default(default, item.metavar)}`"
    variables = "".join(f"; variable `{name}`" for name in item.variables)
    meaning = item.help.replace("<", "&lt;").replace("*", "\\*") + variables
    cells = (f"{flags} `{value}`", f"`{item.key}`", usual, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page(before: str) -> str:
    """The whole page with a new section."""
    return before.partition(HEADING)[0] + "\n".join(section())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
