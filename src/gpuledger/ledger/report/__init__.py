"""Reports: energy and time entries of a ledger come in; rows, bills and CSV, JSON and FOCUS texts go out.
Pure, without input or output; imports `model` and `ledger`, but not `ledger.store`.
"""
