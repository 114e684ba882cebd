"""Checks and findings of `gpuledger doctor`. Other packages implement the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """The result of a check. The values appear in text and JSON output.

    `WARNING`: works, with a cost or a loss. `UNKNOWN`: could not be determined. `SKIPPED`: not checked,
    because it does not apply or because another finding is the cause.
    """

    WORKS = "works"
    FAILS = "fails"
    WARNING = "warning"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


class Subject(NamedTuple):
    """The object of a check. The first two arguments of a Check and of its Findings: `works(*DISK, why)`.

    `check` and `what` are as in Finding.
    """

    check: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis.

    `check` is a stable name for scripts (`driver.library`); several Findings can share it, one per object.
    `what` names the object for people, `why` says what was found, and `remedy` exactly what to do: empty if
    there is nothing to do.
    """

    check: str
    verdict: Verdict
    what: str
    why: str
    remedy: str = ""


def works(check: str, what: str, why: str) -> Finding:
    """Returns a Finding that the object does what gpuledger needs."""
    return Finding(check, Verdict.WORKS, what, why)


def fails(check: str, what: str, why: str, remedy: str) -> Finding:
    """Returns a Finding that the object fails: gpuledger lacks some data until the remedy is applied."""
    return Finding(check, Verdict.FAILS, what, why, remedy)


def warning(check: str, what: str, why: str, remedy: str) -> Finding:
    """Returns a Finding that the object works, with a cost or a loss that the user may accept."""
    return Finding(check, Verdict.WARNING, what, why, remedy)


def unknown(check: str, what: str, why: str, remedy: str = "") -> Finding:
    """Returns a Finding that the check could not be completed."""
    return Finding(check, Verdict.UNKNOWN, what, why, remedy)


def skipped(check: str, what: str, why: str) -> Finding:
    """Returns a Finding that the check was skipped, and `why`."""
    return Finding(check, Verdict.SKIPPED, what, why)


def split_remedy(error: object) -> tuple[str, str]:
    """Splits the one-line message of a GpuledgerError into the cause and the remedy."""
    why, _, remedy = str(error).partition("; ")
    return why, remedy


def caused_by(cause: str) -> str:
    """Returns the `why` of a skipped check: the Finding of the object named `cause` explains the problem."""
    return f"because of: {cause}"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of `doctor`.

    `run` returns any number of Findings. It may be slow, but after `limit` seconds `doctor` continues without
    it. An exception becomes an `UNKNOWN` Finding. `needs` are `check` names of Findings that this check
    depends on: if one of them fails or is skipped, this check is skipped and names the cause.
    """

    name: str
    what: str
    run: Callable[[], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    limit: float = 10.0
