"""How a command about this node begins: with its flags, the environment and the configuration file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import environ
from typing import Any

from gpuledger.cli.flags import Given, parse, parser
from gpuledger.cli.main import no_words
from gpuledger.config.assemble import assemble
from gpuledger.config.node import EVERYTHING

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
