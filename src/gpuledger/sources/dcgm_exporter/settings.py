"""What a user sets about a dcgm-exporter that runs beside gpuledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from gpuledger.model.settings import Reload, duration, setting, text


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
        raise ValueError("a URL such as http://localhost:9400/metrics is wanted")
    return url


@dataclass(frozen=True, slots=True)
class DcgmExporterSourceSettings:
    """From whom profiling metrics come that NVML does not tell."""

    reload: ClassVar[Reload] = Reload(
        restart=("profiling.dcgm_exporter_url", "profiling.dcgm_exporter_period")
    )

    url: str = setting(
        "profiling.dcgm_exporter_url",
        _url,
        "",
        "metrics page of a dcgm-exporter on this machine, for the profiling metrics of GPUs before Hopper, "
        "which NVML does not tell",
        flags=("--dcgm-exporter-url",),
        metavar="URL",
    )
    period: float = setting(
        "profiling.dcgm_exporter_period",
        duration(lowest=1.0, highest=3600.0),
        10.0,
        "how often it is asked; what is older than three periods is not told any more",
        flags=("--dcgm-exporter-period",),
        metavar="DURATION",
    )
