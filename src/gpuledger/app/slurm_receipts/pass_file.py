"""The file in which `gpuledger slurm update` keeps its state between two passes, and its lock."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from gpuledger.app.slurm_receipts.updates import PassState
from gpuledger.host.files import read_at_most, replace_file
from gpuledger.model.errors import GpuledgerError

_VERSION = 1
# Bytes: some hundred thousand jobs.
_LONGEST = 16 << 20
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class PassRuns(GpuledgerError):
    """Another pass has the lock."""


class PassFile:
    """The state of the last pass in a file. Methods raise GpuledgerError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other passes out. Raises PassRuns if there is one."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure("write", error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise PassRuns(f"another `gpuledger slurm update` has the lock {lock}") from None
        finally:
            os.close(handle)

    def read(self) -> PassState:
        """The state; that before the first pass if the file is missing or damaged."""
        try:
            found = json.loads(read_at_most(self.path, _LONGEST))
            if found["version"] != _VERSION:
                return PassState()
            return PassState(_time(found["at"]), _times(found["waiting"]), _times(found["refreshed"]))
        except (*_DAMAGED, FileNotFoundError):
            # Only jobs that wait for longer than a day are lost.
            return PassState()
        except OSError as error:
            raise self._failure("read", error) from None

    def write(self, state: PassState) -> None:
        """Replace the state: readers see the old one or the new one."""
        lists = {"waiting": dict(state.waiting), "refreshed": dict(state.refreshed)}
        content = {"version": _VERSION, "at": state.at, **lists}
        try:
            replace_file(self.path, json.dumps(content, sort_keys=True).encode())
        except OSError as error:
            raise self._failure("write", error) from None

    def _failure(self, what: str, error: OSError) -> GpuledgerError:
        return GpuledgerError(
            f"cannot {what} {error.filename or self.path}: {error.strerror}; choose another file with "
            "--state, or run this as a user that can write there"
        )


def _times(found: Any) -> dict[str, float]:
    return {str(name): _time(at) for name, at in found.items()}


def _time(found: Any) -> float:
    at = float(found)
    if not isfinite(at):
        raise ValueError("no time")
    return at
