"""Tokens of inference servers beside GPU time and energy: scraped counters and a fleet's report come in, the
report with tokens goes out. Imports only `ledger/report`, `ledger/report/fleet` and `model`."""
