"""Queues sample blocks on disk and sends them to receivers by Prometheus remote write.

It imports no other agent package, only `exposition`, `http`, `host` and `model`.
"""
