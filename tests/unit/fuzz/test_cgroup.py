"""Laws of the texts by which a process's owner is told: cgroups, titles, environments, maps of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from builders import FakeClock
from fuzzing import bounded, check_text, fuzzed, kept, mutated, named
from gpuledger.model.text import LONGEST_NAME, from_bytes
from gpuledger.sources.replay.cgroups import mask_cgroup
from gpuledger.sources.replay.masks import Masks
from gpuledger.workloads.cgroup import KINDS, owner
from gpuledger.workloads.job_map.files import JobMapReader
from gpuledger.workloads.slurm.gres import expand, numbering, parse_gres
from gpuledger.workloads.slurm.job import gpus_said, has_gpus, job_in_title, parse_environment
from gpuledger.workloads.slurm.reader import parse_caps, refs_of_files, refs_of_rules

LINES = (
    b"0::/",
    b"/kubepods.slice",
    b"docker-",
    b".scope",
    b"\\x2d",
    b"user-1000.slice",
    b" (deleted)",
    b"/..",
)
GRES = (
    b"NodeName=",
    b"File=/dev/nvidia[0-7]",
    b"AutoDetect=nvml",
    b"[0-999999999]",
    b"MultipleFiles=",
    b"\\\n",
)


def check_owner(raw: bytes) -> None:
    text = from_bytes(raw)
    found = owner(text)
    assert found.kind in KINDS
    assert found.uid is None or 0 <= found.uid < 10**10
    told = (
        found.pod_uid,
        found.container_id,
        found.container,
        found.runtime,
        found.job,
        found.step,
        found.unit,
    )
    check_text(*told)
    assert all(len(one) <= LONGEST_NAME for one in told)
    mask_cgroup(text, Masks(b"key")).encode()


def check_gres(raw: bytes) -> None:
    lines = parse_gres(from_bytes(raw))
    counted = numbering(lines, "gpu1")
    assert len(counted.files) < 1_000_000
    for group in counted.files:
        refs_of_files(group)


def check_environment(raw: bytes) -> None:
    found = parse_environment(raw)
    gpus_said([found, found])
    has_gpus([found])
    job_in_title(raw)
    refs_of_rules(from_bytes(raw), parse_caps(from_bytes(raw), from_bytes(raw)))


@pytest.mark.parametrize("path", kept("cgroup"), ids=named)
def test_a_kept_cgroup_has_an_owner(path: Path) -> None:
    with bounded():
        check_owner(path.read_bytes())


@fuzzed
@given(mutated("cgroup", *LINES))
def test_any_cgroup_has_an_owner(raw: bytes) -> None:
    with bounded():
        check_owner(raw)


@pytest.mark.parametrize("path", kept("gres"), ids=named)
def test_a_kept_gres_conf_is_read(path: Path) -> None:
    with bounded():
        check_gres(path.read_bytes())


@fuzzed
@given(mutated("gres", *GRES))
def test_any_gres_conf_is_read(raw: bytes) -> None:
    with bounded():
        check_gres(raw)


@pytest.mark.parametrize("path", kept("environ"), ids=named)
def test_a_kept_environment_is_read(path: Path) -> None:
    with bounded():
        check_environment(path.read_bytes())


@fuzzed
@given(mutated("environ", b"SLURM_JOB_ID=", b"SLURM_JOB_GPUS=", b"c 195:0 rwm\n", b"gpu0/gi1/access 4\n"))
def test_any_environment_is_read(raw: bytes) -> None:
    with bounded():
        check_environment(raw)


def check_job_map(folder: Path, raw: bytes) -> None:
    (folder / "0").write_bytes(raw)
    for age in (0.0, 100.0):
        found = JobMapReader(folder, clock=FakeClock(unix=(folder / "0").stat().st_mtime + age)).read()
        assert all(0 < len(one.job) <= 64 and one.job.isascii() for one in found)


@pytest.mark.parametrize("path", kept("job-file"), ids=named)
def test_a_kept_file_of_jobs_names_jobs(path: Path, tmp_path: Path) -> None:
    with bounded():
        check_job_map(tmp_path, path.read_bytes())


@fuzzed
@given(raw=mutated("job-file", b"123_4", b"0", b"123[4].server"))
def test_any_file_of_jobs_names_jobs(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_job_map(tmp_path_factory.getbasetemp(), raw)


LONG = 100_000
ENDLESS = {
    "segments": lambda: owner("0::" + "/a" * LONG),
    "colons": lambda: owner("0::/" + ":" * LONG),
    "prefixes of a pod": lambda: owner("0::/" + "-pod" * LONG),
    "dots upwards": lambda: owner("0::" + "/.." * LONG),
    "escapes": lambda: owner("0::/machine-" + "\\x2d" * LONG + ".scope"),
    "lines": lambda: owner("0::/a\n" * LONG),
    "brackets of a list": lambda: expand("a[0-999999999]" * 500),
    "ranges before one that is empty": lambda: expand("a[0-4096]b[0-4096]c[0-4096][9-1]"),
    "brackets in brackets": lambda: expand("[" * LONG),
    "nested ranges": lambda: expand("a[0-9999]b[0-9999]c[0-9999]d[0-9999]"),
    "words of a gres.conf": lambda: parse_gres("a=" * LONG + "\n" + 'b="' * LONG),
    "one word of a gres.conf": lambda: parse_gres("a" * LONG),
    "blanks of a gres.conf": lambda: parse_gres("a" + " " * LONG + "b" + " " * LONG),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_long_is_not_long_to_read(name: str) -> None:
    with bounded():
        ENDLESS[name]()
