"""A receipt in the formats of `--format`, of one node or of several."""

from __future__ import annotations

import json
import sys

from gpuledger.host.output_width import output_width
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.markdown import receipt_markdown
from gpuledger.ledger.report.receipt.page import receipt_page
from gpuledger.ledger.report.receipt.text import receipt_text
from gpuledger.model.text import is_utf8


def format_receipt(receipt: ReceiptJson, form: str) -> str:
    """The receipt for standard output: `json`, `markdown`, `html` or `text`."""
    if form == "json":
        return json.dumps(receipt, indent=2) + "\n"
    if form == "markdown":
        return receipt_markdown(receipt)
    if form == "html":
        return receipt_page(receipt)
    return receipt_text(receipt, plain=not is_utf8(sys.stdout.encoding), width=output_width())
