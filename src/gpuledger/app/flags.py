"""Command-line flags built from Settings: one dash or two, `--flag value` or `--flag=value`, and help."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import environ
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from gpuledger.config.help_pages import HelpPage
from gpuledger.config.load import CONFIG_VARIABLE, load_values, settings_of
from gpuledger.config.node import help_page
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.settings import Setting, declared_settings


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line: texts by setting key, the configuration file, and positional arguments."""

    flags: Mapping[str, Sequence[str]]
    config: Path | None
    arguments: tuple[str, ...]


# What each page of the help lists.
_PAGES = {
    HelpPage.COMMON: ("show the common flags and exit", (HelpPage.COMMON,)),
    HelpPage.RARE: ("show all flags with their keys and exit", (HelpPage.COMMON, HelpPage.RARE)),
    HelpPage.COMPATIBILITY: ("show the flags of other exporters and exit", (HelpPage.COMPATIBILITY,)),
}
HELP_FLAGS = frozenset({"-h", *(page.value for page in HelpPage)})
# Columns of flags, left of the help.
_FLAG_COLUMNS = 30


# An argument for which `parse_flags` raises the parser in a ParserFound.
DESCRIBE: Final = "\0describe"


class ParserFound(Exception):
    """The parser of a command, for its man page and its completion."""

    def __init__(self, parser: CommandParser) -> None:
        super().__init__()
        self.parser = parser


class CommandParser(argparse.ArgumentParser):
    """A parser with several pages of help. `declared` are the flags of the settings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.declared: list[tuple[argparse.Action, HelpPage, Setting, object]] = []

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")

    def print_page(self, page: HelpPage) -> None:
        """Print the help with only the flags of the page. --help shows keys if there is no longer page."""
        short = page is HelpPage.COMMON and any(own is HelpPage.RARE for _, own, _, _ in self.declared)
        self.set_help(_PAGES[page][1], short=short)
        self.formatter_class = partial(_HelpFormatter, max_help_position=_FLAG_COLUMNS)
        # argparse's print_help ignores errors, such as those of a full disk.
        sys.stdout.write(self.format_help())

    def set_help(self, shown: Collection[HelpPage], *, short: bool) -> None:
        """Set the help of the flags on these pages, without keys if it is short; hide the others."""
        for action, own, item, default in self.declared:
            names: tuple[str, ...] = (item.environment,) if short else (item.key, item.environment)
            if own is HelpPage.COMPATIBILITY:
                names = item.variables
            action.help = _help(item, default, names) if own in shown else argparse.SUPPRESS


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The help of Python 3.13 and newer in all versions: `-f, --file PATH`, not `-f PATH, --file PATH`."""

    if sys.version_info < (3, 13):

        def _format_action_invocation(self, action: argparse.Action) -> str:
            if not action.option_strings or action.nargs == 0:
                return super()._format_action_invocation(action)
            value = self._format_args(action, self._get_default_metavar_for_optional(action))
            return f"{', '.join(action.option_strings)} {value}"


class _ShowPage(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, CommandParser)
        parser.print_page(self.const)
        parser.exit()


def build_parser(command: str, about: str, epilog: str, groups: Mapping[str, type]) -> CommandParser:
    """A parser with the flags of the groups' Settings, under the groups' titles.

    --help shows the common ones; if there are others, --help-all and --help-compat show them.
    """
    made = CommandParser(
        prog=f"gpuledger {command}",
        usage=f"gpuledger {command} [FLAGS]",
        description=about,
        epilog=epilog,
        allow_abbrev=False,
        add_help=False,
        # argparse formats each flag that is added. Only for the width of the terminal it imports shutil.
        formatter_class=partial(_HelpFormatter, width=_FLAG_COLUMNS),
    )
    page_of = {group: help_page(group) for group in groups.values()}
    pages = {*page_of.values(), HelpPage.COMMON}
    for page in (page for page in HelpPage if page in pages):
        names = ("-h", page.value) if page is HelpPage.COMMON else (page.value,)
        text = _PAGES[page][0] if len(pages) > 1 else "show this help and exit"
        made.add_argument(*names, action=_ShowPage, nargs=0, const=page, dest=argparse.SUPPRESS, help=text)
    made.add_argument("--config", metavar="FILE", help=f"YAML file of settings [{CONFIG_VARIABLE}]")
    for title, group in groups.items():
        section = made.add_argument_group(title)
        for _, item, default in declared_settings(group):
            action = section.add_argument(
                *item.flags,
                dest=item.key,
                action="append",
                metavar=item.metavar or ("BOOL" if item.boolean else "VALUE"),
            )
            made.declared.append((action, page_of[group], item, default))
    return made


def _help(item: Setting, default: object, names: Sequence[str]) -> str:
    shown = "" if default in ("", (), None) else f" (default: {written_default(default, item.metavar)})"
    repeat = "; repeatable" if item.repeatable else ""
    if "--format" in item.flags and "json" in setting_words(item):
        repeat = "; --json means --format json"
    other = f" [{', '.join(names)}]" if names else ""
    return f"{item.help}{repeat}{shown}{other}".replace("%", "%%")


def written_default(default: object, unit: str) -> str:
    """The default in the form that the flag accepts."""
    if unit == "DURATION" and isinstance(default, float):
        days = default / 86_400
        return f"{days:g}d" if days >= 1 and days == int(days) else f"{default:.10g}s"
    if unit == "SIZE" and isinstance(default, int):
        return f"{default >> 30}GiB" if not default % (1 << 30) else str(default)
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ",".join(str(part) for part in default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def parse_flags(
    made: CommandParser,
    groups: Iterable[type],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> CommandLine:
    """Parse the command line. The configuration file comes from --config, else from the environment.

    Raises UsageError that names an unknown flag and the closest valid one.
    """
    if DESCRIBE in arguments:
        raise ParserFound(made)
    settings = settings_of(groups)
    known = {flag: item for item in settings.values() for flag in item.flags}
    space, rest = made.parse_known_args(_normal(arguments, known))
    for position, word in enumerate(rest):
        if word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            _raise_for_foreign_flag(name, value or "".join(rest[position + 1 : position + 2]), known)
            # Imported lazily: only error messages need it.
            from gpuledger.config.compatibility import NO_EFFECT, REFUSED

            useful = {flag for flag, item in known.items() if not item.help.startswith((NO_EFFECT, REFUSED))}
            raise unknown_name_error("flag", name, {*useful, "--config"}, otherwise=f"see {made.prog} --help")
    given = vars(space)
    named = given.pop("config")
    config = environment.get(CONFIG_VARIABLE) or None if named is None else named
    if config == "":
        raise UsageError("--config: expected a file, not ''")
    flags = {key: texts for key, texts in given.items() if texts is not None}
    return CommandLine(flags, Path(config) if config else None, tuple(rest))


# Flags of other programs, and how they are written here, where {} is the value: the first that a command has.
FOREIGN_FLAGS = {
    "--port": ("--listen-address :{}", "--url http://localhost:{}"),
    "--web.port": ("--listen-address :{}",),
    "--host": ("--listen-address {}:9400", "--url http://{}:9400"),
    "--bind": ("--listen-address {}",),
    "--bind-address": ("--listen-address {}:9400",),
    "--verbose": ("--log-level debug",),
    "--debug": ("--log-level debug",),
    "--quiet": ("--log-level error",),
    "--gpus": ("--devices {}", "--gpu {}"),
    "--refresh": ("--interval {}",),
    "--data-dir": ("--state-dir {}",),
    "--group-by": ("--by {}",),
    "--from": ("--since {}",),
    "--to": ("--until {}",),
    "--month": ("--in {}",),
    "--currency": ("--price.currency {}",),
    "--output": ("--format {}",),
}


def _raise_for_foreign_flag(name: str, value: str, known: Mapping[str, Setting]) -> None:
    """Raise UsageError for a flag of other programs, if this command has it under another name."""
    for written in FOREIGN_FLAGS.get(name, ()):
        if written.partition(" ")[0] in known:
            missing = name.lstrip("-").rpartition(".")[2].upper()
            shown = missing if not value or value.startswith("-") else value
            raise UsageError(f"unknown flag '{name}'; did you mean '{written.format(shown)}'?")


def _normal(arguments: Sequence[str], known: Mapping[str, Setting]) -> list[str]:
    """Rewrite flags in Go's style for argparse: `-log-level` gets a second dash, a bare boolean its value."""
    normal: list[str] = []
    for word in arguments:
        if normal and normal[-1].endswith("=true"):
            flag = normal[-1].removesuffix("=true")
            # Other words are not the value of a boolean flag.
            values = ("true", "false", *known[flag].metavar.split("|")) if flag in known else ()
            if word.lower() in values and known[flag].boolean:
                normal[-1] = f"{flag}={word}"
                continue
        if normal and re.match(r"-\d", word) and normal[-1] in known:
            # A negative value, such as -1d: argparse takes only numbers for one.
            normal[-1] = f"{normal[-1]}={word}"
            continue
        name, equals, value = word.partition("=")
        positive = f"--{name[5:]}" if name[2:5] == "no-" else ""
        if not equals and name not in known and positive in known and known[positive].boolean:
            # As kingpin has it, the parser of nvidia_gpu_exporter.
            name, equals, value = positive, "=", "false"
        if re.fullmatch("-[^-].+", name) and f"-{name}" in (*known, "--config", *HELP_FLAGS, *FOREIGN_FLAGS):
            name = f"-{name}"
        if not equals and name not in known and name[:2] == "--" and name[2:] in _format_words(known):
            # `--json` as `--format json`.
            name, equals, value = "--format", "=", name[2:]
        if not equals and name in known and known[name].boolean:
            equals, value = "=", "true"
        normal.append(f"{name}{equals}{value}")
    return normal


def setting_words(item: Setting) -> tuple[str, ...]:
    """The words that a setting accepts, if it is a choice."""
    return getattr(item.parse, "words", ())


def _format_words(known: Mapping[str, Setting]) -> tuple[str, ...]:
    return setting_words(known["--format"]) if "--format" in known else ()


def _refuse_empty(what: str, words: Sequence[str]) -> None:
    """Raise UsageError for an empty argument: as a path, it would be the working directory."""
    if not all(word.strip() for word in words):
        raise UsageError(f"{what} is empty; is a shell variable not set?")


def reject_words(command: str, words: Sequence[str]) -> None:
    """Raise UsageError when a command without positional arguments got some."""
    if words:
        raise UsageError(f"{command} takes no argument '{words[0]}'; see gpuledger {command} --help")


S = TypeVar("S")


class Action(NamedTuple, Generic[S]):
    """A subcommand that takes from `fewest` to `most` arguments; `arguments` says which, for messages.

    `run` takes the arguments, the settings of the command, and all values. `keys` are those of its flags.
    """

    run: Callable[[Sequence[str], S, Mapping[str, Any]], int]
    arguments: str
    fewest: int
    most: int
    keys: tuple[str, ...] = ()


def choose_action(
    command: str, words: Sequence[str], actions: Mapping[str, Action[S]]
) -> tuple[str, Action[S], Sequence[str]]:
    """The subcommand that the words name: its name, itself and its arguments. Raises UsageError."""
    see = f"see gpuledger {command} --help"
    if not words:
        raise UsageError(f"{command} needs one of {', '.join(actions)}; {see}")
    name, *rest = words
    if name not in actions:
        raise unknown_name_error(f"{command} command", name, actions)
    action = actions[name]
    _refuse_empty(f"an argument of {command} {name}", rest)
    if not action.fewest <= len(rest) <= action.most:
        raise UsageError(f"{command} {name} needs {action.arguments}; {see}")
    return name, action, rest


def _all_groups() -> Iterator[type]:
    """The groups of all commands, imported with the first: `load_values` seldom needs one."""
    from gpuledger.config.commands import ALL_GROUPS

    yield from ALL_GROUPS


ReadSettings = Callable[[], Mapping[str, Any]]


def parse_command(
    command: str,
    about: str,
    examples: str,
    groups: Mapping[str, type],
    arguments: Sequence[str],
    also: Iterable[type] = (),
    argument: str = "",
    *,
    is_optional: bool = False,
    rare: Callable[[], Iterable[type]] = tuple,
) -> tuple[CommandLine, ReadSettings]:
    """Parse the command line of a command.

    Returns it, and a function that reads all settings by key; each call reads the file and the environment
    again. `groups` by title have flags, the groups in `also` have none. `argument` is the name of the one
    positional argument, maybe with its meaning after a colon; empty for none. It may be omitted if it
    `is_optional`. `rare` returns further groups, needed only for keys of the file that `groups` lack. Both
    functions raise UsageError.
    """
    made = build_parser(command, about, examples, groups)
    if argument:
        made.usage = f"gpuledger {command} {argument.partition(':')[0]} [FLAGS]"
    given = parse_flags(made, groups.values(), arguments, environ)
    if not argument:
        reject_words(command, given.arguments)
    elif len(given.arguments) != 1 and not (is_optional and not given.arguments):
        raise UsageError(f"{command} needs one {argument}; see gpuledger {command} --help")
    else:
        _refuse_empty(argument.partition(":")[0], given.arguments)
    wanted = (*groups.values(), *also)
    return given, lambda: load_values(wanted, given.flags, environ, given.config, _all_groups(), rare())
