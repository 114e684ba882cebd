"""Writes the summaries of jobs into their AdminComment: one pass over the jobs since the last pass.

Only one program writes, because a job has one comment, and each of its nodes knows only a part. A comment of
another program or person is never replaced. What cannot be read or written now is tried again in the next
passes, for a day.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gpuledger.app.slurm_receipts.accounting import KEEPS_CASE, ActiveJob, JobRow
from gpuledger.app.slurm_receipts.job_summary import (
    NO_DATA,
    SHORT,
    JobSummary,
    is_final_summary,
    is_own_summary,
    summarize_job,
)
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.merging import merge_receipts
from gpuledger.model.errors import GpuledgerError

log = logging.getLogger("gpuledger.slurm")

# Seconds. A node books the last interval of a job up to some ticks after its end.
_SETTLED: Final = 10.0
# Seconds. A node learns of the end of an allocation some seconds later; if it does not, its numbers count.
_LONGEST_BOOKING: Final = 600.0
# How long before the last pass jobs are read again: sacct shows the end of a job late if slurmdbd is busy.
_OVERLAP: Final = 600.0
LONGEST_SPAN: Final = 86_400.0


class SlurmAccounting(Protocol):
    """What a pass needs of Slurm; methods raise GpuledgerError. See SlurmCommands."""

    def version(self) -> tuple[int, int]:
        """Major and minor version."""

    def read_recent_jobs(self, seconds: float) -> list[JobRow]:
        """All jobs that ran in the last seconds."""

    def read_jobs(self, names: Collection[str]) -> list[JobRow]:
        """The jobs with these ids."""

    def read_active_jobs(self) -> list[ActiveJob]:
        """All jobs that slurmctld knows."""

    def write_while_running(self, name: str, comment: str) -> None:
        """Set the comment of a job that has not ended."""

    def write_after_end(self, name: str, comment: str) -> None:
        """Set the comment of a job that has ended."""


class ReceiptSource(Protocol):
    """The receipts of the nodes of a job. See NodeReceipts."""

    def read(self, job: JobRow) -> list[ReceiptJson]:
        """The receipts of the nodes that have seen the job. Raises GpuledgerError."""


@dataclass(frozen=True, slots=True)
class PassState:
    """What one pass leaves for the next, in unix seconds by the id of a job in commands.

    `at` is the time of the pass, None before the first. `waiting` is when a job to try again was first tried,
    `refreshed` when the comment of a running job was last written.
    """

    at: float | None = None
    waiting: Mapping[str, float] = field(default_factory=dict)
    refreshed: Mapping[str, float] = field(default_factory=dict)


class JobOutcome(NamedTuple):
    """What became of the comment of a job: written, removed, kept (that of another), waiting, or given up.

    `name` is its id in commands; `has_ended` as the accounting has it.
    """

    name: str
    result: str
    reason: str = ""
    comment: str = ""
    has_ended: bool = True


WRITTEN, CLEARED, KEPT, WAITING, GIVEN_UP = "written", "removed", "kept", "waiting", "given up"
_FOREIGN: Final = "it has a comment of another program or person"
# States of a job that waits for its next run.
_WAITS: Final = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


class CommentUpdate:
    """One pass. The comment of a running job is written at most once in `refresh` seconds.

    With `is_dry`, the pass reads everything and writes nothing.
    """

    def __init__(
        self,
        slurm: SlurmAccounting,
        receipts: ReceiptSource,
        now: float,
        *,
        refresh: float = 240.0,
        is_dry: bool = False,
    ) -> None:
        self._slurm = slurm
        self._receipts = receipts
        self._now = now
        self._refresh = refresh
        self._is_dry = is_dry

    def run(self, state: PassState) -> tuple[PassState, list[JobOutcome]]:
        """Update the comments of all jobs that need it.

        Raises GpuledgerError if Slurm does not answer at all; the failure of one job costs no other.
        """
        # Before Slurm 23.02, only the comment of a running job can be written.
        while_running = self._slurm.version() < KEEPS_CASE
        since = LONGEST_SPAN if state.at is None else min(LONGEST_SPAN, self._now - state.at + _OVERLAP)
        rows = {job.name: job for job in self._slurm.read_recent_jobs(max(since, _OVERLAP))}
        others = [name for name in state.waiting if name not in rows]
        rows |= {job.name: job for job in self._slurm.read_jobs(others)}
        jobs = [job for job in rows.values() if job.gpus and job.nodes]
        fresh = {name for name, at in state.refreshed.items() if 0 <= self._now - at < self._refresh}
        found = self._update_running(jobs, fresh) if while_running else self._update_ended(jobs)
        outcomes = list(found)
        judged = [self._judge(outcome, state) for outcome in outcomes]
        waiting = {
            one.name: state.waiting.get(one.name, self._now)
            for one in judged
            if one.result == WAITING and one.has_ended
        }
        refreshed = {name: state.refreshed[name] for name in fresh}
        refreshed |= {one.name: self._now for one in judged if one.result == WRITTEN and not one.has_ended}
        return PassState(self._now, waiting, refreshed), judged

    def _judge(self, outcome: JobOutcome, state: PassState) -> JobOutcome:
        """Give up what has waited for a day."""
        first = state.waiting.get(outcome.name, self._now)
        if outcome.result == WAITING and self._now - first > LONGEST_SPAN:
            return outcome._replace(result=GIVEN_UP)
        return outcome

    def _update_ended(self, jobs: Iterable[JobRow]) -> Iterator[JobOutcome]:
        for job in jobs:
            if job.end is None or self._now - job.end < _SETTLED or is_final_summary(job.comment):
                continue
            if job.comment in (NO_DATA, SHORT):
                continue
            if job.comment and not is_own_summary(job.comment):
                yield JobOutcome(job.name, KEPT, _FOREIGN)
                continue
            outcome = self._update_job(job, job.end)
            yield outcome
            if outcome.result == WRITTEN and not self._is_dry:
                self._verify(job, outcome.comment)

    def _update_running(self, jobs: Sequence[JobRow], fresh: Collection[str]) -> Iterator[JobOutcome]:
        active = {job.number: job for job in self._slurm.read_active_jobs()}
        for job in jobs:
            found = active.get(job.number)
            if found is None or not job.is_running or found.state != "RUNNING" or job.name in fresh:
                continue
            if found.comment and not is_own_summary(found.comment):
                yield JobOutcome(job.name, KEPT, _FOREIGN, has_ended=False)
                continue
            yield self._update_job(job, self._now)
        for found in active.values():
            # A requeued job has the comment of its run before.
            if found.state in _WAITS and is_own_summary(found.comment):
                yield self._clear_comment(found.name)

    def _clear_comment(self, name: str) -> JobOutcome:
        with _reported(name, has_ended=False) as outcome:
            if not self._is_dry:
                self._slurm.write_while_running(name, "")
            outcome.append(JobOutcome(name, CLEARED, "it was of the run before", has_ended=False))
        return outcome[0]

    def _update_job(self, job: JobRow, until: float) -> JobOutcome:
        with _reported(job.name, has_ended=job.end is not None) as outcome:
            parts = self._receipts.read(job)
            if job.end is not None and self._now - job.end < _LONGEST_BOOKING:
                late = [node for part in parts if part["running"] for node in part["nodes"]]
                if late:
                    return JobOutcome(job.name, WAITING, f"{', '.join(late)} has not booked its end yet")
            summary = summarize_job(merge_receipts(parts) if parts else None, job, until)
            outcome.append(self._write(job, summary))
        return outcome[0]

    def _write(self, job: JobRow, summary: JobSummary) -> JobOutcome:
        is_running = job.end is None
        if is_running and summary.comment in (NO_DATA, SHORT):
            # The numbers may still come, and the readers take this for the last word.
            return JobOutcome(job.name, WAITING, summary.missing, has_ended=False)
        if not self._is_dry and is_running:
            self._slurm.write_while_running(job.name, summary.comment)
        elif not self._is_dry:
            self._slurm.write_after_end(job.name, summary.comment)
        return JobOutcome(job.name, WRITTEN, summary.missing, summary.comment, has_ended=not is_running)

    def _verify(self, job: JobRow, comment: str) -> None:
        """Read a comment back; remove one that Slurm changed, because it would break readers of all jobs.

        Raises GpuledgerError if it was changed: the other jobs would get damaged comments, too.
        """
        found = self._slurm.read_jobs([job.name])
        if not found or found[0].comment == comment:
            return
        self._slurm.write_after_end(job.name, job.comment)
        raise GpuledgerError(
            f"Slurm changed the AdminComment of job {job.name} while storing it; the comment was removed, "
            "and no other is written: use the sacctmgr of Slurm 23.02 or newer"
        )


@contextmanager
def _reported(name: str, *, has_ended: bool) -> Iterator[list[JobOutcome]]:
    """Collect the outcome of a job; an error becomes one."""
    outcome: list[JobOutcome] = []
    try:
        yield outcome
    except GpuledgerError as error:
        outcome.append(JobOutcome(name, WAITING, str(error), has_ended=has_ended))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.debug("job %s", name, exc_info=True)
        reason = f"the receipt of a node is malformed ({type(error).__name__}: {error})"
        outcome.append(JobOutcome(name, WAITING, reason, has_ended=has_ended))
