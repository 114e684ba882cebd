"""The ledger file: a journal per tick comes in; the stored ledger, history and session lists go out.
Imports `model`, `ledger` and its other packages; the only package that writes SQLite.
"""
