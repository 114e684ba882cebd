"""Client of the API server: paths and requests in; parsed objects and their changes out.

May import http, host and model, and knows nothing about GPUs.
"""
