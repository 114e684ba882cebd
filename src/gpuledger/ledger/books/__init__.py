"""Ledgers that outlive their node: a ledger file comes in; checks, backups, exported months and a file
without a person's name go out. Imports
`model`, `host`, `ledger.store` and `ledger.report`; pyarrow only if needed.
"""
