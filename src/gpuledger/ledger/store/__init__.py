"""The ledger file: a journal per tick comes in; the stored ledger, history and session lists go out.
Imports `model`, `ledger` and its other packages; only it and `books` write SQLite.
"""
