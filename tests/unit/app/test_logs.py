"""Log lines: always one line, whatever untrusted text they contain."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.app.logs import configure_logging
from gpuledger.model.settings import duration

HOSTILE = [
    "two\nlines",
    "carriage\rreturn",
    "\x1b[2J\x1b[31mred",
    "\x9b31mred",
    "\x7f\x08\x08\x08",
    "next\x85line",
    "separated\u2028lines",
    "right\u202eleft",
    'quote" level=error msg="forged',
    "\ud800",
]


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("500", "500 has no unit and means 8m20s; write 500ms"),
        ("1234567.5", "1234567.5 has no unit and means 14d6h56m7s500ms; write 1234567.5ms"),
        ("500s", ""),
        ("60", ""),
        ("0.5", ""),
        ("2m", ""),
    ],
)
def test_a_long_duration_without_a_unit_is_warned_about(text: str, warned: str) -> None:
    stream = io.StringIO()
    configure_logging({"interval": duration("s")(text), "other": duration("ms")("90000")}, stream)
    assert (warned in stream.getvalue()) and bool(warned) == ("has no unit" in stream.getvalue())


def log_line(form: str, text: str) -> str:
    stream = io.StringIO()
    configure_logging({"log.format": form}, stream)
    logging.getLogger("gpuledger.test").warning("process %s", text)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["logfmt", "json"])
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_adds_lines_or_control_characters(form: str, text: str) -> None:
    line = log_line(form, text)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    line.encode()


@given(st.text())
def test_json_preserves_every_text(text: str) -> None:
    line = log_line("json", text)
    assert line[:-1].isprintable()
    assert json.loads(line)["msg"] == f"process {text}"


def test_a_text_cannot_forge_a_field() -> None:
    assert log_line("logfmt", 'x" level=error msg="forged').count(" level=") == 2
    assert r"msg=\"forged" in log_line("logfmt", 'x" level=error msg="forged')


def test_printable_unicode_is_not_escaped() -> None:
    assert 'msg="process Wörter 训练"' in log_line("logfmt", "Wörter 训练")
