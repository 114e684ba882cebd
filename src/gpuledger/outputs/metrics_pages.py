"""MetricsPages: the current NodeState and its encoded pages for `/metrics` and `/metrics/<dialect>`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from gpuledger.dialects.catalogue import check_dialect_names
from gpuledger.exposition.merging import check_family_specs
from gpuledger.exposition.negotiation import FORMATS, TEXT, Format, choose_format
from gpuledger.http.routes import Handler, Request, Response
from gpuledger.model.family import Family
from gpuledger.model.node_state import Dialect, NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.source import Clock
from gpuledger.outputs.responses import compress_gzip, page_response, wants_gzip
from gpuledger.outputs.scrape_clients import ScrapeClients

_LOG = logging.getLogger(__name__)

# A variant that was requested in one of this many previous states is rendered when the next state is
# published. Two are enough for a scraper with the tick's interval, whatever its phase. A scraper that comes
# every 15 ticks causes three renders instead of 15.
_EAGER_STATES = 2

# The end of a text page of dialects that no one requested before: their quantities were not read.
VALUES_FOLLOW = b" follow with the next reading: these are the first requests.\n"

# Quantities that only an unlisted dialect requires are read for this long after its last request.
_REQUEST_VALID_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Variant:
    """One way to request a state: dialects, format and coding."""

    names: tuple[str, ...]
    format: Format
    gzip: bool


@dataclass(slots=True)
class _Current:
    """A state with the bodies rendered from it. Replaced as a whole, so that no body mixes two states."""

    state: NodeState
    number: int
    bodies: dict[_Variant, bytes] = field(default_factory=dict)


class MetricsPages:
    """Holds the current NodeState behind one reference and renders each variant of it once.

    The tick thread publishes and the event loop reads; neither waits for the other. Both can render the same
    variant at the same time (a first request during publishing); the bodies are equal, so this only costs
    time.

    `listed` are the dialects on the main page of a listener: their quantities are always required, and so are
    those in `beside`, which other users of the state need. `clients` are those of the pages. `renders` and
    `compressions` count for tests and benchmarks. Raises UsageError for an unknown dialect in `listed`.
    """

    def __init__(
        self,
        dialects: Mapping[str, Dialect],
        clock: Clock,
        state: NodeState,
        listed: Iterable[str] = (),
        beside: frozenset[Quantity] = frozenset(),
    ) -> None:
        self._dialects = dict(dialects)
        self._clock = clock
        self._listed = frozenset(listed)
        self._beside = beside
        check_dialect_names(self._listed, self._dialects)
        self._current = _Current(state, 0)
        # Number of the state in which each variant, and time at which each dialect, was last requested.
        self._last_state_number: dict[_Variant, int] = {}
        self._last_request_at: dict[str, float] = {}
        self._failing: set[str] = set()
        self.clients = ScrapeClients(clock)
        self.renders = 0
        self.compressions = 0

    @property
    def state(self) -> NodeState:
        """The newest state."""
        return self._current.state

    def publish(self, state: NodeState) -> None:
        """Replaces the current state, and renders variants that are requested frequently."""
        current = _Current(state, self._current.number + 1)
        families: dict[str, list[Family]] = {}
        for variant, number in tuple(self._last_state_number.items()):
            if current.number - number > _EAGER_STATES:
                continue
            try:
                self._body(current, variant, families)
            except Exception:  # noqa: BLE001  (the tick continues; a request for this page gets the error)
                _LOG.exception("cannot render the metrics page of the dialects %s", ", ".join(variant.names))
        self._current = current

    def continue_from(self, other: MetricsPages) -> None:
        """Takes over the state and the recent requests of another instance, which can have other dialects.

        Call it before this instance is used, and while nothing publishes to the other one.
        """
        before = other._current
        self._current = _Current(before.state, before.number)
        known = self._dialects.keys()
        numbers, times = tuple(other._last_state_number.items()), tuple(other._last_request_at.items())
        self._last_state_number = {variant: at for variant, at in numbers if known >= set(variant.names)}
        self._last_request_at = {name: at for name, at in times if name in known}
        self.clients = other.clients

    def encode_text(self, names: tuple[str, ...]) -> tuple[NodeState, bytes]:
        """Returns the newest state and its page of these dialects as text 0.0.4, empty if it has no samples.

        For infrequent use: unlike requests, calls do not cause later states to be rendered in advance. If all
        dialects fail, raises the exception of one of them.
        """
        current = self._current
        return current.state, self._body(current, _Variant(names, TEXT, gzip=False), {})

    def required_quantities(self) -> frozenset[Quantity]:
        """Returns the quantities to read next, for listed and recently requested dialects and others."""
        since = self._clock.elapsed() - _REQUEST_VALID_SECONDS
        recent = {name for name, at in tuple(self._last_request_at.items()) if at >= since}
        return self._beside.union(
            *(self._dialects[name].required_quantities for name in self._listed | recent)
        )

    def routes(self, metrics_path: str, names: tuple[str, ...]) -> dict[str, Handler]:
        """Returns routes: `metrics_path` for `names`, and `/metrics/<dialect>` for each dialect.

        Raises UsageError for an unknown dialect, ValueError for two that cannot share a page.
        """
        single = {f"/metrics/{name}": self.handler((name,)) for name in self._dialects}
        return {metrics_path: self.handler(names), **single}

    def handler(self, names: tuple[str, ...]) -> Handler:
        """Returns the handler of a page of these dialects. Raises like `routes`."""
        check_dialect_names(names, self._dialects)
        # One dialect never conflicts with itself, and may not have been created yet.
        if len(names) > 1:
            check_family_specs(chain.from_iterable(self._dialects[name].specs for name in names))
        responses = {
            _Variant(names, offered, gzip): page_response(offered, gzip=gzip)
            for offered in FORMATS
            for gzip in (False, True)
        }

        def serve(request: Request) -> Response:
            offered = choose_format(request.headers.get("accept", ""))
            variant = _Variant(names, offered, wants_gzip(request))
            now = self._clock.elapsed()
            self.clients.add(request)
            for name in names:
                self._last_request_at[name] = now
            current = self._current
            self._last_state_number[variant] = current.number
            return replace(responses[variant], body=self._body(current, variant, {}))

        return serve

    def _body(self, current: _Current, variant: _Variant, families: dict[str, list[Family]]) -> bytes:
        body = current.bodies.get(variant)
        if body is None:
            if variant.gzip:
                body = compress_gzip(self._body(current, replace(variant, gzip=False), families))
                self.compressions += 1
            else:
                body = variant.format.encode(self._families(current.state, variant.names, families))
                body += self._comment(current.state, variant)
                self.renders += 1
            current.bodies[variant] = body
        return body

    def _comment(self, state: NodeState, variant: _Variant) -> bytes:
        """A comment about what is missing. OpenMetrics has no comments."""
        names = [
            name for name in variant.names if not state.has_read(self._dialects[name].required_quantities)
        ]
        if not names or variant.format is not TEXT:
            return b""
        return f"# Values of {', '.join(names)}".encode() + VALUES_FOLLOW

    def _families(
        self, state: NodeState, names: tuple[str, ...], cache: dict[str, list[Family]]
    ) -> Iterable[Family]:
        """Returns the families of the dialects; `cache` keeps them for other variants of the same state.

        If a dialect fails, only its families are missing, unless all fail: then raises the exception of one.
        """
        failure: Exception | None = None
        for name in names:
            if name in cache:
                continue
            try:
                cache[name] = list(self._dialects[name].families(state))
            except Exception as error:  # noqa: BLE001  (see above)
                failure = error
                if name not in self._failing:
                    _LOG.exception("the dialect %s failed; its families are missing until it recovers", name)
                self._failing.add(name)
            else:
                self._failing.discard(name)
        if failure is not None and not any(name in cache for name in names):
            raise failure
        return chain.from_iterable(cache.get(name, ()) for name in names)
