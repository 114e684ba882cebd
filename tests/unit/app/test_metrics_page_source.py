"""Pages of which the first answer is not whole."""

from __future__ import annotations

import pytest

from gpuledger.app.metrics_page_source import MetricsPageClient
from gpuledger.http.client_messages import HttpResponse
from gpuledger.outputs.metrics_pages import VALUES_FOLLOW
from gpuledger.terminal.settings import NodeAccessSettings

LATE = b"a 1\n# Values of dcgm" + VALUES_FOLLOW


@pytest.mark.parametrize(
    ("path", "answers", "waits"),
    [
        ("/metrics/dcgm", [LATE, LATE, b"a 1\n", b"whole"], 2),
        ("/metrics/dcgm", [b"a 1\n", b"whole"], 0),
        ("/metrics", [b"whole"], 0),
    ],
)
def test_a_dialect_that_is_read_for_the_first_time_is_waited_for(
    path: str, answers: list[bytes], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(answers)
    monkeypatch.setattr(MetricsPageClient, "_get", lambda *_: HttpResponse(200, {}, left.pop(0)))
    pauses: list[float] = []
    client = MetricsPageClient(f"http://node1:9401{path}", "--new", NodeAccessSettings())
    assert client.read(pauses.append) == b"whole"
    assert (len(pauses), left) == (waits, [])
