"""Outputs of a node: metrics pages, probes and `/health` over HTTP, and node_exporter's textfile.

In: NodeStates and dialects. Out: HTTP responses and a file. Imports: dialects, exposition, http, host and
model.
"""
