"""The WhatapAgent resources of document 002, and what their resource's spec says."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import yaml

from unit.operator.support import EXAMPLES as WRITTEN

Json = dict[str, Any]

# By what each shows.
EXAMPLES: dict[str, Json] = {name: yaml.safe_load(text)["spec"] for name, text in WRITTEN.items()}

# Described in words: both a customer's exporters and our own.
HYBRID = "hybrid"
EXAMPLES[HYBRID] = deepcopy(EXAMPLES["a customer's own exporters"])
EXAMPLES[HYBRID]["features"]["k8sAgent"]["gpuMonitoring"]["enabled"] = True
