"""The energy rules: Readings of a Gpu come in; postings (energy by account, with a method) go out.
Pure, without input or output; imports only `model`.
"""
