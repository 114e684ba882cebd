"""Owner lookup: Snapshots in; the same Snapshots out, with the owner of every process and all allocations.

May import kubernetes, http, host and model; sources, ledger and the dialects are unknown here.
"""
