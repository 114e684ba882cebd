"""What a node serves over HTTP: the routes of each listen address, from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from os import environ
from typing import TYPE_CHECKING, Any

from gpuledger.app.node_parts import NodeParts, page_conflict, source_speed
from gpuledger.app.user_services import offers_devices, open_readers
from gpuledger.config.access import OWN, AccessSettings
from gpuledger.config.node import configured_node_name
from gpuledger.dialects.catalogue import check_dialect_names
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import TimeZoneSettings
from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Handler, Routes
from gpuledger.http.settings import HttpSettings
from gpuledger.ledger.device_conditions import CONDITION_QUANTITIES
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.model.node_state import Dialect
from gpuledger.model.quantities import Quantity
from gpuledger.model.settings import build_settings
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.outputs.responses import health_routes
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.recent import STEP_SECONDS
from gpuledger.web.api.shown_quantities import SNAPSHOT_QUANTITIES
from gpuledger.web.routes import (
    API_PREFIX,
    RECEIPT_PREFIX,
    api_handler,
    disabled_api_handler,
    page_handlers,
    plain_page_handler,
    receipt_handler,
)
from gpuledger.web.settings import Links, WebSettings

if TYPE_CHECKING:
    from gpuledger.model.checks import Finding


Listeners = tuple[tuple[Address, Routes], ...]


def default_page_dialects(values: Mapping[str, Any], available: Mapping[str, Dialect]) -> frozenset[str]:
    """The dialects that some metrics page exports by default.

    Raises UsageError for an unknown one.
    """
    return frozenset(name for _, names in _dialects_by_address(values, available) for name in names)


def web_quantities(values: Mapping[str, Any]) -> frozenset[Quantity]:
    """The quantities that page, API and `gpuledger free` need, whichever dialects are exported."""
    shown = SNAPSHOT_QUANTITIES if build_settings(WebSettings, values).page == "full" else frozenset()
    return shown | CONDITION_QUANTITIES if offers_devices(values) else shown


def build_listeners(
    values: Mapping[str, Any], available: Mapping[str, Dialect], pages: MetricsPages, parts: NodeParts
) -> Listeners:
    """The routes of each listen address: metrics from `pages`, the rest from the NodeState of `parts`.

    Raises UsageError for dialects that are unknown or that cannot share a page.
    """
    http = build_settings(HttpSettings, values)
    common = health_routes(lambda: parts.pages.state)
    shown = build_settings(WebSettings, values).page
    links = Links(http.metrics_path, tuple(available))
    below = {API_PREFIX: disabled_api_handler(shown)}
    if shown == "landing":
        common["/"] = plain_page_handler(lambda: parts.pages.state, links, parts.clock)
    elif shown == "full" and parts.api is not None:
        exact, files = page_handlers(lambda: parts.pages.state, links, parts.clock)
        common |= exact
        options = _api_options(values, parts)
        below = {
            **files,
            API_PREFIX: api_handler(parts.api, options),
            RECEIPT_PREFIX: receipt_handler(parts.api, options),
        }
    hosts = build_settings(HostNameSettings, values).names
    guard: Callable[[Mapping[str, Handler]], Mapping[str, Handler]] = dict
    if build_settings(AccessSettings, values).mode == OWN:
        from gpuledger.app.http_access import guard_routes

        guard = partial(guard_routes, readers=open_readers(values))
    try:
        return tuple(
            (
                address,
                Routes(
                    guard({**common, **pages.routes(http.metrics_path, names)}),
                    guard(below),
                    allowed_hosts(hosts, address),
                ),
            )
            for address, names in _dialects_by_address(values, available)
        )
    except ValueError as error:
        raise page_conflict(error) from None


def _dialects_by_address(
    values: Mapping[str, Any], available: Mapping[str, Dialect]
) -> list[tuple[Address, tuple[str, ...]]]:
    default = check_dialect_names(build_settings(DialectSettings, values).dialect, dict(available))
    return [
        (
            listen.address,
            check_dialect_names(listen.dialects, dict(available)) if listen.dialects else default,
        )
        for listen in build_settings(HttpSettings, values).listen_address
    ]


def build_api(parts: NodeParts, values: Mapping[str, Any]) -> Api:
    """The API of the node, with points of its charts that suit the interval of the ticks."""
    # Simulated time may run faster: a point of a chart never covers less than a tick.
    interval = build_settings(NodeSettings, values).interval
    tick_seconds = interval * source_speed(values, parts.source.info)
    return Api(
        parts.pages.state,
        parts.ledger_access,
        parts.clock,
        STEP_SECONDS * max(1, ceil(tick_seconds / STEP_SECONDS)),
    )


def _api_options(values: Mapping[str, Any], parts: NodeParts) -> ApiOptions:
    source = parts.source.info

    def diagnose() -> list[Finding]:
        # Imported lazily: only health queries need the checks.
        from gpuledger.app.diagnosis import diagnose_serving

        return diagnose_serving(values, environ, simulated=source.simulated)

    node = configured_node_name(values, environ)
    return ApiOptions(
        node,
        build_settings(Prices, values),
        diagnose,
        build_settings(HttpLimits, values),
        build_settings(TeamSettings, values).teams,
        build_settings(TimeZoneSettings, values).timezone,
        build_settings(AdviceSettings, values),
        parts.ledger_requests.answer,
    )
