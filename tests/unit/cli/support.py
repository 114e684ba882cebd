"""Commands that run in this process, and the ledger of two pods that share a GPU."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from builders import gpu, process
from gpuledger.cli.main import main
from gpuledger.model.workload import Workload
from ledger_helpers import Run

A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA H100", sm_count=132)
J = 1000
TRAIN = Workload("pod", "ml", "train-0", "main", labels=(("team", "blue"),))
CHAT = Workload("pod", "web", "chat-0", "main", labels=(("team", "red"),))
ALL = ("--since", "2023-01-01")


def write_two_pods(folder: Path) -> None:
    """Two hours: one pod alone on a GPU, then sharing it; the second GPU is idle."""
    run = Run(folder)
    train, chat = process(A, 11, workload=TRAIN), process(A, 12, workload=CHAT, name="vllm")
    for minute in range(120):
        mine = [train] if minute < 60 else [train, chat]
        run.tick({A: minute * 1000 * J, B: minute * 100 * J}, mine, seconds=60.0)
    run.store.close()


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints."""
    assert main(list(words)) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    return dict(json.loads(output(capsys, *words, "--format", "json")))


def figures(capsys: pytest.CaptureFixture[str], books: Path, *words: str) -> list[dict[str, str]]:
    """The rows of a report in CSV."""
    text = output(capsys, "report", "--state-dir", str(books), *ALL, "--format", "csv", *words)
    return list(csv.DictReader(io.StringIO(text)))


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that a command prints when it fails."""
    assert main(list(words)) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error
