"""From the labels under which a target was found to where it is and the labels that its series get.

The rules are Prometheus's: labels that begin with two underscores say how it is scraped, can be relabelled
and are gone afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlencode

from gpuledger.agent.relabel.rule import LABEL_NAME, Relabelling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.model.durations import as_prometheus
from gpuledger.model.settings import duration

ADDRESS: Final = "__address__"
SCHEME: Final = "__scheme__"
PATH: Final = "__metrics_path__"
INTERVAL: Final = "__scrape_interval__"
TIMEOUT: Final = "__scrape_timeout__"
PARAM: Final = "__param_"

_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_HOST: Final = re.compile(r"(?:\[[^\[\]/\s]+\]|[^:\[\]/\s]+)(?P<port>:[0-9]{1,5})?")
_seconds: Final = duration(lowest=0.001)


def target_of(
    group: str,
    found: Mapping[str, str],
    params: Mapping[str, tuple[str, ...]],
    rules: Relabelling,
    settings: ScrapeSettings,
) -> Target | None:
    """The target; None where relabelling drops it.

    Raises ValueError, one line, for what cannot be scraped.
    """
    labels = {name: value for name, value in found.items() if value}
    # As Prometheus has them, since rules may read them.
    labels |= {
        INTERVAL: as_prometheus(settings.interval),
        TIMEOUT: as_prometheus(settings.timeout),
        **{PARAM + name: values[0] for name, values in params.items() if values and values[0]},
    }
    if not rules.apply(labels):
        return None
    scheme = labels.get(SCHEME) or "http"
    if scheme not in _DEFAULT_PORTS:
        raise ValueError(f"the scheme {scheme!r} is neither http nor https")
    address = address_of(labels.get(ADDRESS, ""), scheme)
    interval, timeout = _seconds(labels.get(INTERVAL, "")), _seconds(labels.get(TIMEOUT, ""))
    if timeout > interval:
        raise ValueError(f"the timeout of {timeout:g} s is longer than the interval of {interval:g} s")
    url = f"{scheme}://{address}{_path(labels.get(PATH, ''))}{_query(params, labels)}"
    final = {name: value for name, value in labels.items() if not name.startswith("__")}
    wrong = next((name for name in final if not LABEL_NAME.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"relabelling makes {wrong!r}, which is no label name")
    final.setdefault("instance", address)
    return Target(
        group, url, tuple(sorted(final.items())), replace(settings, interval=interval, timeout=timeout)
    )


def address_of(written: str, scheme: str) -> str:
    """`HOST:PORT`, the port being the scheme's where none is written. Raises ValueError."""
    match = _HOST.fullmatch(written)
    if match is None or (match["port"] and int(match["port"][1:]) > 65535):
        raise ValueError(f"an address such as 10.0.0.1:9400 or gpu-node:9400 is wanted, not {written!r}")
    return written if match["port"] else f"{written}:{_DEFAULT_PORTS[scheme]}"


def _path(written: str) -> str:
    return quote(written if written.startswith("/") else f"/{written}", "/:@!$&'()*+,;=-._~%")


def _query(params: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]) -> str:
    asked = {name: list(values) for name, values in params.items()}
    for label, value in labels.items():
        if label.startswith(PARAM):
            name = label.removeprefix(PARAM)
            asked[name] = [value, *asked.get(name, [])[1:]]
    return f"?{urlencode(sorted(asked.items()), doseq=True)}" if asked else ""
