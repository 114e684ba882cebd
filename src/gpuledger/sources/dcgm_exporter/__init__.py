"""Fetch profiling metrics from a dcgm-exporter's metrics page and merge them into Snapshots.

In: the URL of a dcgm-exporter. Out: values per GPU, merged Snapshots. May import `http` and `model`; no other
source.
"""
