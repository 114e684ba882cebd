"""Wires the packages into programs: assembles nodes, reloads settings, serves control requests, runs checks.

In: parsed settings of `config`. Out: what `cli` runs. May import everything below `cli`.
"""
