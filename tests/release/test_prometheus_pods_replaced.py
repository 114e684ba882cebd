"""Every number of every dashboard while pods are replaced, with Prometheus 3.5: the tests, run again."""

from __future__ import annotations

import pytest

from integration.test_pods_replaced import *  # noqa: F403
from release.monitoring import newer  # noqa: F401

pytestmark = pytest.mark.group("prometheus-pods-replaced")
