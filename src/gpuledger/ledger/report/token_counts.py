"""Tokens that inference servers counted: the amounts of one row of a report."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CountError:
    """The maximum error of a count: it is at most `over` too high, and at most `under` too low.

    Errors of consecutive ranges add up like the counts; the smaller side of one cannot offset another.
    """

    over: int = 0
    under: int = 0

    @property
    def bound(self) -> int:
        """The maximum error in either direction."""
        return max(self.over, self.under)

    def __add__(self, other: CountError) -> CountError:
        """The error of the sum of two counts."""
        return CountError(self.over + other.over, self.under + other.under)

    def __sub__(self, other: CountError) -> CountError:
        """The error of the difference of two counts."""
        return CountError(self.over + other.under, self.under + other.over)


_NO_ERROR = CountError()


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens and finished requests of the pods of a row; None if no server counted them.

    `pods` are the namespaces and names of its pods with GPU time or energy. `cached` tokens are part of
    `input`. `idle_millijoules` is the energy of pods that served no token in the row's range, of
    `pod_millijoules`.
    """

    pods: frozenset[tuple[str, str]] = frozenset()
    input: int | None = None
    output: int | None = None
    cached: int | None = None
    requests: int | None = None
    input_error: CountError = _NO_ERROR
    output_error: CountError = _NO_ERROR
    cached_error: CountError = _NO_ERROR
    requests_error: CountError = _NO_ERROR
    idle_millijoules: int = 0
    pod_millijoules: int = 0
    # Those of pods without GPU time and energy: counted, but no energy or cost is divided by them.
    lost_input: int = 0
    lost_output: int = 0
    lost_requests: int = 0

    @property
    def all(self) -> int | None:
        """Input and output tokens; None if neither is known."""
        known = [amount for amount in (self.input, self.output) if amount is not None]
        return sum(known) if known else None

    @property
    def joined_output(self) -> int | None:
        """Output tokens of pods with GPU time or energy."""
        return None if self.output is None else self.output - self.lost_output

    @property
    def joined_all(self) -> int | None:
        """Input and output tokens of pods with GPU time or energy."""
        return None if self.all is None else self.all - self.lost_input - self.lost_output

    @property
    def joined_requests(self) -> int | None:
        """Finished requests of pods with GPU time or energy."""
        return None if self.requests is None else self.requests - self.lost_requests

    @property
    def all_error(self) -> CountError:
        """The maximum error of `all`."""
        return self.input_error + self.output_error

    def __add__(self, other: TokenCounts) -> TokenCounts:
        """The sum of two rows; what is not known of one of them is left out."""
        sums: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if isinstance(mine, frozenset):
                sums[item.name] = mine | theirs
            elif isinstance(mine, CountError):
                sums[item.name] = mine + theirs
            else:
                known = [amount for amount in (mine, theirs) if amount is not None]
                sums[item.name] = sum(known) if known else None
        return TokenCounts(**sums)

    def __radd__(self, other: int) -> TokenCounts:
        """Supports sum(), which begins with 0."""
        return self
