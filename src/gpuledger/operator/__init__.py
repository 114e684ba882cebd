"""The Kubernetes operator: GpuMonitor and WhatapAgent resources in; applied objects, statuses and events out.

May import the layers below (kubernetes, dialects, sources, http, host, model), but neither agent nor node:
`cli` passes in their checks as functions.
"""
