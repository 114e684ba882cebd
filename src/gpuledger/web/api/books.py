"""The books as the API reads them: beside the tick that writes them, never in the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.page import Page
from gpuledger.model.source import Clock
from gpuledger.web.api.answers import Refused

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History


@dataclass(frozen=True, slots=True)
class BooksAsRead:
    """Which books there are: `opens` reads them anew and raises GpuledgerError; None where they are in memory
    alone. `made_up` ones have a time of their own.
    """

    clock: Clock
    opens: Callable[[], History] | None = None
    made_up: bool = False

    @contextmanager
    def reading(self) -> Iterator[History]:
        """The books for as long as they are read. Raises Refused when there are none, or none that can be
        read.
        """
        from sqlite3 import Error

        if self.opens is None:
            raise Refused(
                503,
                "no_books",
                "the books are kept in memory alone; start gpuledger with --state-dir DIR to have them",
            )
        try:
            history = self.opens()
            try:
                yield history
            finally:
                history.close()
        except GpuledgerError as error:
            raise Refused(503, "no_books", str(error)) from None
        except (Error, ValueError, TypeError, OverflowError) as error:
            message = f"the books cannot be read ({type(error).__name__}: {error}); see the log and /health"
            raise Refused(503, "no_books", message, retry=60) from None

    def now(self, page: Page, history: History | None = None) -> float:
        """Unix seconds of now; in made-up books, whose time may go faster or be long ago, when they end."""
        if not self.made_up:
            return self.clock.unix()
        return page.unix if history is None else history.last
