"""A background program with its output in a file. It is stopped by PID, and killed if the tests exit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from running import PATIENCE, wait_until


class Daemon:
    """`namespaces` is the PID of a process in the mount and PID namespaces in which the program runs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        *,
        ready: Callable[[], object] = lambda: True,
        namespaces: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [str(word) for word in command]
        self._ready = ready
        self._namespaces = namespaces
        self._stop_signal = stop_signal
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> Daemon:
        enter: list[str] = []
        if self._namespaces is not None:
            enter = ["nsenter", f"--target={self._namespaces}", "--mount", "--pid", "--"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *enter, *self._command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._env,
                start_new_session=True,
            )
        # nsenter is the parent of the program.
        self.pid = wait_until(self._child, self.name) if enter else self._process.pid
        wait_until(self._is_ready, f"{self.name} to be ready, see {self.log}")
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.kill(self.pid, self._stop_signal)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _child(self) -> int | None:
        self._check()
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        return children[0].pid if children else None

    def _is_ready(self) -> object:
        self._check()
        return self._ready()

    def _check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self.log.read_text("utf-8", "replace").splitlines()[-30:]
            raise AssertionError("\n".join([f"{self.name} ended with {self._process.returncode}:", *tail]))
