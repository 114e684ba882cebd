"""The loop mode of a slow nvidia-smi: one process prints a report each second and keeps the driver loaded."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic
from typing import IO, Final, Protocol

from gpuledger.host.commands import MAX_OUTPUT_BYTES, CommandResult, kill_group, start_command
from gpuledger.sources.smi.command import Command

log = logging.getLogger("gpuledger.smi")

_ARGUMENTS: Final = ("-q", "-x", "-l", "1")
_END: Final = b"</nvidia_smi_log>"
_GPU: Final = b"<gpu id="
_CHUNK: Final = 64 * 1024
# Seconds that a call of `-q -x` may take before the loop mode is tried.
_SLOW: Final = 1.0


class ReportLoop(Protocol):
    """A running `nvidia-smi -q -x -l 1`."""

    def seconds_per_report(self) -> float | None:
        """Seconds between its last two reports; None before the second one, infinite after its end."""

    def next_report(self, timeout: float) -> bytes | None:
        """The newest report that was not returned yet; waits for one. None after `timeout` or its end."""

    def stop(self) -> None:
        """End the process. Idempotent."""


StartLoop = Callable[[tuple[str, ...]], ReportLoop]


class LoopProcess:
    """A ReportLoop with a thread that reads the output, so that the pipe never holds an old report."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._changed = Condition()
        self._report: bytes | None = None
        self._ended = False
        self._arrived: list[float] = []
        self._process = start_command(words, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        reading = Thread(target=self._read, args=(self._process.stdout,), name="nvidia-smi loop", daemon=True)
        reading.start()

    def seconds_per_report(self) -> float | None:
        """See ReportLoop."""
        with self._changed:
            if self._ended:
                return float("inf")
            return self._arrived[-1] - self._arrived[-2] if len(self._arrived) > 1 else None

    def next_report(self, timeout: float) -> bytes | None:
        """See ReportLoop."""
        with self._changed:
            self._changed.wait_for(lambda: self._report is not None or self._ended, timeout)
            report, self._report = self._report, None
            return report

    def stop(self) -> None:
        """See ReportLoop."""
        if self._process.poll() is None:
            kill_group(self._process)

    def _read(self, stdout: IO[bytes]) -> None:
        rest = bytearray()
        with stdout:
            while (chunk := os.read(stdout.fileno(), _CHUNK)) and len(rest) < MAX_OUTPUT_BYTES:
                rest += chunk
                # Only the end is new: with each chunk, rpartition would copy all of an unfinished report.
                end = rest.rfind(_END, max(0, len(rest) - len(chunk) - len(_END)))
                if end >= 0:
                    # Of several reports that arrive together, the last one counts.
                    self._add(bytes(rest[:end].rpartition(_END)[2] + _END))
                    del rest[: end + len(_END)]
        self.stop()
        self._process.wait()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _add(self, report: bytes) -> None:
        with self._changed:
            self._report = report
            self._arrived = [*self._arrived[-1:], monotonic()]
            self._changed.notify_all()


class ReportReader:
    """Runs `-q -x`, or takes the report of a loop if each call is slow and the loop is faster.

    A call is slow if each loads the driver (no persistence mode). The loop keeps it loaded, also
    for other calls. `seconds` is the duration of a call, 0 if none was slow.
    """

    def __init__(self, command: Command, timeout: float, start_loop: StartLoop | None) -> None:
        self._command = command
        self._timeout = timeout
        self._start_loop = start_loop
        self._loop: ReportLoop | None = None
        self._seconds = 0.0
        # GPUs in the last report. Of one that is missing, only a single call may print the reason.
        self._gpus = 0

    def read(self, run: Callable[[], CommandResult], elapsed: Callable[[], float]) -> CommandResult:
        """Return one report; `run` calls `-q -x` once."""
        if self._loop is not None and (seconds := self._loop.seconds_per_report()) is not None:
            report = self._loop.next_report(self._timeout) if seconds < self._seconds else None
            if report is None:
                self._give_up()
            elif (gpus := report.count(_GPU)) >= self._gpus:
                self._gpus = gpus
                return CommandResult(report)
        began = elapsed()
        result = run()
        seconds = elapsed() - began
        self._gpus = result.stdout.count(_GPU) or self._gpus
        if seconds > _SLOW and result.exit_code == 0 and self._loop is None and self._start_loop is not None:
            self._try_loop(seconds, self._start_loop)
        return result

    def close(self) -> None:
        """End the loop; the next slow call starts another one."""
        if self._loop is not None:
            self._loop.stop()
            self._loop = None

    def _try_loop(self, seconds: float, start: StartLoop) -> None:
        self._seconds = seconds
        log.warning(
            "nvidia-smi takes %.1f s a call: turn on persistence mode (nvidia-smi -pm 1); until then it is "
            "read in its loop mode (-l 1) if that is faster",
            seconds,
        )
        try:
            self._loop = start(self._command.argv(*_ARGUMENTS))
        except OSError as error:
            self._start_loop = None
            log.warning("the loop mode of nvidia-smi cannot be started: %s", error)

    def _give_up(self) -> None:
        self.close()
        # Each call takes as long in the loop.
        self._start_loop = None
