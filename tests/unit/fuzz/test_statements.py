"""Fuzz tests of statements that others altered: verified or refused, without another error."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, check_line, check_text, fuzzed, mutated, mutated_values
from gpuledger.app.statement_verification import verify_file
from gpuledger.app.statements import check_chain, read_statement, statement_text
from gpuledger.ledger.report.statement.digests import seal_statement
from gpuledger.model.errors import GpuledgerError
from statement_helpers import PRICED, entries, statement_of, written

STATEMENT = statement_of(entries().report(PRICED))
CONTENT = written(STATEMENT)


def check_statement(content: bytes) -> None:
    with TemporaryDirectory() as folder, bounded():
        file = Path(folder, "statement.json")
        file.write_bytes(content)
        try:
            found = read_statement(str(file))
            chain, seams = check_chain(found, str(file))
            lines = verify_file(found, str(file), chain, seams).lines
        except GpuledgerError as error:
            check_line(error)
        else:
            check_text(*lines)
            assert all(map(str.isprintable, lines)), lines


@fuzzed
@given(mutated([statement_text(STATEMENT).encode()], b'"rows"', b"1/3", b"-1", b'"total"', b"null"))
def test_no_altered_statement_raises_another_error(content: bytes) -> None:
    check_statement(content)


@fuzzed
@given(mutated_values(CONTENT), st.booleans())
def test_no_altered_value_raises_another_error(content: Any, is_sealed: bool) -> None:
    """Also if the altered one was sealed again."""
    if is_sealed and isinstance(content, dict):
        content = seal_statement(content)
    check_statement(json.dumps(content).encode())
