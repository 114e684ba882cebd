"""Settings for reading profiling metrics from a dcgm-exporter on the same machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from gpuledger.model.settings import ReloadPolicy, duration, option, text


def _url(value: object) -> str:
    url = text(value).strip()
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme != "http" or not parts.hostname or port == 0 or parts.username or parts.password:
        raise ValueError("expected a URL such as http://localhost:9400/metrics")
    return url


@dataclass(frozen=True)
class DcgmExporterSourceSettings:
    """URL and poll period of the dcgm-exporter; an empty URL disables it."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(
        restart=("profiling.dcgm_exporter_url", "profiling.dcgm_exporter_period")
    )

    url: str = option(
        "profiling.dcgm_exporter_url",
        _url,
        "",
        "metrics page of a dcgm-exporter on this machine, for profiling metrics of GPUs before Hopper, which "
        "NVML does not report",
        metavar="URL",
    )
    period: float = option(
        "profiling.dcgm_exporter_period",
        duration(lowest=1.0, highest=3600.0),
        10.0,
        "how often to poll dcgm-exporter; values older than three periods are omitted",
    )
