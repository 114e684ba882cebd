"""The time rules: Snapshots come in; postings (microseconds of each Gpu by account, for both bases) go out.
Pure, without input or output; imports only `model` and the residence rules of `ledger.energy`.
"""
