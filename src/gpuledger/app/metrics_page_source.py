"""Reads a metrics page from a URL or a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import sleep
from urllib.parse import urlsplit

from gpuledger.app.node_api import NodeApiClient
from gpuledger.host.files import read_at_most
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.migrate.page import LONGEST_PAGE, Page, parse_page
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.outputs.metrics_pages import VALUES_FOLLOW

# Seconds that a dialect may need to be read for the first time: longer intervals are rare.
_MOST_WAITS = 60
# Not protobuf, in which Prometheus sends native histograms.
_ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


class MetricsPageClient(NodeApiClient):
    """Reads one page of an exporter. `flag` is the flag with the URL, for messages."""

    advice = "is the exporter running there, on that port?"

    def __init__(self, url: str, flag: str, access: ClientAccessSettings) -> None:
        """Raises UsageError as NodeApiClient does."""
        self.flag = flag
        super().__init__(url, access, timeout=60.0)
        parts = urlsplit(url)
        self.page = ("" if parts.path.strip("/") else "/metrics") + (f"?{parts.query}" if parts.query else "")

    def read(self, pause: Callable[[float], None] = sleep) -> bytes:
        """The content of the page. Raises GpuledgerError with one line that names the remedy."""
        for _ in range(_MOST_WAITS if "/metrics/" in self.url else 0):
            # The first request of a dialect that gpuledger does not list starts its reading.
            if not self._get(self.page, {"Accept": "text/plain"}).body.endswith(VALUES_FOLLOW):
                break
            pause(1.0)
        answer = self._get(self.page, {"Accept": _ACCEPT})
        if answer.status == 404:
            raise GpuledgerError(
                f"{self.url} has no such page (404): give the whole URL, such as ...:9400/metrics"
            )
        if answer.status != 200:
            raise GpuledgerError(self._describe_status(answer))
        return answer.body


def read_metrics_page(place: str, flag: str, access: ClientAccessSettings) -> Page:
    """The page at a URL, or in a file. Raises GpuledgerError."""
    if place.startswith(("http://", "https://")):
        client = MetricsPageClient(place, flag, access)
        try:
            return parse_page(client.read(), client.url)
        finally:
            client.close()
    try:
        content = read_at_most(Path(place), LONGEST_PAGE)
    except OSError as error:
        raise UsageError(
            f"{flag}: cannot read {place}: {error.strerror}; a URL begins with http://"
        ) from None
    return parse_page(content, place)
