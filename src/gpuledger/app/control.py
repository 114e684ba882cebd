"""What a running node is told while it runs: to pause, to resume, that its settings have changed."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
from contextlib import suppress
from threading import Thread
from typing import Any, Final, Protocol

from gpuledger.app.control_socket import Doorway
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.node.health import LONGEST
from gpuledger.node.loop import Node

log = logging.getLogger("gpuledger.control")

# A caller that says nothing must not keep the others waiting.
_PATIENCE: Final = 2.0
_LONGEST_REQUEST: Final = 4096
_LONGEST_REASON: Final = 200


class Watchman(Protocol):
    """Who knows of settings that can change. May take its time."""

    @property
    def period(self) -> float | None:
        """Seconds between two looks, None to look never."""

    def look(self) -> None:
        """Take settings that have changed."""

    def reload(self) -> None:
        """Read settings, changed or not."""


class Control:
    """One thread that answers callers one by one, and looks now and then for changed files.

    `doorway` is where callers come in, None to hear nobody.
    """

    def __init__(self, node: Node, doorway: Doorway | None = None) -> None:
        self._node = node
        self._doorway = doorway
        self._watchman: Watchman | None = None
        self._stopping = self._nudged = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A daemon: a driver that hangs in a pause's last call must not keep the process from ending.
        self._thread = Thread(target=self._run, name="control", daemon=True)

    def watch(self, watchman: Watchman) -> None:
        """Have this one look and be told; before the start."""
        self._watchman = watchman

    def start(self) -> None:
        """Begin to listen and to look, where there is anything to."""
        if self._doorway is not None or self._watchman is not None:
            self._thread.start()

    def stop(self, patience: float = 2.0) -> None:
        """End the thread and close the doorway; what hangs is left behind after `patience` seconds."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(patience)
        if self._doorway is not None:
            self._doorway.close()

    def nudge(self) -> None:
        """Have settings read anew soon. From any thread, and from a signal handler."""
        self._nudged = True
        self._wake()

    def _wake(self) -> None:
        # Full of wakes that are not answered yet: one more would say nothing new.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def _run(self) -> None:
        waited_for: list[Any] = [self._reader]
        if self._doorway is not None:
            waited_for.append(self._doorway.socket)
        while not self._stopping:
            period = None if self._watchman is None else self._watchman.period
            ready, _, _ = select.select(waited_for, [], [], period)
            try:
                self._turn(ready)
            except Exception:
                log.exception("a request could not be answered")

    def _turn(self, ready: list[Any]) -> None:
        if self._reader in ready:
            with suppress(BlockingIOError):
                os.read(self._reader, _LONGEST_REQUEST)
        if self._stopping:
            return
        if self._nudged:
            self._nudged = False
            if self._watchman is not None:
                self._watchman.reload()
        if self._doorway is not None and self._doorway.socket in ready:
            self._hear(self._doorway.socket)
        if not ready and self._watchman is not None:
            self._watchman.look()

    def _hear(self, door: socket.socket) -> None:
        caller, _ = door.accept()
        with caller, suppress(OSError):
            caller.settimeout(_PATIENCE)
            answer = self._answer(_line(caller))
            caller.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: bytes) -> dict[str, str]:
        try:
            asked = json.loads(request)
            if asked["do"] == "pause":
                return {"ok": self._pause(float(asked["for"]), str(asked.get("reason", "")))}
            if asked["do"] == "resume":
                return {"ok": self._resume()}
            return {"error": f"this gpuledger does not know '{asked['do']}': is it of another version?"}
        except GpuledgerError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError):
            return {"error": "this gpuledger did not understand: is it of another version?"}

    def _pause(self, seconds: float, reason: str) -> str:
        if not 0 < seconds <= LONGEST:
            raise GpuledgerError(f"a pause lasts {LONGEST:g} s at most")
        return str(self._node.pause(seconds, clean_name(" ".join(reason.split()), _LONGEST_REASON)))

    def _resume(self) -> str:
        page = self._node.resume()
        if page is None:
            return "there was no pause"
        if page.snapshot is None:
            raise GpuledgerError(f"resumed, but nothing can be read: {page.health.status}")
        return "resumed" if page.health.healthy else f"resumed; {page.health.status}"


def _line(caller: socket.socket) -> bytes:
    """What the caller says, up to the end of a line; empty when it is too long."""
    said = b""
    while b"\n" not in said and len(said) < _LONGEST_REQUEST:
        more = caller.recv(_LONGEST_REQUEST)
        if not more:
            break
        said += more
    return said if b"\n" in said else b""
