"""Fuzz tests of files in which commands keep their state, of receipts of other nodes, and of job comments."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given

from builders import FakeClock
from fuzzing import bounded, check_line, fuzzed, mutated, mutated_values
from gpuledger.app.pod_events import PodEvents
from gpuledger.app.slurm_receipts.accounting import parse_active_jobs, parse_job_rows
from gpuledger.app.slurm_receipts.job_summary import decode_summary, encode_summary, is_final_summary
from gpuledger.app.slurm_receipts.node_receipts import name_node, require_receipt
from gpuledger.app.slurm_receipts.pass_file import PassFile
from gpuledger.ledger.report.receipt.merging import merge_receipts
from gpuledger.ledger.report.receipt.text import receipt_text
from gpuledger.ledger.store.reservation_file import ReservationFile
from gpuledger.model.errors import GpuledgerError
from ledger_helpers import UNIX
from receipt_helpers import receipt as made_receipt

RESERVATIONS = {
    "version": 1,
    "boot_id": "boot",
    "reservations": [
        {"device": "GPU-a", "uid": 1000, "seconds": 60.0, "ends": 120.0, "ends_unix": UNIX, "command": None},
        {"device": "GPU-b", "uid": 0, "seconds": 9.0, "ends": None, "ends_unix": None, "command": [7, 12]},
    ],
}
PASSES = {"version": 1, "at": UNIX, "waiting": {"4711": UNIX}, "refreshed": {"4712_3": UNIX}}
POD = {
    "namespace": "ml",
    "name": "train-0",
    "since": UNIX,
    "controller_kind": "Job",
    "controller": "train",
    "gone": None,
}
EVENTS = {"version": 1, "followed": {"uid-1": POD, "uid-2": {**POD, "gone": UNIX}}, "done": {"uid-3": UNIX}}
SUMMARY = {"nodes": {"a": {"gpu_util": {"0": 1.0}}}, "gpuledger": {"final": True}}
ROWS = (
    b"4711|4711|COMPLETED|1700000000|1700003600|gpu-1|8|billing=8,gres/gpu=2,mem=64G||\n"
    b"4712_[1-9]|4712|RUNNING|1700000000|Unknown|gpu-[1-4]|8|gres/gpu:h100=2|JS1:abc|\n"
)
JOBS = b"JobId=4711 ArrayJobId=4711 JobState=RUNNING\n   AdminComment=x\n\nJobId=4712 JobState=PENDING\n"


def in_file(content: bytes, use: Callable[[Path], Any]) -> Any:
    with TemporaryDirectory() as folder, bounded():
        file = Path(folder, "state.json")
        file.write_bytes(content)
        return use(file)


@fuzzed
@given(mutated_values(RESERVATIONS))
def test_no_reservation_lasts_longer_than_it_can(content: Any) -> None:
    def load(file: Path) -> None:
        for one in ReservationFile(file, "boot").load(100.0, UNIX):
            if one.ends is not None:
                assert one.seconds is not None
                assert 0 < one.ends - 100.0 <= 12 * 3600

    in_file(json.dumps(content).encode(), load)


@fuzzed
@given(mutated_values(PASSES))
def test_no_state_of_a_pass_raises(content: Any) -> None:
    def load(file: Path) -> None:
        state = PassFile(file).read()
        assert all(map(isfinite, (state.at or 0.0, *state.waiting.values(), *state.refreshed.values())))

    in_file(json.dumps(content).encode(), load)


@fuzzed
@given(mutated_values(EVENTS))
def test_no_state_of_events_raises_or_stops_a_pass(content: Any) -> None:
    def load(file: Path) -> None:
        events = PodEvents(
            "node", lambda: None, lambda: None, lambda _: None, lambda *_: None, FakeClock(UNIX + 1000), file
        )
        events.run_pass()

    in_file(json.dumps(content).encode(), load)


@fuzzed
@given(mutated_values(SUMMARY))
def test_comments_with_any_content_are_read(content: Any) -> None:
    with bounded():
        comment = encode_summary(content)
        assert decode_summary(comment) is None or isinstance(content, dict)
        is_final_summary(comment)


@fuzzed
@given(mutated([encode_summary(SUMMARY).encode()], b"JS1:", b"=", b"H4sI"))
def test_no_comment_raises(content: bytes) -> None:
    with bounded():
        is_final_summary(content.decode("utf-8", "replace"))


@fuzzed
@given(mutated([ROWS, JOBS], b"|", b"Unknown", b"None", b"gres/gpu=", b"9" * 400, b"gpu-[1-999999999]"))
def test_no_output_of_slurm_raises_another_error(content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    for parse in (parse_job_rows, parse_active_jobs):
        with bounded():
            try:
                parse(text)
            except GpuledgerError as error:
                check_line(error)


@fuzzed
@given(mutated_values(json.loads(json.dumps(made_receipt()))))
def test_every_receipt_of_a_node_is_shown_or_refused(content: Any) -> None:
    with bounded():
        try:
            one = name_node(require_receipt(json.loads(json.dumps(content)), "a"), "a")
            receipt_text(merge_receipts([one]))
        except GpuledgerError as error:
            check_line(error)
