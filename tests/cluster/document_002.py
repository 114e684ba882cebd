"""Specs of the WhatapAgent resources in document 002."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import yaml

from unit.operator.support import EXAMPLES as WRITTEN

Json = dict[str, Any]

# By title.
EXAMPLES: dict[str, Json] = {name: yaml.safe_load(text)["spec"] for name, text in WRITTEN.items()}

# Document 002 describes this one in words: the customer's exporters and those of the operator.
HYBRID = "hybrid"
EXAMPLES[HYBRID] = deepcopy(EXAMPLES["a customer's own exporters"])
EXAMPLES[HYBRID]["features"]["k8sAgent"]["gpuMonitoring"]["enabled"] = True
