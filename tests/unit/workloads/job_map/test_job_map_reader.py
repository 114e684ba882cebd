"""JobMapReader: the directory in which a batch system's prolog records the job of each GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import FakeClock, gpu, instance
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.workload import Workload
from gpuledger.workloads.job_map.job_map_reader import (
    IgnoredFilesLog,
    JobMap,
    JobMapReader,
    job_map_allocations,
)
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs

ZERO = gpu(0, minor=1)
ONE = gpu(1, minor=0)
SMALL = instance(ONE, 3, 0, 0)
HALF = instance(ONE, 3, 1, 1)


class Directory:
    """Job files with modification times of a fake clock, and their reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.reads: list[str] = []
        self.reader = JobMapReader(path, clock=self.clock, read=self._read)

    def write(self, name: str, content: str) -> None:
        file = self.path / name
        file.write_bytes(content.encode("latin-1"))
        stamp = int(self.clock.unix() * 1e9)
        os.utime(file, ns=(stamp, stamp))

    def read_after(self, seconds: float = 10.0) -> list[tuple[str, str]]:
        self.clock.advance(seconds)
        return [(item.device.name, item.job) for item in self.reader.read().jobs]

    def _read(self, path: str) -> bytes:
        self.reads.append(path)
        return Path(path).read_bytes()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reads"),
    [
        ("0", "123\n", [("0", "123")]),
        ("0", "123", [("0", "123")]),
        ("0", "123\n124\n", [("0", "123"), ("0", "124")]),
        ("0", "123\r\n", [("0", "123")]),
        ("0", "123\n123\n", [("0", "123")]),
        ("1.3", "123\n", [("1/3", "123")]),
        ("01", "123\n", [("1", "123")]),
        ("0", "123[4].server\n", [("0", "123[4].server")]),
        ("0", "", []),
        ("0", "0\n", []),
        ("0", "\n\n", []),
        ("0", "\0\0\0\0", []),
        ("0", "12\0\0\n124\n", [("0", "124")]),
        ("0", "no job id\n", []),
        ("0", "x" * 200 + "\n", []),
        ("0.tmp", "123\n", []),
        (".0", "123\n", []),
        ("gpu0", "123\n", []),
    ],
)
def test_a_file_names_the_jobs_of_its_device(
    directory: Directory, name: str, content: str, reads: list[tuple[str, str]]
) -> None:
    directory.write(name, content)
    assert directory.read_after() == reads


def test_files_of_a_mig_instance_are_in_directories(directory: Directory) -> None:
    """What a prolog gets that writes to `DIR/MIG-GPU-UUID/GI/CI`."""
    name = "MIG-GPU-31b00009-0000-4000-8000-000000000001"
    (directory.path / name / "3").mkdir(parents=True)
    directory.write(f"{name}/3/1", "123\n")
    assert directory.read_after() == [(f"{name}/3/1", "123")]
    assert directory.reader.read().strange == ()


def test_other_names_are_kept_for_doctor_but_not_those_of_leftovers(directory: Directory) -> None:
    for name in ("gpu0", "0", ".0.swp", "0~", "#0#", "0.bak", "readme.txt"):
        directory.write(name, "123\n")
    (directory.path / "old").mkdir()
    (directory.path / ".git").mkdir()
    assert directory.read_after() == [("0", "123")]
    assert directory.reader.read().strange == ("gpu0", "old", "readme.txt")


def test_an_unreadable_file_is_kept_for_doctor(directory: Directory) -> None:
    directory.write("0", "123\n")
    directory.read_after()
    (directory.path / "0").unlink()
    (directory.path / "0").mkdir()
    # A link to itself.
    (directory.path / "1").symlink_to("1")
    directory.read_after()
    found = directory.reader.read()
    assert found.strange == ("0",)
    assert [name for name, _ in found.damaged] == ["1"]


def test_devices_come_in_order_of_number(directory: Directory) -> None:
    for name in ("10", "2", "2.7", "2.10"):
        directory.write(name, "1\n")
    assert [device for device, _ in directory.read_after()] == ["2", "2/7", "2/10", "10"]


def test_an_idle_device_is_counted(directory: Directory) -> None:
    directory.write("0", "")
    directory.write("1", "7\n")
    directory.read_after()
    assert (directory.reader.read().files, len(directory.reader.read())) == (2, 1)


def test_an_incomplete_last_line_is_ignored_at_first(directory: Directory) -> None:
    directory.write("0", "123\n12")
    assert directory.read_after(0.1) == [("0", "123")]
    assert directory.read_after(2.0) == [("0", "123"), ("0", "12")]


def test_a_file_that_is_being_rewritten_keeps_its_jobs(directory: Directory) -> None:
    directory.write("0", "123\n")
    directory.read_after()
    directory.write("0", "")
    assert directory.read_after(0.1) == [("0", "123")]
    directory.write("0", "124")
    assert directory.read_after(0.1) == [("0", "123")]
    directory.write("0", "124\n")
    assert directory.read_after(0.1) == [("0", "124")]


def test_an_emptied_file_is_idle_after_it_has_settled(directory: Directory) -> None:
    directory.write("0", "123\n")
    directory.read_after()
    directory.write("0", "")
    assert directory.read_after(2.0) == []


def test_a_file_with_a_time_in_the_future_is_accepted(directory: Directory) -> None:
    directory.clock.advance(3600.0)
    directory.write("0", "123")
    directory.clock.advance(-3600.0)
    assert directory.read_after(0.0) == [("0", "123")]


def test_a_removed_file_has_no_jobs(directory: Directory) -> None:
    directory.write("0", "123\n")
    directory.read_after()
    (directory.path / "0").unlink()
    assert directory.read_after() == []


def test_unchanged_files_are_not_read_again_and_give_an_equal_value(directory: Directory) -> None:
    directory.write("0", "123\n")
    directory.write("1", "124\n")
    directory.read_after()
    first = directory.reader.read()
    directory.reads.clear()
    directory.write("1", "125\n")
    assert directory.read_after() == [("0", "123"), ("1", "125")]
    assert [Path(path).name for path in directory.reads] == ["1"]
    assert directory.reader.read() == directory.reader.read()
    assert directory.reader.read() != first


def test_a_second_write_within_one_file_system_tick_is_seen(directory: Directory) -> None:
    directory.write("0", "123\n")
    assert directory.read_after(0.0) == [("0", "123")]
    directory.write("0", "124\n")
    assert directory.read_after(0.0) == [("0", "124")]


def test_an_unreadable_file_keeps_its_jobs(tmp_path: Path) -> None:
    clock = FakeClock()
    broken = False

    def read(path: str) -> bytes:
        if broken:
            raise PermissionError(13, "Permission denied", path)
        return Path(path).read_bytes()

    reader = JobMapReader(tmp_path, clock=clock, read=read)
    (tmp_path / "0").write_text("123\n")
    assert len(reader.read()) == 1
    broken = True
    (tmp_path / "0").write_text("12345\n")
    assert [item.job for item in reader.read().jobs] == ["123"]


def test_a_missing_job_mapping_directory_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match=r"No such file.*; .*--hpc-job-mapping-dir"):
        JobMapReader(tmp_path / "none", clock=FakeClock()).read()


def mapped(directory: Directory, **files: str) -> JobMap:
    for name, content in files.items():
        directory.write(name.removeprefix("_").replace("_", "."), content)
    directory.read_after()
    return directory.reader.read()


def test_each_job_on_one_device_has_an_allocation(directory: Directory) -> None:
    found = job_map_allocations(mapped(directory, _1="7\n8\n"), [ZERO, ONE])
    assert [(item.device, item.workload.job, item.found_by) for item in found] == [
        (ZERO, "7", "job_map"),
        (ZERO, "8", "job_map"),
    ]


def test_the_file_of_a_gpu_instance_allocates_all_its_compute_instances(directory: Directory) -> None:
    other = instance(ONE, 4, 0, 2)
    found = job_map_allocations(mapped(directory, _0_3="7\n"), [ZERO, ONE, SMALL, HALF, other])
    assert [item.device for item in found] == [SMALL, HALF]


def test_a_job_in_the_files_of_gpu_and_instance_has_one_allocation(directory: Directory) -> None:
    assert len(job_map_allocations(mapped(directory, _0="7\n", _0_3="7\n"), [ONE, SMALL])) == 1


def test_the_owner_equals_the_owner_of_its_processes(directory: Directory) -> None:
    jobs = SlurmJobs([SlurmJob("7", user="alice")])
    (found,) = job_map_allocations(mapped(directory, _0="7\n"), [ONE], jobs)
    assert found.workload == Workload(kind="slurm", job="7", user="alice", found_by="job_map")
    (other,) = job_map_allocations(mapped(directory, _0="7\n"), [ONE], kind="job")
    assert (other.workload.kind, other.workload.user) == ("job", "")


@pytest.mark.parametrize(
    ("written", "job"),
    [
        ("130", "130"),
        ("123_4", "130"),
        ("123_5", "123_5"),
        ("s5K1KKYAYG5D00", "131"),
        # Two jobs claim to be this task.
        ("9_1", "9_1"),
        ("130\n123_4", "130"),
    ],
)
def test_a_job_that_a_file_names_in_another_way_is_the_job_of_its_processes(
    directory: Directory, written: str, job: str
) -> None:
    task = SlurmJob("130", user="ann", array_job="123", array_task="4")
    twice = [SlurmJob(number, array_job="9", array_task="1") for number in ("140", "141")]
    jobs = SlurmJobs([task, SlurmJob("131", sluid="s5K1KKYAYG5D00", user="ann"), *twice])
    (found,) = job_map_allocations(mapped(directory, _0=f"{written}\n"), [ONE], jobs)
    assert (found.workload.job, found.workload.user) == (job, "ann" if jobs.get(job) else "")


def test_pipes_and_endless_files_are_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0")
    (tmp_path / "1").symlink_to("/dev/zero")
    (tmp_path / "2").write_text("815\n")
    found = JobMapReader(tmp_path, clock=FakeClock()).read()
    assert [(one.device.name, one.job) for one in found.jobs] == [("2", "815")]


def test_files_that_name_no_gpu_are_logged_once(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    log = IgnoredFilesLog()
    directory.write("GPU-99", "7\n")
    directory.write("notes", "7\n")
    directory.write("1", "7\n")
    for devices in ([], [ZERO], [ZERO]):
        log.log_new(directory.reader.read(), devices)
    (message,) = caplog.messages
    assert "have: GPU-99, notes; " in message
    directory.write("more", "7\n")
    log.log_new(directory.reader.read(), [ZERO])
    assert "have: more; " in caplog.messages[-1]
