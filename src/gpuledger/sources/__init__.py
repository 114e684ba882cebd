"""Sources: each reads the GPUs, processes and events of one machine.

In: settings, Host, clock. Out: a Snapshot per tick. May import `model` and `host`; no source imports another.
"""
