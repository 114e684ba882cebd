"""The user's command made words: split as a shell would, run by none."""

from __future__ import annotations

import shlex

from gpuledger.model.settings import text

_SSH = frozenset({"ssh", "autossh", "slogin"})


def command_line(value: object) -> str:
    """A command that can be split into words; raises ValueError with what is wanted."""
    written = text(value).strip()
    try:
        words = shlex.split(written)
    except ValueError:
        raise ValueError("a command with balanced quotes is wanted") from None
    if not words or not words[0]:
        raise ValueError("a command is wanted, such as nvidia-smi or 'ssh user@host nvidia-smi'")
    return written


class Command:
    """An nvidia-smi command to which arguments are added as words.

    ssh joins its words with spaces and gives them to the remote user's shell, so what is added is quoted
    for that shell, and only then; a local program gets its words as they are.
    """

    def __init__(self, written: str) -> None:
        self.written = written
        self._words = tuple(shlex.split(written))

    @property
    def program(self) -> str:
        """The program that is started here."""
        return self._words[0]

    @property
    def remote(self) -> bool:
        """True when the answers, and so the pids in them, are another machine's."""
        return self.program.rsplit("/", 1)[-1] in _SSH

    def words(self, *arguments: str) -> tuple[str, ...]:
        """The whole command with `arguments` at its end."""
        return self._words + (tuple(map(shlex.quote, arguments)) if self.remote else arguments)
