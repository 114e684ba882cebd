"""Parses Prometheus relabel configs and applies them to label sets.

It imports no other agent package, only `host`, `model` and RE2.
"""
