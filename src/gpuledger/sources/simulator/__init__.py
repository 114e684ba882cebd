"""The `simulator` source: a deterministic node without hardware.

In: scenario (YAML), seed, clock. Out: Snapshots and exact energy. May import `model`, `host` and the shared
modules of `sources`.
"""
