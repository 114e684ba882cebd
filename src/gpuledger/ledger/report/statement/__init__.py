"""Statements: usage reports come in, or statements as JSON; statements, what changed since, and pages go out.
Pure, without input or output; imports `host`, `model` and `ledger.report`.
"""
