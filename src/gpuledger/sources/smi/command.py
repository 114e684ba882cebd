"""The user's nvidia-smi command: split into words as a shell would, run without a shell."""

from __future__ import annotations

import shlex

from gpuledger.model.settings import text

_SSH = frozenset({"ssh", "autossh", "slogin"})


def command_line(value: object) -> str:
    """Parse the setting: a command that can be split into words. Raises ValueError otherwise."""
    command = text(value).strip()
    try:
        words = shlex.split(command)
    except ValueError:
        raise ValueError("expected a command with balanced quotes") from None
    if not words or not words[0]:
        raise ValueError("expected a command such as nvidia-smi or 'ssh user@host nvidia-smi'")
    return command


class Command:
    """An nvidia-smi command line, to which each call appends its arguments.

    ssh joins its words with spaces and passes them to the remote user's shell, so arguments are quoted for
    that shell; a local program gets them unquoted.
    """

    def __init__(self, line: str) -> None:
        self.text = line
        self._words = tuple(shlex.split(line))

    @property
    def program(self) -> str:
        """The program that this machine starts."""
        return self._words[0]

    @property
    def is_remote(self) -> bool:
        """True for ssh: the output, and the pids in it, belong to another machine."""
        return self.program.rsplit("/", 1)[-1] in _SSH

    @property
    def is_direct(self) -> bool:
        """True if this machine starts nvidia-smi itself, and no program that starts it."""
        return self.program.rsplit("/", 1)[-1].startswith("nvidia-smi")

    def argv(self, *arguments: str) -> tuple[str, ...]:
        """The complete argument vector: the command followed by `arguments`."""
        return self._words + (tuple(map(shlex.quote, arguments)) if self.is_remote else arguments)
