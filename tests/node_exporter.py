"""A real node_exporter over a textfile directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families as read_text

from running import PATIENCE, Program, free_port

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(text: str) -> Samples:
    """Values by name and labels; raises ValueError for text that is not 0.0.4."""
    found: Samples = {}
    for sample in chain.from_iterable(family.samples for family in read_text(text)):
        found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


class NodeExporter(Program):
    """The textfile collector alone."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE)
        super().__init__(
            [
                "prometheus-node-exporter",
                f"--web.listen-address=127.0.0.1:{port}",
                "--collector.disable-defaults",
                "--collector.textfile",
                f"--collector.textfile.directory={directory}",
            ]
        )
        self.wait_answer(f"http://127.0.0.1:{port}/")

    def scrape(self) -> Samples:
        answer = self._client.get("/metrics")
        assert answer.status_code == 200, answer.text
        return samples(answer.text)

    def stop(self) -> int:
        self._client.close()
        return super().stop()


@contextmanager
def node_exporter(directory: Path) -> Iterator[NodeExporter]:
    program = NodeExporter(directory)
    try:
        yield program
    finally:
        program.stop()
