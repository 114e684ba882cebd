"""Tests whether the numbers are right: measurements of this machine's driver in, Findings and a report out.

Imports `sources`, `ledger`, `dialects` and what is below them. It starts no GPU work and changes nothing.
"""
