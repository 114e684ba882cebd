"""Remote write, with Prometheus 3.5 and the newer VictoriaMetrics: the integration tests, run again."""

from __future__ import annotations

import pytest

from integration.test_remote_write_receivers import *  # noqa: F403
from release.monitoring import newer  # noqa: F401

pytestmark = pytest.mark.group("prometheus-receivers")
