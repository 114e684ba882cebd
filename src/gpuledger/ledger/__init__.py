"""The Ledger: Snapshots come in; sessions, energy accounts and reports go out.
Imports only `model`; `store` keeps the ledger in SQLite.
"""
