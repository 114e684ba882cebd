"""Alerts with Prometheus 3.5 and a newer VictoriaMetrics: the integration tests, and a day of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.test_alert_scenarios import *  # noqa: F403
from integration.test_alert_scenarios import check_busy_fleet
from release.monitoring import newer  # noqa: F401

pytestmark = pytest.mark.group("prometheus-alerts")


def test_a_day_of_a_healthy_busy_fleet_fires_nothing(tmp_path: Path) -> None:
    check_busy_fleet(tmp_path, 24)
