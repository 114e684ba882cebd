"""Reads jobs from Slurm's accounting, and writes their AdminComment, by the commands of Slurm.

`sacctmgr` before Slurm 23.02 turns the value of AdminComment into lower case, which destroys a summary;
there, only `scontrol update job` can write it, and it is refused as soon as the job ends. The id of a job is
written as ARRAY_TASK if it is a task of an array: the last task has the id of the array, so the plain number
would change the comments of all tasks. A component of a heterogeneous job is written as JOB+OFFSET: the first
one has the id of the job, which slurmdbd takes for all components.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.host.commands import CommandRunner
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import decode_utf8, to_short_line
from gpuledger.workloads.slurm.gres_conf import expand_hostlist

# The first version of which sacctmgr keeps the case of the value.
KEEPS_CASE: Final = (23, 2)
_DELIMITER: Final = "^|^"
# No column has text of users, except the comment, which comes last.
_COLUMNS: Final = "JobIDRaw,JobID,State,Start,End,NodeList,AllocCPUS,AllocTRES,AdminComment"
_GPUS: Final = re.compile(r"(?:^|,)gres/gpu=(\d{1,6})(?:,|$)", re.ASCII)
_MEMORY: Final = re.compile(r"(?:^|,)mem=(\d{1,12}(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_UNITS: Final = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_JOB: Final = re.compile(r"\d{1,12}", re.ASCII)
_PART: Final = re.compile(r"\d{1,12}[_+]\d{1,12}", re.ASCII)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
# Slurm before 20.02 calls heterogeneous jobs packs.
_ACTIVE_JOB: Final = re.compile(
    r"JobId=(\d+)(?: ArrayJobId=(\d+) ArrayTaskId=(\d+)"
    r"| (?:Het|Pack)JobId=(\d+) (?:Het|Pack)JobOffset=(\d+))? ",
    re.ASCII,
)
_ACTIVE_STATE: Final = re.compile(r"^ +JobState=(\w+)", re.MULTILINE | re.ASCII)
_ACTIVE_COMMENT: Final = re.compile(r"^ +AdminComment=(.*)$", re.MULTILINE)
_UNCLEAR: Final = "(unclear)"
# Columns of a row before the comment.
_BEFORE_COMMENT: Final = _COLUMNS.count(",")
# Of the output of a command: some 70,000 jobs of `scontrol show job`.
_MOST_BYTES: Final = 128 * 1024 * 1024
# Times as unix seconds, in every locale and time zone.
_ENVIRONMENT: Final = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
# States of jobs that have begun and have not ended.
_RUNNING: Final = ("RUNNING", "SUSPENDED", "COMPLETING")


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in the accounting, its last run if it was requeued.

    `number` is the id that processes and the ledger know; `name` is the one that identifies it in commands.
    `start` and `end` are unix seconds, `end` is None while it runs. `memory` is in bytes, None if Slurm does
    not allocate memory.
    """

    number: str
    name: str
    state: str
    start: float
    end: float | None
    nodes: tuple[str, ...]
    cpus: int
    gpus: int
    memory: int | None
    comment: str

    @property
    def is_running(self) -> bool:
        """Whether the job has begun and not ended."""
        return self.end is None and self.state in _RUNNING


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that slurmctld still knows: its number, its id in commands, state and AdminComment."""

    number: str
    name: str
    state: str
    comment: str


def parse_job_rows(text: str) -> list[JobRow]:
    """The jobs in the output of sacct that have begun; of several runs of one job, the last.

    Rows of another form are skipped: a job that has not begun has no start and no nodes.
    """
    found: dict[str, JobRow] = {}
    for record in text.split(_DELIMITER + "\n"):
        words = record.split(_DELIMITER, _BEFORE_COMMENT)
        row = _job_row(words) if len(words) == _BEFORE_COMMENT + 1 else None
        if row is not None and (row.number not in found or row.start >= found[row.number].start):
            found[row.number] = row
    return list(found.values())


def _job_row(words: Sequence[str]) -> JobRow | None:
    number, name, state, start, end, nodes, cpus, tres, comment = words
    if not _JOB.fullmatch(number) or not start.isdecimal() or not cpus.isdecimal():
        return None
    gpus, memory = _GPUS.search(tres), _MEMORY.search(tres)
    return JobRow(
        number=number,
        name=name if _PART.fullmatch(name) else number,
        # `CANCELLED by 1000`
        state=state.partition(" ")[0],
        start=float(start),
        end=float(end) if end.isdecimal() else None,
        nodes=tuple(expand_hostlist(nodes)),
        cpus=int(cpus),
        gpus=int(gpus[1]) if gpus else 0,
        memory=round(float(memory[1]) * (1 << _UNITS[memory[2]])) if memory else None,
        comment=comment.strip(),
    )


def parse_active_jobs(text: str) -> list[ActiveJob]:
    """The jobs in the output of `scontrol show job`.

    A name or comment of a user can contain line breaks, and so imitate other lines and jobs. A job with two
    of the lines that are read has a comment that cannot be known: it is reported as that of another program.
    """
    found: dict[str, ActiveJob] = {}
    for job in _active_jobs(re.split(r"\n\n+(?=JobId=)", text)):
        found[job.number] = replace(job, comment=_UNCLEAR) if job.number in found else job
    return list(found.values())


def _active_jobs(blocks: Iterable[str]) -> Iterator[ActiveJob]:
    for block in blocks:
        first, states = _ACTIVE_JOB.match(block), _ACTIVE_STATE.findall(block)
        comments = _ACTIVE_COMMENT.findall(block)
        if first and states:
            number, array, task, leader, offset = first.groups()
            name = f"{array}_{task}" if array else f"{leader}+{offset}" if leader else number
            is_clear = len(states) == 1 and len(comments) <= 1
            # scontrol prints a space after the comment.
            comment = "".join(comments).strip() if is_clear else _UNCLEAR
            yield ActiveJob(number, name, states[0], comment)


class SlurmCommands:
    """Runs sacct, scontrol and sacctmgr; each is killed after `timeout` seconds.

    Methods raise GpuledgerError with one line.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._run_command = CommandRunner(_MOST_BYTES, _ENVIRONMENT)

    def version(self) -> tuple[int, int]:
        """Major and minor version of Slurm's commands here."""
        answer = self._run("sacct", "-V")
        found = _VERSION.search(answer)
        if not found:
            raise GpuledgerError(
                f"cannot find the version of Slurm in '{to_short_line(answer)}' of `sacct -V`"
            )
        return int(found[1]), int(found[2])

    def read_recent_jobs(self, seconds: float) -> list[JobRow]:
        """All jobs that ran at any time in the last seconds."""
        return self._read_rows("-a", "-S", f"now-{max(1, round(seconds))}seconds", "-E", "now")

    def read_jobs(self, names: Collection[str]) -> list[JobRow]:
        """The jobs with these ids."""
        return self._read_rows("-j", ",".join(names)) if names else []

    def _read_rows(self, *selection: str) -> list[JobRow]:
        form = ("-X", "-n", "-p", f"--delimiter={_DELIMITER}", "-o", _COLUMNS)
        return parse_job_rows(self._run("sacct", *form, *selection))

    def read_active_jobs(self) -> list[ActiveJob]:
        """All jobs that slurmctld knows."""
        return parse_active_jobs(self._run("scontrol", "show", "job"))

    def write_while_running(self, name: str, comment: str) -> None:
        """Set the AdminComment of a job that has not ended, by slurmctld."""
        self._run("scontrol", "update", f"job={name}", f"AdminComment={comment}")

    def write_after_end(self, name: str, comment: str) -> None:
        """Set the AdminComment of a job in the accounting."""
        self._run(
            "sacctmgr", "-i", "update", "job", "where", f"jobid={name}", "set", f"AdminComment={comment}"
        )

    def _run(self, *command: str) -> str:
        done = self._run_command(command, self._timeout)
        if done.not_started == "FileNotFoundError":
            raise GpuledgerError(
                f"{command[0]} is not installed here: run this where Slurm's commands are, with them in PATH"
            )
        if done.not_started:
            raise GpuledgerError(f"cannot run {command[0]}: {to_short_line(done.detail)}")
        if done.timed_out:
            raise GpuledgerError(
                f"`{command[0]} {command[1]}` did not answer within {self._timeout:g} s: check slurmctld and "
                "slurmdbd (`scontrol ping`, `sacctmgr ping`)"
            )
        if done.overran:
            raise GpuledgerError(
                f"`{command[0]} {command[1]}` was killed: it wrote more than {_MOST_BYTES >> 20} MiB, or "
                f"very many short lines; check that {command[0]} in PATH is the command of Slurm"
            )
        output = decode_utf8(done.stdout)
        if done.exit_code:
            why = decode_utf8(done.stderr) or output or f"exit status {done.exit_code}"
            raise GpuledgerError(f"`{' '.join(command[:3])}` failed: {to_short_line(why)}")
        return output
