"""The chart's dashboards while pods are replaced on a real node, with Prometheus 3.5: the cluster test."""

from __future__ import annotations

import pytest

from cluster.conftest import (  # noqa: F401
    binaries,
    control_plane,
    controllers,
    folder,
    node,
    program_image,
)
from cluster.test_chart_dashboards import *  # noqa: F403
from release.monitoring import newer  # noqa: F401

pytestmark = pytest.mark.group("chart-dashboards")
