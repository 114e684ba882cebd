"""All queries of all dashboards, with Prometheus 3.5: the integration tests, run again."""

from __future__ import annotations

import pytest

from integration.test_grafana_panels import *  # noqa: F403
from release.monitoring import newer  # noqa: F401

pytestmark = pytest.mark.group("prometheus-panels")
