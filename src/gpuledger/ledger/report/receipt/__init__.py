"""Receipts: amounts and seconds of one owner come in; advice, JSON, text, Markdown and HTML go out.
Pure, without input or output; imports `host`, `model` and `ledger.report`.
"""
