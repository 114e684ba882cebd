"""Jobs as Slurm's accounting has them, and an accounting in memory, for tests of receipts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gpuledger.app.slurm_receipts.accounting import ActiveJob, JobRow
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.model.errors import GpuledgerError
from receipt_helpers import BEGIN, GIB, HOUR

NOW = BEGIN + HOUR + 60


def job_row(number: str = "4711", **more: Any) -> JobRow:
    """A job that had one GPU of node n1 for an hour, and ended a minute ago."""
    found: dict[str, Any] = {
        "number": number,
        "name": number,
        "state": "COMPLETED",
        "start": BEGIN,
        "end": BEGIN + HOUR,
        "nodes": ("n1",),
        "cpus": 8,
        "gpus": 1,
        "memory": 64 * GIB,
        "comment": "",
    }
    return JobRow(**found | more)


def running_row(number: str = "4711", **more: Any) -> JobRow:
    """The same job, still running."""
    return job_row(number, **{"state": "RUNNING", "end": None} | more)


class FakeAccounting:
    """Slurm's commands, of a version. `active` has the comments of running jobs, as slurmctld knows them.

    `written` has all writes in order. `broken` are ids that cannot be written. As before 23.02, `lowers`
    turns what is written after the end into lower case.
    """

    def __init__(self, *rows: JobRow, version: tuple[int, int] = (24, 5), lowers: bool = False) -> None:
        self.rows = {row.name: row for row in rows}
        self.active = [
            ActiveJob(row.number, row.name, row.state, row.comment) for row in rows if row.end is None
        ]
        self.number = version
        self.lowers = lowers
        self.broken: set[str] = set()
        self.written: list[tuple[str, str, str]] = []
        self.spans: list[float] = []

    def version(self) -> tuple[int, int]:
        return self.number

    def read_recent_jobs(self, seconds: float) -> list[JobRow]:
        self.spans.append(seconds)
        return [row for row in self.rows.values() if row.end is None or NOW - row.end <= seconds]

    def read_jobs(self, names: Collection[str]) -> list[JobRow]:
        return [self.rows[name] for name in names if name in self.rows]

    def read_active_jobs(self) -> list[ActiveJob]:
        return self.active

    def write_while_running(self, name: str, comment: str) -> None:
        self._write("scontrol", name, comment)
        self.active = [replace(one, comment=comment) if one.name == name else one for one in self.active]

    def write_after_end(self, name: str, comment: str) -> None:
        self._write("sacctmgr", name, comment)
        self.rows[name] = replace(self.rows[name], comment=comment.lower() if self.lowers else comment)

    def _write(self, command: str, name: str, comment: str) -> None:
        if name in self.broken:
            raise GpuledgerError(f"`{command}` failed: Connection refused")
        self.written.append((command, name, comment))


class FakeReceipts:
    """The receipts of nodes by the number of a job; nodes of a job in `broken` do not answer."""

    def __init__(self, **by_number: list[ReceiptJson]) -> None:
        self.by_number = {name.removeprefix("job"): parts for name, parts in by_number.items()}
        self.broken: set[str] = set()
        self.read_jobs: list[str] = []

    def read(self, job: JobRow) -> list[ReceiptJson]:
        self.read_jobs.append(job.number)
        if job.number in self.broken:
            raise GpuledgerError("http://n1:9400 cannot be reached")
        return self.by_number.get(job.number, [])
