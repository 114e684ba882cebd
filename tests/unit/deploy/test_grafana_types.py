"""The dashboards in the types of Grafana 11.6: nothing is lost when Grafana reads and writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

FILES = sorted((Path(__file__).parents[3] / "deploy" / "grafana" / "dashboards").glob("*.json"))
# An empty id is that of a dashboard that is not imported yet. Grafana 11.6 does not sort pie charts, 13 does.
NOT_KEPT = [r"\.id", r"\.panels\[\d+\]\.options\.sort"]


def differences(written: Any, read: Any, at: str = "") -> Iterator[str]:
    """Paths of values that are not the same in `read`. Values that are only in `read` are defaults."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            if key in read:
                yield from differences(value, read[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}"
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for index, value in enumerate(written):
            yield from differences(value, read[index], f"{at}[{index}]")
    elif written != read:
        yield at


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_grafana_reads_all_of_a_dashboard(file: Path) -> None:
    register_default_plugins()
    written = json.loads(file.read_text("utf-8"))
    read = json.loads(json.dumps(Dashboard.from_json(written), cls=JSONEncoder))
    lost = [path for path in differences(written, read) if not any(re.fullmatch(x, path) for x in NOT_KEPT)]
    assert lost == []


@pytest.mark.parametrize("value", [{"unknown": 1}, {"timezone": "utc", "refesh": "1m"}])
def test_a_key_that_grafana_does_not_know_is_a_difference(value: dict[str, Any]) -> None:
    read = json.loads(json.dumps(Dashboard.from_json(value), cls=JSONEncoder))
    assert list(differences(value, read)) == [f".{next(reversed(value))}"]
