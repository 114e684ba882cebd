"""Lines of the log: one each, whatever names processes, files and strangers bring into them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.app.logs import set_up
from gpuledger.config.settings import LogSettings

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


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = before[0]
    logging.getLogger().setLevel(before[1])


def logged(form: str, text: str) -> str:
    stream = io.StringIO()
    set_up(LogSettings(format=form), stream)
    logging.getLogger("gpuledger.test").warning("process %s", text)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["logfmt", "json"])
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_makes_a_second_line_or_steers_a_terminal(form: str, text: str) -> None:
    line = logged(form, text)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    line.encode()


@given(st.text())
@settings(deadline=None, max_examples=100)
def test_json_gives_every_text_back(text: str) -> None:
    line = logged("json", text)
    assert line[:-1].isprintable()
    assert json.loads(line)["msg"] == f"process {text}"


def test_a_text_cannot_forge_a_field() -> None:
    assert logged("logfmt", 'x" level=error msg="forged').count(" level=") == 2
    assert r"msg=\"forged" in logged("logfmt", 'x" level=error msg="forged')


def test_what_people_write_is_left_as_it_is() -> None:
    assert 'msg="process Wörter 训练"' in logged("logfmt", "Wörter 训练")
