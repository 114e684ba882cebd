"""Exposition formats: text 0.0.4, OpenMetrics and remote write, and content negotiation.

In: Families. Out: bytes. Imports: model only; no input or output.
"""
