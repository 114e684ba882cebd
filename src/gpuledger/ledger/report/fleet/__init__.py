"""Fleet reports: answers of Prometheus queries come in; report rows with error bounds go out.
Pure, without input or output; imports `model` and `ledger.report`.
"""
