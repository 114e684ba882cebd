"""The `replay` source and the recordings that it reads.

In: Snapshots to record, or a recording. Out: a recording, masked or not, or Snapshots. May import `model` and
the shared modules of `sources`.
"""
