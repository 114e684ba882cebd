"""The `smi` source: runs an nvidia-smi command, here or through ssh, and parses its XML, CSV and text.

In: the command's output. Out: Snapshots. May import `model`, `host` and the shared modules of `sources`.
"""
