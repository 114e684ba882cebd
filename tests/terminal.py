"""A real terminal for tests: tmux, which runs a program and captures its screen."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from running import PATIENCE, wait_until


class Terminal:
    """A separate tmux server with one window, which runs a command and then prints its exit code."""

    def __init__(
        self, folder: Path, words: Sequence[str], size: tuple[int, int], env: Mapping[str, str]
    ) -> None:
        self._socket = str(folder / "tmux")
        variables = "".join(f"{name}={shlex.quote(text)} " for name, text in env.items())
        command = f"{variables}{shlex.join(words)}; echo ENDED $?; exec sleep 600"
        width, height = size
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), command)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        return done.stdout

    def press(self, *keys: str) -> None:
        """Press keys, in tmux's notation."""
        for key in keys:
            self._tmux("send-keys", "-t", "0", key)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-t", "0", "-x", str(width), "-y", str(height))

    def screen(self, *, styled: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-t", "0", *(["-e"] if styled else []))

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen().splitlines()]

    def wait(self, text: str) -> str:
        """Wait until the screen shows the text; returns the screen."""
        return self._wait(lambda now: text in now, f"{text!r} on the screen")

    def wait_without(self, text: str) -> str:
        return self._wait(lambda now: text not in now, f"a screen without {text!r}")

    def _wait(self, condition: Callable[[str], bool], what: str) -> str:
        def found() -> str | None:
            now = self.screen()
            return now if condition(now) else None

        try:
            return wait_until(found, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{self.screen()}") from None

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def terminal(
    *words: str, size: tuple[int, int] = (80, 24), env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Runs `gpuledger WORDS` in a terminal."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-tmux-") as folder:
        program = [sys.executable, "-m", "gpuledger", *words]
        made = Terminal(Path(folder), program, size, env or {})
        try:
            yield made
        finally:
            made.close()
