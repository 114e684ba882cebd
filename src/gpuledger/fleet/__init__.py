"""One view of many nodes: lists of nodes and their APIs in, one page and one API out.
May import web, outputs, ledger, kubernetes, http, host and model.
"""
