"""HTTP/1.1 server, asynchronous and blocking client, their limits, and web config files (TLS, basic auth).

In: routes and connections. Out: requests and responses. May import `host` and `model` only.
"""
