"""A fake command runner that returns recorded outputs of nvidia-smi, and helpers for tests that use it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.nvidia_smi import answer_query, parse_query

FIXTURES = Path(__file__).parents[1] / "fixtures" / "smi"
ALL = frozenset(QUANTITIES.values())


class FirstSeenHost:
    """A Host that knows no process and records the pids that it is called with."""

    def __init__(self) -> None:
        self.identified: list[set[int]] = []

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        self.identified.append(set(pids))
        return {pid: HostFacts(ProcessStart("", None, unix)) for pid in pids}


class Recorded:
    """Returns outputs of a fixture folder, or those of `instead`: text, an outcome, or None for an error."""

    def __init__(self, folder: str, **instead: str | bytes | CommandResult | None) -> None:
        self._options = argparse.Namespace(capture=None, answers=FIXTURES / folder)
        self.instead: dict[str, str | bytes | CommandResult | None] = {
            name.replace("_", "-"): output for name, output in instead.items()
        }
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, words: tuple[str, ...], timeout: float) -> CommandResult:
        arguments = list(words[1:])
        self.calls.append(tuple(arguments))
        query = parse_query(arguments)
        if query in self.instead:
            output = self.instead[query]
            if isinstance(output, CommandResult):
                return output
            if output is None:
                return CommandResult(b"Invalid combination of input arguments.\n", exit_code=2)
            return CommandResult(
                output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output
            )
        text, code = answer_query(query, arguments, self._options)
        return CommandResult(text.encode("utf-8", "surrogateescape"), exit_code=code)

    @property
    def queries(self) -> list[str]:
        return [parse_query(list(arguments)) for arguments in self.calls]


def source(run: Recorded, *devices: str, clock: FakeClock | None = None) -> SmiSource:
    return SmiSource(SmiSettings(), devices, FirstSeenHost(), clock or FakeClock(), run)


def read(folder: str, *devices: str, **instead: str | bytes | CommandResult | None) -> Snapshot:
    """Read one tick from a fixture folder."""
    return source(Recorded(folder, **instead), *devices).read(ALL)


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


def processes(snapshot: Snapshot) -> dict[str, list[tuple[int, str, str, int | None]]]:
    """Return pid, type, name and MiB of each process, by Device UUID."""
    return {
        reading.device.uuid: [
            (
                process.pid,
                process.type_text,
                process.name,
                None if process.memory is None else process.memory // 2**20,
            )
            for process in reading.processes
        ]
        for reading in snapshot.readings
        if reading.processes is not None
    }
