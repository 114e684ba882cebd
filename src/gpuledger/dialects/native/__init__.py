"""The native dialect: `gpuledger_*` families in base units.

In: a NodeState. Out: Families. Imports: model and this package.
"""
