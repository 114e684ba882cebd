"""What the flags and arguments of each command accept, from its parser: for completion and man pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.app.flags import CommandParser, setting_words
from gpuledger.config.help_pages import HelpPage
from gpuledger.dialects.catalogue import DIALECT_NAMES
from gpuledger.ledger.report.report_keys import EVERY, GROUPINGS, NODE, SERVED_MODEL, TEAM
from gpuledger.model.settings import Setting
from gpuledger.sources.settings import MACHINES, MADE_UP
from gpuledger.sources.simulator.scenario_parser import BUILTINS
from gpuledger.terminal.sort_order import SORT_KEYS

# Words of settings that no `choice` declares, by key. Those of a list are separated by commas.
_LISTS: Mapping[str, tuple[str, ...]] = {
    "dialect": DIALECT_NAMES,
    "report.by": (*GROUPINGS, TEAM, NODE, SERVED_MODEL),
}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "source": (*MACHINES, *MADE_UP, *(f"simulator:{name}" for name in BUILTINS)),
    "report.every": EVERY,
    "top.sort": tuple(SORT_KEYS),
    "log.format": ("logfmt", "json"),
}
_FILES = frozenset({"FILE", "FILE|DIR", "URL|FILE", "PATH"})
_LITERAL = re.compile(r"[a-z0-9.]+(\|[a-z0-9.]+)+")


@dataclass(frozen=True, slots=True)
class FlagShape:
    """A flag with all its names. `metavar` is empty if it takes no value.

    `words` are the values that it accepts, if they are known; `is_list` if several are joined by commas.
    """

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    words: tuple[str, ...] = ()
    is_list: bool = False

    @property
    def takes_file(self) -> bool:
        """Whether the value is the name of a file."""
        return self.metavar in _FILES

    @property
    def takes_directory(self) -> bool:
        """Whether the value is the name of a directory."""
        return self.metavar == "DIR"


@dataclass(frozen=True, slots=True)
class CommandShape:
    """A command: its flags, without those of other exporters, and its arguments.

    The first argument is one of `words`, if there are any. Other arguments are files if `takes_file`.
    """

    name: str
    about: str
    flags: tuple[FlagShape, ...] = ()
    words: tuple[str, ...] = ()
    takes_file: bool = False


def shape_command(name: str, about: str, parser: CommandParser) -> CommandShape:
    """The shape of a command with this parser."""
    declared = {id(action): (page, item) for action, page, item, _ in parser.declared}
    flags = []
    for action in parser._actions:
        page, item = declared.get(id(action), (HelpPage.COMMON, None))
        names = tuple(action.option_strings)
        if item is not None and page is not HelpPage.COMPATIBILITY:
            flags.append(_shape_flag(names, item))
        elif item is None:
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            flags.append(FlagShape(names, action.help or "", metavar))
    first, *others = (parser.usage or "").removeprefix(f"gpuledger {name}").split()
    words = tuple(first.split("|")) if first[0].islower() else ()
    return CommandShape(name, about, tuple(flags), words, first == "FILE" or "[ARGUMENTS]" in others)


def _shape_flag(names: tuple[str, ...], item: Setting) -> FlagShape:
    if item.boolean:
        return FlagShape(names, item.help)
    metavar = item.metavar or "VALUE"
    words = _LISTS.get(item.key) or _WORDS.get(item.key) or setting_words(item)
    if not words and _LITERAL.fullmatch(metavar):
        words = tuple(metavar.split("|"))
    return FlagShape(names, item.help, metavar, words, item.key in _LISTS)
