"""What `doctor` looks at and what it finds: words only, the looking is done by the packages that know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How a thing stands. Values are what is printed and what JSON says.

    `WARNING` works but costs or loses something; `UNKNOWN` could not be found out; `SKIPPED` was not looked
    at, because it does not apply or because another finding is the cause.
    """

    WORKS = "works"
    FAILS = "fails"
    WARNING = "warning"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis.

    `check` is stable and fit for scripts (`driver.library`); several Findings may share it, one per thing.
    `what` names the thing for people, `why` says what was seen, `remedy` exactly what to do: empty where
    there is nothing to do.
    """

    check: str
    verdict: Verdict
    what: str
    why: str
    remedy: str = ""


def works(check: str, what: str, why: str) -> Finding:
    """It does what gpuledger needs."""
    return Finding(check, Verdict.WORKS, what, why)


def fails(check: str, what: str, why: str, remedy: str) -> Finding:
    """It does not, and something of what gpuledger tells is lost until the remedy is done."""
    return Finding(check, Verdict.FAILS, what, why, remedy)


def warning(check: str, what: str, why: str, remedy: str) -> Finding:
    """It works with a cost or a loss that the user may accept."""
    return Finding(check, Verdict.WARNING, what, why, remedy)


def unknown(check: str, what: str, why: str, remedy: str = "") -> Finding:
    """It could not be found out."""
    return Finding(check, Verdict.UNKNOWN, what, why, remedy)


def skipped(check: str, what: str, why: str) -> Finding:
    """It was not looked at, and `why`."""
    return Finding(check, Verdict.SKIPPED, what, why)


def parted(error: object) -> tuple[str, str]:
    """What was seen, and the remedy: the one line of a GpuledgerError has both."""
    why, _, remedy = str(error).partition("; ")
    return why, remedy


def because(cause: str) -> str:
    """Why a look was skipped: the Finding of the thing named `cause` says what is wrong."""
    return f"because of: {cause}"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at, handed down as a value by the package that knows how.

    `look` answers with any number of Findings. It need not be quick, but who runs it gives it `limit`
    seconds and goes on without it; what it raises becomes an `UNKNOWN` Finding. `needs` are the `check` names
    of Findings without which the look is pointless: when one of them fails or is skipped, this is skipped and
    names the cause.
    """

    name: str
    what: str
    look: Callable[[], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    limit: float = 10.0
