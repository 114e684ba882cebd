"""Flags from Settings: one dash or two, `--flag value` or `--flag=value`, and help that teaches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any, NoReturn

from gpuledger.config.assemble import CONFIG_VARIABLE, assemble, settings_of
from gpuledger.config.node import EVERYTHING
from gpuledger.model.errors import UsageError, unknown
from gpuledger.model.settings import Setting, declared


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line said: texts by setting key, the configuration file, and other words."""

    flags: Mapping[str, Sequence[str]]
    config: Path | None
    words: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parser(command: str, about: str, epilog: str, groups: Mapping[str, type]) -> argparse.ArgumentParser:
    """A parser whose flags are the groups' Settings, under the groups' titles."""
    made = _Parser(
        prog=f"gpuledger {command}",
        description=about,
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--config", metavar="FILE", help=f"YAML file of settings [{CONFIG_VARIABLE}]")
    for title, group in groups.items():
        section = made.add_argument_group(title)
        for _, item, default in declared(group):
            section.add_argument(
                *item.flags,
                dest=item.key,
                action="append",
                metavar=item.metavar or ("BOOL" if item.boolean else "VALUE"),
                help=_help(item, default),
            )
    return made


def _help(item: Setting, default: object) -> str:
    shown = "" if default in ("", (), None) else f" (default: {_written(default, item.metavar)})"
    repeat = "; repeatable" if item.repeatable else ""
    return f"{item.help}{repeat}{shown} [{item.key}, {item.environment}]".replace("%", "%%")


def _written(default: object, unit: str) -> str:
    """As it can be given."""
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


def parse(
    made: argparse.ArgumentParser,
    groups: Iterable[type],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> Given:
    """The command line as values by key; the file is the flag's, else the environment's.

    Raises UsageError naming an unknown flag and the nearest valid one.
    """
    settings = settings_of(groups)
    known = {flag: item for item in settings.values() for flag in item.flags}
    space, rest = made.parse_known_args(_normal(arguments, known))
    for word in rest:
        if word.startswith("-") and word != "-":
            raise unknown("flag", word.split("=", 1)[0], {*known, "--config", "--help"})
    given = vars(space)
    named = given.pop("config")
    config = environment.get(CONFIG_VARIABLE) or None if named is None else named
    if config == "":
        raise UsageError("--config: a file is wanted, not ''")
    flags = {key: texts for key, texts in given.items() if texts is not None}
    return Given(flags, Path(config) if config else None, tuple(rest))


def _normal(arguments: Sequence[str], known: Mapping[str, Setting]) -> list[str]:
    """Go's spelling made argparse's: `-log-level` gets its second dash, a bare boolean its value."""
    normal: list[str] = []
    for word in arguments:
        if normal and normal[-1].endswith("=true"):
            flag = normal[-1].removesuffix("=true")
            if flag in known and known[flag].boolean and word.lower() in _values(known[flag]):
                normal[-1] = f"{flag}={word}"
                continue
        normal.append(_normal_word(word, known))
    return normal


def _values(item: Setting) -> tuple[str, ...]:
    """The words that may follow a flag which also stands alone; others are no value of it."""
    return ("true", "false", *item.metavar.split("|"))


def _normal_word(word: str, known: Mapping[str, Setting]) -> str:
    name, equals, value = word.partition("=")
    if len(name) > 2 and name[0] == "-" and name[1] != "-" and f"-{name}" in (*known, "--config"):
        name = f"-{name}"
    if not equals and name in known and known[name].boolean:
        return f"{name}=true"
    return f"{name}{equals}{value}"


def no_words(command: str, words: Sequence[str]) -> None:
    """Raise UsageError when a command that takes none was given words that are not flags."""
    if words:
        raise UsageError(f"{command} takes no '{words[0]}'; see gpuledger {command} --help")


Read = Callable[[], Mapping[str, Any]]


def begin(
    command: str,
    about: str,
    examples: str,
    groups: Mapping[str, type],
    arguments: Sequence[str],
    also: Iterable[type] = (),
) -> tuple[Given, Read]:
    """What the command line of a command without words says, and what reads all settings by key: now, and
    anew whenever it is called.

    `groups` by title have flags, `also` ones are only read. Both raise UsageError.
    """
    given = parse(parser(command, about, examples, groups), groups.values(), arguments, environ)
    no_words(command, given.words)
    wanted = (*groups.values(), *also)
    return given, lambda: assemble(wanted, given.flags, environ, given.config, EVERYTHING)
