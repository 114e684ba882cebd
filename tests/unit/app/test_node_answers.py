"""Answers of nodes that are JSON, and not the output of a command: of another version, or another program."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.app.node_requests import print_answer
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.settings import NodeUrlSettings

NODE = NodeUrlSettings(url="http://node:9400")


@pytest.mark.parametrize(
    "answer",
    [
        # What an answer without a text becomes: an object under the name of the command.
        {"idle": {}},
        {"idle": {"version": "v9", "holds": []}},
        {"idle": None},
        {"text": None, "notes": []},
        {"text": ["a"], "notes": []},
        {"text": "a", "notes": 3},
        {"text": "a", "notes": {"b": 1}},
    ],
)
def test_an_answer_without_a_text_is_one_line_with_the_remedy(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GpuledgerError, match=r"http://node:9400 sends no text .* run the same version"):
        print_answer(answer, NODE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("notes", [{}, {"notes": None}, {"notes": []}])
def test_notes_can_be_missing(notes: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_answer({"text": "rows\n", **notes}, NODE)
    assert capsys.readouterr() == ("rows\n", "")
