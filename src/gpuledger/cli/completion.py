"""`gpuledger completion`: print the completion script of a shell, made from the parsers of all commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from gpuledger.app.command_shapes import CommandShape, shape_command
from gpuledger.app.completion_scripts import SCRIPTS
from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.cli.main import COMMANDS, command_parser
from gpuledger.model.errors import UsageError, unknown_name_error

_ABOUT = "Print the completion script of a shell: commands, flags, their values, and names of files.\n"
_EXAMPLES = """\
examples:
  source <(gpuledger completion bash)                  in ~/.bashrc
  source <(gpuledger completion zsh)                   in ~/.zshrc, after compinit
  gpuledger completion fish > ~/.config/fish/completions/gpuledger.fish
"""


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    parser = build_parser("completion", _ABOUT, _EXAMPLES, {})
    parser.usage = f"gpuledger completion {'|'.join(SCRIPTS)} [FLAGS]"
    given = parse_flags(parser, (), arguments, {}).arguments
    if len(given) != 1:
        raise UsageError(f"completion needs one of {', '.join(SCRIPTS)}; see gpuledger completion --help")
    if given[0] not in SCRIPTS:
        raise unknown_name_error("shell", given[0], SCRIPTS)
    sys.stdout.write(SCRIPTS[given[0]](tuple(_shapes())))
    return 0


def _shapes() -> Iterator[CommandShape]:
    for name, about in COMMANDS.items():
        try:
            yield shape_command(name, about, command_parser(name))
        except UsageError:
            # A package of the command is not installed.
            yield CommandShape(name, about)
