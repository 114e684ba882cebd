"""Rows of sacct, jobs of scontrol, and the commands that are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.app.slurm_receipts.accounting import (
    ActiveJob,
    JobRow,
    SlurmCommands,
    parse_active_jobs,
    parse_job_rows,
)
from gpuledger.model.errors import GpuledgerError

GIB = 1 << 30
TRES = "billing=16,cpu=16,gres/gpu:h100=2,gres/gpu=2,mem=64G,node=1"


def line(*words: str) -> str:
    return "".join(f"{word}^|^" for word in words) + "\n"


def row(number: str = "7", name: str = "7", state: str = "COMPLETED", comment: str = "", **more: str) -> str:
    given = {"start": "1000", "end": "4600", "nodes": "gpu1", "cpus": "16", "tres": TRES} | more
    return line(number, name, state, *given.values(), comment)


def only(text: str) -> JobRow:
    (found,) = parse_job_rows(text)
    return found


def test_a_job_that_has_ended() -> None:
    found = only(row())
    assert found == JobRow("7", "7", "COMPLETED", 1000.0, 4600.0, ("gpu1",), 16, 2, 64 * GIB, "")
    assert not found.is_running


def test_a_job_that_runs_has_no_end() -> None:
    found = only(row(state="RUNNING", end="Unknown"))
    assert found.end is None
    assert found.is_running


@pytest.mark.parametrize("sign", ["_", "+"])
def test_a_part_of_a_job_is_named_by_job_and_part(sign: str) -> None:
    """One part has the number of the whole: by that number, Slurm changes all tasks or components."""
    found = parse_job_rows(row("12", f"11{sign}1") + row("11", f"11{sign}2"))
    assert [(job.number, job.name) for job in found] == [("12", f"11{sign}1"), ("11", f"11{sign}2")]


@pytest.mark.parametrize("name", ["13", "7_[1-4%2]"])
def test_other_jobs_are_named_by_their_number(name: str) -> None:
    assert only(row("13", name)).name == "13"


def test_of_a_requeued_job_the_last_run_counts() -> None:
    found = only(row(start="5000", end="6000") + row(start="1000", end="2000"))
    assert (found.start, found.end) == (5000.0, 6000.0)


def test_the_state_of_a_cancelled_job_has_no_user() -> None:
    assert only(row(state="CANCELLED by 1000")).state == "CANCELLED"


def test_nodes_are_expanded() -> None:
    assert only(row(nodes="gpu[01-03],login")).nodes == ("gpu01", "gpu02", "gpu03", "login")


TRES_FORMS = {
    "gres/gpu=4": (4, None),
    "cpu=1,gres/gpu=1,mem=500M,node=1": (1, 500 << 20),
    "cpu=1,gres/gpu:a100=1,mem=1.5T": (0, 3 << 39),
    "cpu=1,gres/shard=4,mem=100": (0, 100 << 20),
    "cpu=1,node=1": (0, None),
    "": (0, None),
}


@pytest.mark.parametrize(("tres", "expected"), TRES_FORMS.items())
def test_gpus_and_memory_are_those_that_slurm_allocated(tres: str, expected: tuple[int, int | None]) -> None:
    found = only(row(tres=tres))
    assert (found.gpus, found.memory) == expected


COMMENTS = ["JS1:H4sIAAAA+/==", "a|b", "a^|^b", "two\nlines", "7^|^7^|^x\n", ""]


@pytest.mark.parametrize("comment", COMMENTS)
def test_any_comment_is_read_whole_and_hides_no_other_job(comment: str) -> None:
    found = parse_job_rows(row("6", "6") + row(comment=comment) + row("8", "8"))
    assert {"6", "8"} <= {job.number for job in found}
    assert next(job.comment for job in found if job.number == "7") in (comment, comment.strip())


SKIPPED = {
    "not begun": row(start="Unknown", end="Unknown", state="PENDING"),
    "a step": row("7.batch", "7.batch"),
    "cut": "7^|^7^|^COMPLETED^|^10",
    "another output": "slurm_load: error\n",
    "nothing": "",
}


@pytest.mark.parametrize("text", SKIPPED.values(), ids=SKIPPED)
def test_what_is_no_begun_job_is_skipped(text: str) -> None:
    assert parse_job_rows(text) == []


# scontrol prints a space after the comment.
SPACE = " "
ACTIVE = f"""\
JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=train
   UserId=dan(1000) GroupId=dan(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList=gpu1
   AdminComment=JS1:None{SPACE}
   WorkDir=/home/dan

JobId=13 JobName=other
   JobState=PENDING Reason=Resources Dependency=(null)
   Comment=AdminComment=no

"""


@pytest.mark.parametrize("kind", ["Het", "Pack"])
def test_active_components_are_named_as_in_the_accounting(kind: str) -> None:
    text = ACTIVE.replace("JobId=13 ", f"JobId=13 {kind}JobId=12 {kind}JobOffset=1 ")
    names = [job.name for job in parse_active_jobs(text)]
    assert names == ["11_1", "12+1"]


def test_active_jobs_and_their_comments() -> None:
    assert parse_active_jobs(ACTIVE) == [
        ActiveJob("12", "11_1", "RUNNING", "JS1:None"),
        ActiveJob("13", "13", "PENDING", ""),
    ]
    assert parse_active_jobs("No jobs in the system\n") == []


IMITATED = {
    "another comment": "   Comment=x\n   AdminComment=JS1:None\n",
    "another state": "   Comment=x\n   JobState=PENDING\n",
}


@pytest.mark.parametrize("lines", IMITATED.values(), ids=IMITATED)
def test_a_user_who_imitates_lines_of_scontrol_gets_no_comment(lines: str) -> None:
    """The name and the comment of a user can contain line breaks. A job with a comment of others is left."""
    text = f"JobId=5 JobName=x\n   JobState=RUNNING Reason=None\n   AdminComment=\n{lines}"
    (found,) = parse_active_jobs(text)
    assert (found.number, found.comment) == ("5", "(unclear)")


def test_a_user_who_imitates_another_job_does_not_hide_its_comment() -> None:
    imitated = "JobId=5 JobName=x\n\nJobId=6 JobName=\n   JobState=RUNNING Reason=None\n"
    real = "JobId=6 JobName=y\n   JobState=RUNNING Reason=None\n   AdminComment=kept\n"
    for text in (f"{imitated}\n{real}", f"{real}\n{imitated}"):
        assert ActiveJob("6", "6", "RUNNING", "(unclear)") in parse_active_jobs(text)


def script(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory as PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_times_are_requested_as_unix_seconds(commands: Path) -> None:
    script(commands, "sacct", f'echo "$SLURM_TIME_FORMAT $*" > {commands}/called')
    SlurmCommands(5.0).read_recent_jobs(600.0)
    called = (commands / "called").read_text()
    assert called.startswith("%s ")
    assert "-a -S now-600seconds -E now" in called


def test_without_ids_nothing_is_called(commands: Path) -> None:
    assert SlurmCommands(5.0).read_jobs([]) == []


def test_the_commands_that_write(commands: Path) -> None:
    for name in ("scontrol", "sacctmgr"):
        script(commands, name, f'echo "{name} $*" >> {commands}/called')
    slurm = SlurmCommands(5.0)
    slurm.write_while_running("11_2", "JS1:None")
    slurm.write_after_end("7", "JS1:None")
    assert (commands / "called").read_text().splitlines() == [
        "scontrol update job=11_2 AdminComment=JS1:None",
        "sacctmgr -i update job where jobid=7 set AdminComment=JS1:None",
    ]


@pytest.mark.parametrize(("printed", "version"), [("slurm-wlm 22.05.8", (22, 5)), ("slurm 23.02.0", (23, 2))])
def test_the_version(commands: Path, printed: str, version: tuple[int, int]) -> None:
    script(commands, "sacct", f"echo {printed}")
    assert SlurmCommands(5.0).version() == version


FAILURES = {
    "not installed": (None, "sacct is not installed here"),
    "fails": ("echo 'Slurm accounting storage is disabled' >&2; exit 1", "accounting storage is disabled"),
    "fails without a word": ("exit 3", "exit status 3"),
    "prints another thing": ("echo hello", "cannot find the version"),
    "crashes": ("kill -SEGV $$", "failed"),
}


@pytest.mark.parametrize(("body", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line(commands: Path, body: str | None, message: str) -> None:
    if body is not None:
        script(commands, "sacct", body)
    with pytest.raises(GpuledgerError, match=message) as raised:
        SlurmCommands(5.0).version()
    assert "\n" not in str(raised.value)


def test_a_command_that_hangs_is_killed(commands: Path) -> None:
    script(commands, "sacct", f"echo $$ > {commands}/pid; exec /bin/sleep 600")
    with pytest.raises(GpuledgerError, match=r"did not answer within 0\.5 s: check slurmctld"):
        SlurmCommands(0.5).version()
    assert not Path("/proc", (commands / "pid").read_text().strip(), "stat").exists()
