"""The file beside the ledger in which the reservations of GPUs outlive a restart of `gpuledger serve`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpuledger.host.files import read_at_most, replace_file
from gpuledger.ledger.reservations import CommandProcess, Reservation

log = logging.getLogger("gpuledger.free")

_VERSION: Final = 1
_LONGEST: Final = 1 << 20
_MOST_SECONDS: Final = 12 * 3600.0


def reservation_path(ledger: Path) -> Path:
    """The file of the reservations of a ledger: `gpuledger.reservations.json` beside `gpuledger.db`."""
    return ledger.with_suffix(".reservations.json")


class ReservationFile:
    """Reads and writes the reservations of one machine.

    Ends are kept on the clock since boot, so that a step of the wall clock changes nothing. After a reboot
    all commands have ended, and the rest of the other reservations is computed from the wall clock: never
    longer than what was requested.
    """

    def __init__(self, file: Path, boot_id: str) -> None:
        self._file = file
        self._boot_id = boot_id
        self._has_failed = False

    def load(self, elapsed: float, unix: float) -> list[Reservation]:
        """The stored reservations that are not over; none, with a warning, if the file is damaged."""
        try:
            text = read_at_most(self._file, _LONGEST)
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("reservations are lost: cannot read %s: %s", self._file, error.strerror)
            return []
        try:
            stored = json.loads(text)
            is_same_boot = bool(self._boot_id) and stored["boot_id"] == self._boot_id
            found = [_parse(row, elapsed, unix, is_same_boot=is_same_boot) for row in stored["reservations"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            log.warning("reservations are lost: %s is damaged; it is replaced", self._file)
            return []
        return [one for one in found if one is not None]

    def save(self, reservations: Iterable[Reservation], elapsed: float, unix: float) -> None:
        """Replace the file. A failure is logged once: the reservations are then lost at a restart."""
        rows = [_row(one, elapsed, unix) for one in reservations]
        text = json.dumps({"version": _VERSION, "boot_id": self._boot_id, "reservations": rows})
        try:
            replace_file(self._file, text.encode())
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning(
                    "reservations will be lost at a restart: cannot write %s: %s", self._file, error.strerror
                )
            self._has_failed = True


def _row(one: Reservation, elapsed: float, unix: float) -> dict[str, Any]:
    return {
        "device": one.device,
        "uid": one.uid,
        "seconds": one.seconds,
        "ends": one.ends,
        # For the time after a reboot.
        "ends_unix": None if one.ends is None else unix + one.ends - elapsed,
        "command": None if one.command is None else list(one.command),
    }


def _parse(row: dict[str, Any], elapsed: float, unix: float, *, is_same_boot: bool) -> Reservation | None:
    """The reservation of a row; None if it is over. Raises ValueError, KeyError and TypeError."""
    command, seconds = row["command"], float(row["seconds"])
    if command is not None:
        pid, ticks = command
        if not is_same_boot:
            return None
        process = CommandProcess(int(pid), int(ticks))
        return Reservation(str(row["device"]), int(row["uid"]), command=process)
    left = float(row["ends"]) - elapsed if is_same_boot else float(row["ends_unix"]) - unix
    # `serve` accepts no longer ones: a damaged file must not reserve a GPU for ever.
    left = min(left, seconds, _MOST_SECONDS)
    if not left > 0:
        return None
    return Reservation(str(row["device"]), int(row["uid"]), seconds, elapsed + left)
