"""Prometheus's web config file: TLS, client certificates, basic auth, rate limit, response headers.

In: a YAML file. Out: protocols for `http.server`. May import `http`, `host` and `model`.
"""
