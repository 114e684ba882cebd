"""The exceptions of gpuledger by exit code, and the text of their one-line messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import takewhile

from gpuledger.model.text import escape_to_one_line


class GpuledgerError(Exception):
    """Base class: an error with a one-line message that names the object and the remedy.

    Messages may quote untrusted text, so line breaks and other control characters are escaped.
    """

    exit_code = 1

    def __str__(self) -> str:
        return escape_to_one_line(super().__str__())


class UsageError(GpuledgerError):
    """The user requested something that does not exist or is not supported. Exit code 2."""

    exit_code = 2

    @property
    def errors(self) -> tuple[UsageError, ...]:
        """The independent errors that it consists of."""
        return (self,)


class UsageErrors(UsageError):
    """Several errors of one input, which are independent of each other. All texts begin with `prefix`."""

    def __init__(self, errors: Sequence[UsageError], prefix: str = "") -> None:
        super().__init__(prefix + "; ".join(str(error).removeprefix(prefix) for error in errors))
        self._errors = tuple(errors)

    @property
    def errors(self) -> tuple[UsageError, ...]:
        """The errors, none of which consists of others."""
        return self._errors


@contextmanager
def collect_errors(errors: list[UsageError]) -> Iterator[None]:
    """Append a UsageError to `errors` instead of raising it, so that the next part is read, too."""
    try:
        yield
    except UsageError as error:
        errors += error.errors


def raise_errors(errors: Sequence[UsageError], prefix: str = "") -> None:
    """Raise the collected errors, if any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UsageErrors(errors, prefix)


class SourceUnavailable(GpuledgerError):
    """The source cannot be read now (no driver, library or command missing). A later retry can succeed.

    `reason` is a short, stable code for labels (`LIBRARY_NOT_FOUND`); the message holds the remedy.
    """

    def __init__(self, text: str, reason: str = "unavailable") -> None:
        super().__init__(text)
        self.reason = reason


def missing_package_error(what: str, package: str, extra: str, otherwise: str = "") -> UsageError:
    """Builds `WHAT needs the package ..., not installed here: COMMAND`, which installs an extra of gpuledger.

    The command installs it for the Python that runs this program. Executables and the image have no pip.
    """
    pip = f"{sys.executable} -m pip" if find_spec("pip") else "pipx"
    end = f"; {otherwise}" if otherwise else ""
    command = f"{pip} install 'gpuledger[{extra}]'"
    return UsageError(f"{what} needs the package {package}, not installed here: {command}{end}")


def unknown_name_error(
    kind: str, given: str, valid: Iterable[str], place: str = "", otherwise: str = ""
) -> UsageError:
    """Builds `unknown KIND 'given'; did you mean 'nearest'?`.

    If no valid name is similar, `otherwise` or a list of the valid names follows. `place` is a prefix shown
    before each name. It is excluded from the comparison: it would make all names similar.
    """
    return UsageError(f"unknown {kind} '{place}{given}'; {suggest_name(given, valid, place, otherwise)}")


def suggest_name(given: str, valid: Iterable[str], place: str = "", otherwise: str = "") -> str:
    """Suggests the most similar valid name. Without one returns `otherwise`, or a list of the valid names.

    A name that `given` has in a section (`pue`, `price.pue`) is more similar than any other.
    """
    names = sorted(valid)
    for name in names:
        if given.lower().endswith(f".{name.lower().lstrip('-')}"):
            return f"did you mean '{place}{name}'?"
    nearest = max(names, key=lambda name: _similarity(given, name), default="")
    if _similarity(given, nearest) >= _SIMILAR:
        return f"did you mean '{place}{nearest}'?"
    return otherwise or f"valid: {', '.join(names)}"


# A typing mistake in a word of four letters has 0.75.
_SIMILAR = 0.75


def _similarity(given: str, name: str) -> float:
    """1 for equal names, 0 for unrelated ones. A section that both have (`--web.limits.`) does not count."""
    # Imported lazily: only error messages need it.
    from difflib import SequenceMatcher

    one, other = given.lower().lstrip("-"), name.lower().lstrip("-")
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    section = one.rfind(".", 0, shared) + 1
    ratio = SequenceMatcher(None, one[section:], other[section:]).ratio()
    if shared == len(one) >= section + 3:
        # An abbreviation. The shortest name comes first.
        ratio = max(ratio, _SIMILAR + 0.1 / len(name))
    # Mistakes are rare in the first letter.
    return ratio + 0.1 if shared > section else ratio
