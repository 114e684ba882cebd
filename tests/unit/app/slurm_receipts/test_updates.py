"""One pass over the jobs: what is written when, by which command, and what is never touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.app.slurm_receipts.accounting import ActiveJob
from gpuledger.app.slurm_receipts.job_summary import (
    NO_DATA,
    SHORT,
    decode_summary,
    encode_summary,
    is_final_summary,
)
from gpuledger.app.slurm_receipts.updates import (
    GIVEN_UP,
    KEPT,
    LONGEST_SPAN,
    WAITING,
    WRITTEN,
    CommentUpdate,
    JobOutcome,
    PassState,
)
from gpuledger.model.errors import GpuledgerError
from receipt_helpers import HOUR, receipt
from slurm_jobs import NOW, FakeAccounting, FakeReceipts, job_row, running_row

OLD, NEW = (22, 5), (23, 2)
OURS = encode_summary({"gpuledger": {"final": False}})
JOBSTATS = encode_summary({"gpus": 1, "total_time": 1, "nodes": {}})
FOREIGN = ["checked by eva", JOBSTATS, "JS2:abc", "js1:h4siaaa", "JS1:H4sI truncated"]


def receipts(*numbers: str) -> FakeReceipts:
    return FakeReceipts(**{f"job{number}": [receipt()] for number in numbers})


def update(
    slurm: FakeAccounting,
    source: FakeReceipts,
    state: PassState | None = None,
    *,
    refresh: float = 240.0,
    is_dry: bool = False,
) -> tuple[PassState, list[JobOutcome]]:
    return CommentUpdate(slurm, source, NOW, refresh=refresh, is_dry=is_dry).run(state or PassState())


def test_an_ended_job_gets_its_summary_in_the_accounting() -> None:
    slurm = FakeAccounting(job_row(), version=NEW)
    state, (outcome,) = update(slurm, receipts("4711"))
    assert (outcome.result, outcome.reason) == (WRITTEN, "")
    ((command, name, comment),) = slurm.written
    assert (command, name) == ("sacctmgr", "4711")
    assert is_final_summary(comment)
    assert state == PassState(NOW)


def test_a_second_pass_writes_nothing() -> None:
    slurm, source = FakeAccounting(job_row(), version=NEW), receipts("4711")
    state, _ = update(slurm, source)
    again, outcomes = update(slurm, source, state)
    assert outcomes == []
    assert len(slurm.written) == 1
    assert source.read_jobs == ["4711"]
    assert again.waiting == {}


def test_a_running_job_is_left_alone_from_23_02_on() -> None:
    slurm = FakeAccounting(running_row(), version=NEW)
    assert update(slurm, receipts("4711"))[1] == []
    assert slurm.written == []


def test_before_23_02_only_running_jobs_are_written_by_slurmctld() -> None:
    slurm = FakeAccounting(running_row("5"), job_row("4"), version=OLD)
    _, (outcome,) = update(slurm, receipts("4", "5"))
    assert outcome.name == "5"
    ((command, name, comment),) = slurm.written
    assert (command, name) == ("scontrol", "5")
    assert not is_final_summary(comment)
    assert (decode_summary(comment) or {})["total_time"] == HOUR + 60


def test_the_summary_of_a_running_job_is_refreshed_from_time_to_time() -> None:
    slurm, source = FakeAccounting(running_row(), version=OLD), receipts("4711")
    state, _ = update(slurm, source, refresh=240.0)
    assert state.refreshed == {"4711": NOW}
    state, outcomes = update(slurm, source, state, refresh=240.0)
    assert outcomes == []
    assert state.refreshed == {"4711": NOW}
    earlier = replace(state, refreshed={"4711": NOW - 241})
    assert len(update(slurm, source, earlier, refresh=240.0)[1]) == 1


@pytest.mark.parametrize("comment", FOREIGN)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_comment_of_another_is_never_replaced(comment: str, version: tuple[int, int]) -> None:
    job = running_row(comment=comment) if version == OLD else job_row(comment=comment)
    slurm = FakeAccounting(job, version=version)
    state, (outcome,) = update(slurm, receipts("4711"))
    assert outcome.result == KEPT
    assert slurm.written == []
    assert state.waiting == {}


@pytest.mark.parametrize("comment", [NO_DATA, SHORT])
def test_a_job_that_is_known_to_have_no_data_is_not_read_again(comment: str) -> None:
    source = receipts("4711")
    assert update(FakeAccounting(job_row(comment=comment)), source)[1] == []
    assert source.read_jobs == []


def test_a_summary_from_the_time_of_the_run_is_replaced_after_the_end() -> None:
    """As after an upgrade of Slurm."""
    slurm = FakeAccounting(job_row(comment=OURS), version=NEW)
    update(slurm, receipts("4711"))
    assert is_final_summary(slurm.rows["4711"].comment)


def test_a_task_of_an_array_is_written_by_its_own_name() -> None:
    first, last = job_row("12", name="11_1"), job_row("11", name="11_2")
    slurm = FakeAccounting(first, last)
    update(slurm, receipts("11", "12"))
    assert [name for _, name, _ in slurm.written] == ["11_1", "11_2"]


UNTOUCHED = {
    "a job without GPUs": job_row(gpus=0),
    "a job without nodes": job_row(nodes=()),
    "a job that ended just now": job_row(end=NOW - 3),
}


@pytest.mark.parametrize("job", UNTOUCHED.values(), ids=UNTOUCHED)
def test_jobs_that_are_not_summarized(job: object) -> None:
    slurm = FakeAccounting(job)  # type: ignore[arg-type]
    assert update(slurm, receipts("4711"))[1] == []
    assert slurm.written == []


def test_a_job_that_no_node_has_seen_is_marked_as_such() -> None:
    slurm = FakeAccounting(job_row())
    _, (outcome,) = update(slurm, FakeReceipts())
    assert (outcome.result, outcome.comment) == (WRITTEN, NO_DATA)


def test_of_a_running_job_nothing_is_written_that_readers_take_for_the_last_word() -> None:
    slurm = FakeAccounting(running_row(), version=OLD)
    state, (outcome,) = update(slurm, FakeReceipts())
    assert outcome.result == WAITING
    assert slurm.written == []
    assert state.waiting == {}


def test_a_node_that_does_not_answer_costs_no_other_job_and_is_tried_again() -> None:
    slurm, source = FakeAccounting(job_row("1"), job_row("2")), receipts("1", "2")
    source.broken = {"1"}
    state, outcomes = update(slurm, source)
    assert [(one.name, one.result) for one in outcomes] == [("1", WAITING), ("2", WRITTEN)]
    assert state.waiting == {"1": NOW}
    source.broken = set()
    state, (outcome,) = update(slurm, source, replace(state, at=NOW))
    assert outcome.result == WRITTEN
    assert state.waiting == {}


@pytest.mark.parametrize(("seconds", "result"), [(60, WAITING), (601, WRITTEN)])
def test_a_node_that_still_books_the_job_is_waited_for(seconds: float, result: str) -> None:
    """It learns of the end some seconds later. One that never does must not withhold the summary."""
    slurm = FakeAccounting(job_row(end=NOW - seconds))
    _, (outcome,) = update(slurm, FakeReceipts(job4711=[receipt(running=True)]))
    assert outcome.result == result
    assert len(slurm.written) == (result == WRITTEN)


def test_a_job_that_waits_is_found_when_it_is_no_longer_recent() -> None:
    slurm = FakeAccounting(job_row(end=NOW - 7200))
    state, (outcome,) = update(slurm, receipts("4711"), PassState(NOW - 60, {"4711": NOW - 7000}))
    assert outcome.result == WRITTEN
    assert state.waiting == {}


def test_what_waits_for_a_day_is_given_up() -> None:
    slurm, source = FakeAccounting(job_row()), receipts("4711")
    source.broken = {"4711"}
    state, (outcome,) = update(slurm, source, PassState(NOW - 60, {"4711": NOW - LONGEST_SPAN - 1}))
    assert outcome.result == GIVEN_UP
    assert "cannot be reached" in outcome.reason
    assert state.waiting == {}


def test_a_database_that_is_down_is_tried_again() -> None:
    slurm = FakeAccounting(job_row())
    slurm.broken = {"4711"}
    state, (outcome,) = update(slurm, receipts("4711"))
    assert outcome.result == WAITING
    assert state.waiting == {"4711": NOW}


def test_a_malformed_receipt_costs_no_other_job() -> None:
    slurm = FakeAccounting(job_row("1"), job_row("2"))
    source = receipts("1", "2")
    source.by_number["1"] = [{**receipt(), "gpus": [{"node": "n1"}]}]  # type: ignore[list-item]
    outcomes = update(slurm, source)[1]
    assert [one.result for one in outcomes] == [WAITING, WRITTEN]
    assert "malformed" in outcomes[0].reason


def test_a_comment_that_slurm_changed_is_removed_and_no_other_is_written() -> None:
    """Lower case breaks the readers of all jobs. Versions that do this are known; a site may have another."""
    slurm = FakeAccounting(job_row("1"), job_row("2"), lowers=True)
    with pytest.raises(GpuledgerError, match="Slurm changed the AdminComment of job 1"):
        update(slurm, receipts("1", "2"))
    assert [row.comment for row in slurm.rows.values()] == ["", ""]


def test_the_comment_of_the_run_before_is_removed_from_a_requeued_job() -> None:
    slurm = FakeAccounting(version=OLD)
    slurm.active = [ActiveJob("4711", "4710_2", "PENDING", OURS)]
    state, _ = update(slurm, receipts("4711"))
    assert slurm.written == [("scontrol", "4710_2", "")]
    assert state.refreshed == {}


@pytest.mark.parametrize("comment", [*FOREIGN, ""])
def test_a_comment_of_another_is_kept_on_a_requeued_job(comment: str) -> None:
    slurm = FakeAccounting(version=OLD)
    slurm.active = [ActiveJob("4711", "4711", "PENDING", comment)]
    update(slurm, receipts("4711"))
    assert slurm.written == []


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_dry_run_writes_nothing(version: tuple[int, int]) -> None:
    job = running_row() if version == OLD else job_row()
    slurm = FakeAccounting(job, version=version)
    _, (outcome,) = update(slurm, receipts("4711"), is_dry=True)
    assert outcome.result == WRITTEN
    assert outcome.comment.startswith("JS1:H4s")
    assert slurm.written == []


SPANS = {
    "the first pass": (None, LONGEST_SPAN),
    "a minute ago": (NOW - 60, 660.0),
    "a week ago": (NOW - 7 * 86_400, LONGEST_SPAN),
    "a clock that was set back": (NOW + 86_400, 600.0),
}


@pytest.mark.parametrize(("at", "seconds"), SPANS.values(), ids=SPANS)
def test_the_jobs_since_the_last_pass_are_read(at: float | None, seconds: float) -> None:
    slurm = FakeAccounting()
    update(slurm, FakeReceipts(), PassState(at))
    assert slurm.spans == [seconds]


def test_a_job_on_two_nodes_has_one_summary_of_both() -> None:
    slurm = FakeAccounting(job_row(nodes=("n1", "n2"), gpus=2))
    source = FakeReceipts(job4711=[receipt("n2"), receipt("n1")])
    update(slurm, source)
    found = decode_summary(slurm.rows["4711"].comment)
    assert found is not None
    assert list(found["nodes"]) == ["n1", "n2"]
    assert found["gpuledger"]["cost"] == "4.4200000000"
