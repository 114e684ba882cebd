"""A Runner that answers from recorded outputs within the process, and what tests ask of a source on it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path

from builders import FakeClock
from gpuledger.model.process import HostFacts, Start
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.smi.command import NotStarted, Outcome, Ran
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.nvidia_smi import answer_to, question_of

FIXTURES = Path(__file__).parents[1] / "fixtures" / "smi"
ALL = frozenset(QUANTITIES.values())


class FirstSight:
    """A Host that knows nothing but when it was asked."""

    def __init__(self) -> None:
        self.asked: list[set[int]] = []

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        self.asked.append(set(pids))
        return {pid: HostFacts(Start("", None, unix)) for pid in pids}


class Recorded:
    """Answers from a folder of fixtures, then as `instead` says: text, an Outcome, or None for a refusal."""

    def __init__(self, folder: str, **instead: str | bytes | Outcome | None) -> None:
        self._options = argparse.Namespace(capture=None, answers=FIXTURES / folder)
        self.instead: dict[str, str | bytes | Outcome | None] = {
            name.replace("_", "-"): answer for name, answer in instead.items()
        }
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, words: tuple[str, ...], timeout: float) -> Outcome:
        arguments = list(words[1:])
        self.calls.append(tuple(arguments))
        question = question_of(arguments)
        if question in self.instead:
            answer = self.instead[question]
            if isinstance(answer, Ran | NotStarted):
                return answer
            if answer is None:
                return Ran(b"Invalid combination of input arguments.\n", code=2)
            return Ran(answer.encode("utf-8", "surrogateescape") if isinstance(answer, str) else answer)
        told, code = answer_to(question, arguments, self._options)
        return Ran(told.encode("utf-8", "surrogateescape"), code=code)

    @property
    def questions(self) -> list[str]:
        return [question_of(list(arguments)) for arguments in self.calls]


def source(run: Recorded, *devices: str, clock: FakeClock | None = None) -> SmiSource:
    return SmiSource(SmiSettings(), devices, FirstSight(), clock or FakeClock(), run)


def read(folder: str, *devices: str, **instead: str | bytes | Outcome | None) -> Snapshot:
    """One tick over a folder of fixtures."""
    return source(Recorded(folder, **instead), *devices).read(ALL)


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


def processes(seen: Snapshot) -> dict[str, list[tuple[int, str, str, int | None]]]:
    """By Device UUID: pid, type, name, MiB."""
    return {
        reading.device.uuid: [
            (one.pid, one.type_text, one.name, None if one.memory is None else one.memory // 2**20)
            for one in reading.processes
        ]
        for reading in seen.readings
        if reading.processes is not None
    }
