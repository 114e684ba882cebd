"""Read GPUs, MIG devices and processes through the driver's library (NVML) into Snapshots; check the driver.

In: the driver library, Host, clock. Out: a Snapshot per tick, Findings for `doctor`. May import `model`,
`host` and the modules of `sources`; no other source.
"""
