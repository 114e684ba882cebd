"""Dialects: each turns a NodeState into metric families with particular names and labels.

In: a NodeState. Out: Families of `model.family`. Imports: model only; no dialect imports another one.
"""
