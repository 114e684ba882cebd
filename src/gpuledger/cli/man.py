"""`gpuledger man`: write the man pages, made from the parsers of all commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger.app.flags import parse_command
from gpuledger.app.man_pages import command_page, overview_page
from gpuledger.cli.main import COMMANDS, command_parser
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings, option, text

_ABOUT = "Write the man pages: gpuledger(1), and one of each command, such as gpuledger-serve(1).\n"
_EXAMPLES = """\
examples:
  gpuledger man --output ~/.local/share/man/man1       then: man gpuledger-report
  gpuledger man --output /tmp/man && man -l /tmp/man/gpuledger.1
"""


@dataclass(frozen=True, slots=True)
class ManSettings:
    """Where the pages are written."""

    output: str = option("man.output", text, "", "directory of the pages; it is created", metavar="DIR")


def run(arguments: Sequence[str]) -> int:
    """Write the pages."""
    _, read = parse_command("man", _ABOUT, _EXAMPLES, {"output": ManSettings}, arguments)
    output = build_settings(ManSettings, read()).output
    if not output:
        raise UsageError("man needs --output DIR, the directory of the pages; see gpuledger man --help")
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in _pages():
            (folder / f"{name}.1").write_text(page, encoding="utf-8")
    except OSError as error:
        raise GpuledgerError(
            f"cannot write to {folder}: {error.strerror}; name another directory with --output"
        ) from None
    return 0


def _pages() -> Iterator[tuple[str, str]]:
    yield "gpuledger", overview_page(COMMANDS)
    for name, about in COMMANDS.items():
        try:
            parser = command_parser(name)
        except UsageError as error:
            sys.stderr.write(f"no page of {name}: {error}\n")
        else:
            yield f"gpuledger-{name}", command_page(name, about, parser, tuple(COMMANDS))
