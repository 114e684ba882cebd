"""The chart's monitors, with Prometheus 3.5: the integration tests, run again. It has service discovery of
Kubernetes, which Debian's 2.42 lacks.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.test_monitors import *  # noqa: F403
from integration.test_monitors import MONITORED, monitor, secrets_of
from monitors import OperatedPrometheus, scrape_configs
from release.monitoring import newer  # noqa: F401

pytestmark = pytest.mark.group("prometheus-monitors")


@pytest.mark.parametrize("values", MONITORED.values(), ids=MONITORED)
def test_promtool_accepts_service_discovery(values: Mapping[str, Any], tmp_path: Path) -> None:
    """The configuration as the operator writes it, without a replacement."""
    operated = OperatedPrometheus(secrets=secrets_of("user", "word"))
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump({"scrape_configs": scrape_configs(monitor(values), operated)}))
    done = subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
