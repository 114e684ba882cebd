"""The domain model: devices, processes, owners, snapshots, metric families, settings, errors. Pure values.

In: plain values from all other packages. Out: immutable objects and protocols. Imports: the standard library
only.
"""
