"""The current Page, and the bytes that it has on `/metrics` and `/metrics/<dialect>`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from gpuledger.exposition.merging import check_specs
from gpuledger.exposition.negotiation import FORMATS, TEXT, Format, choose_format
from gpuledger.http.routes import Handler, Request, Response
from gpuledger.model.errors import unknown
from gpuledger.model.family import Family
from gpuledger.model.node_state import Dialect, NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.source import Clock
from gpuledger.outputs.responses import description, gzipped, wants_gzip

_LOG = logging.getLogger(__name__)

# A variant asked for on one of so many Pages before is made ahead of the next ask. Two cover a scraper as
# quick as the tick whatever their phase; one that comes every 15 ticks costs three renders and not 15.
_EAGER_PAGES = 2

# What only an unlisted dialect wants is read for so long after its last request.
_WANTED_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way in which a Page can be asked for."""

    names: tuple[str, ...]
    format: Format
    gzip: bool


@dataclass(slots=True)
class _Current:
    """A Page with the bytes made of it so far. Replaced as a whole, so that no body mixes two Pages."""

    page: NodeState
    number: int
    bodies: dict[_Variant, bytes] = field(default_factory=dict)


class MetricsPages:
    """Holds the current Page behind one reference, and makes its bytes once per variant.

    The tick thread publishes, the event loop reads; neither waits for the other. Both may make the same
    variant at the same time (first asked in the moment of publishing): the bytes are equal, so one of
    them is merely wasted.

    `listed` are the dialects that some listener serves without being asked by name: their quantities are
    always wanted, and so are those `beside` that others make of the Page. `renders` and `compressions`
    count what was made. Raises UsageError for a listed dialect that is not there.
    """

    def __init__(
        self,
        dialects: Mapping[str, Dialect],
        clock: Clock,
        page: NodeState,
        listed: Iterable[str] = (),
        beside: frozenset[Quantity] = frozenset(),
    ) -> None:
        self._dialects = dict(dialects)
        self._clock = clock
        self._listed = frozenset(listed)
        self._beside = beside
        self._check_known(self._listed)
        self._current = _Current(page, 0)
        # The number of the Page on which each variant, and the time at which each dialect, was asked last.
        self._asked_on: dict[_Variant, int] = {}
        self._asked_at: dict[str, float] = {}
        self._failing: set[str] = set()
        self.renders = 0
        self.compressions = 0

    @property
    def page(self) -> NodeState:
        """The newest Page."""
        return self._current.page

    def publish(self, page: NodeState) -> None:
        """Put a new Page in place of the last one, with the bytes of what is asked for often."""
        current = _Current(page, self._current.number + 1)
        told: dict[str, list[Family]] = {}
        for variant, number in tuple(self._asked_on.items()):
            if current.number - number > _EAGER_PAGES:
                continue
            try:
                self._body(current, variant, told)
            except Exception:  # noqa: BLE001  (the tick goes on; who asks for this page gets the error)
                _LOG.exception("the page of %s failed", ", ".join(variant.names))
        self._current = current

    def follow(self, other: MetricsPages) -> None:
        """Go on where another store, of other dialects, stands: its Page, and what it was asked for lately.

        Called before anything else is asked of this one, while nobody publishes in the other.
        """
        before = other._current
        self._current = _Current(before.page, before.number)
        known = self._dialects.keys()
        asked_on, asked_at = tuple(other._asked_on.items()), tuple(other._asked_at.items())
        self._asked_on = {variant: on for variant, on in asked_on if known >= set(variant.names)}
        self._asked_at = {name: at for name, at in asked_at if name in known}

    def text(self, names: tuple[str, ...]) -> tuple[NodeState, bytes]:
        """The newest Page and what these dialects tell of it, as text 0.0.4; empty when that is nothing.

        For outputs that ask seldom: no bytes are made ahead for them. Raises what the dialects raise when
        none of them can tell.
        """
        current = self._current
        return current.page, self._body(current, _Variant(names, TEXT, gzip=False), {})

    def wants(self) -> frozenset[Quantity]:
        """What the next tick has to read: for the listed dialects, those asked for lately, and others."""
        since = self._clock.elapsed() - _WANTED_SECONDS
        asked = {name for name, at in tuple(self._asked_at.items()) if at >= since}
        return self._beside.union(*(self._dialects[name].wants for name in self._listed | asked))

    def routes(self, metrics_path: str, names: tuple[str, ...]) -> dict[str, Handler]:
        """`metrics_path` for the dialects of one listener, and `/metrics/<dialect>` for every one there is.

        Raises UsageError for a dialect that is not there, ValueError for two that cannot share a page.
        """
        single = {f"/metrics/{name}": self.handler((name,)) for name in self._dialects}
        return {metrics_path: self.handler(names), **single}

    def handler(self, names: tuple[str, ...]) -> Handler:
        """The page of these dialects together. Raises as `routes` does."""
        self._check_known(names)
        check_specs(chain.from_iterable(self._dialects[name].specs for name in names))
        answers = {
            _Variant(names, offered, gzip): description(offered, gzip=gzip)
            for offered in FORMATS
            for gzip in (False, True)
        }

        def serve(request: Request) -> Response:
            offered = choose_format(request.headers.get("accept", ""))
            variant = _Variant(names, offered, wants_gzip(request))
            now = self._clock.elapsed()
            for name in names:
                self._asked_at[name] = now
            current = self._current
            self._asked_on[variant] = current.number
            return replace(answers[variant], body=self._body(current, variant, {}))

        return serve

    def _check_known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._dialects:
                raise unknown("dialect", name, self._dialects)

    def _body(self, current: _Current, variant: _Variant, told: dict[str, list[Family]]) -> bytes:
        body = current.bodies.get(variant)
        if body is None:
            if variant.gzip:
                bare = self._body(current, replace(variant, gzip=False), told)
                body = gzipped(bare)
                self.compressions += 1
            else:
                body = variant.format.encode(self._families(current.page, variant.names, told))
                self.renders += 1
            current.bodies[variant] = body
        return body

    def _families(
        self, page: NodeState, names: tuple[str, ...], told: dict[str, list[Family]]
    ) -> Iterable[Family]:
        """What the dialects tell; `told` remembers it for other variants of the same Page.

        A dialect that fails loses its own families and not the page, unless there is no other.
        """
        failure: Exception | None = None
        for name in names:
            if name in told:
                continue
            try:
                told[name] = list(self._dialects[name].families(page))
            except Exception as error:  # noqa: BLE001  (see above)
                failure = error
                if name not in self._failing:
                    _LOG.exception("the dialect %s failed; its families are missing until it recovers", name)
                self._failing.add(name)
            else:
                self._failing.discard(name)
        if failure is not None and not any(name in told for name in names):
            raise failure
        return chain.from_iterable(told.get(name, ()) for name in names)
