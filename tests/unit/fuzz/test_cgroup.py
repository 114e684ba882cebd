"""Fuzz tests of the evidence for owners: cgroups, process titles, environments, gres.conf, job files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from builders import FakeClock
from fuzzing import bounded, check_text, corpus_files, file_name, fuzzed, mutated_files
from gpuledger.model.text import MAX_NAME_LENGTH, decode_utf8
from gpuledger.sources.replay.cgroup_masking import mask_cgroup
from gpuledger.sources.replay.masks import Masks
from gpuledger.workloads.cgroup import OWNER_KINDS, parse_cgroup
from gpuledger.workloads.job_map.job_map_reader import JobMapReader
from gpuledger.workloads.slurm.device_files import (
    parse_mig_capabilities,
    refs_from_device_files,
    refs_from_device_rules,
)
from gpuledger.workloads.slurm.gres_conf import expand_hostlist, gpu_numbering, parse_gres_conf
from gpuledger.workloads.slurm.jobs import gpus_in_environments, has_gpus, job_id_in_title, parse_environment

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
    text = decode_utf8(raw)
    found = parse_cgroup(text)
    assert found.kind in OWNER_KINDS
    assert found.uid is None or 0 <= found.uid < 10**10
    texts = (
        found.pod_uid,
        found.container_id,
        found.container,
        found.runtime,
        found.job,
        found.step,
        found.unit,
    )
    check_text(*texts)
    assert all(len(one) <= MAX_NAME_LENGTH for one in texts)
    mask_cgroup(text, Masks(b"key")).encode()


def check_gres(raw: bytes) -> None:
    lines = parse_gres_conf(decode_utf8(raw))
    numbering = gpu_numbering(lines, "gpu1")
    assert len(numbering.files) < 1_000_000
    for group in numbering.files:
        refs_from_device_files(group)


def check_environment(raw: bytes) -> None:
    found = parse_environment(raw)
    gpus_in_environments([found, found])
    has_gpus([found])
    job_id_in_title(raw)
    refs_from_device_rules(decode_utf8(raw), parse_mig_capabilities(decode_utf8(raw), decode_utf8(raw)))


@pytest.mark.parametrize("path", corpus_files("cgroup"), ids=file_name)
def test_a_corpus_cgroup_has_an_owner(path: Path) -> None:
    with bounded():
        check_owner(path.read_bytes())


@fuzzed
@given(mutated_files("cgroup", *LINES))
def test_a_mutated_cgroup_has_an_owner(raw: bytes) -> None:
    with bounded():
        check_owner(raw)


@pytest.mark.parametrize("path", corpus_files("gres"), ids=file_name)
def test_a_corpus_gres_conf_is_parsed(path: Path) -> None:
    with bounded():
        check_gres(path.read_bytes())


@fuzzed
@given(mutated_files("gres", *GRES))
def test_a_mutated_gres_conf_is_parsed(raw: bytes) -> None:
    with bounded():
        check_gres(raw)


@pytest.mark.parametrize("path", corpus_files("environ"), ids=file_name)
def test_a_corpus_environment_is_parsed(path: Path) -> None:
    with bounded():
        check_environment(path.read_bytes())


@fuzzed
@given(
    mutated_files("environ", b"SLURM_JOB_ID=", b"SLURM_JOB_GPUS=", b"c 195:0 rwm\n", b"gpu0/gi1/access 4\n")
)
def test_a_mutated_environment_is_parsed(raw: bytes) -> None:
    with bounded():
        check_environment(raw)


def check_job_map(folder: Path, raw: bytes) -> None:
    (folder / "0").write_bytes(raw)
    for age in (0.0, 100.0):
        found = JobMapReader(folder, clock=FakeClock(unix=(folder / "0").stat().st_mtime + age)).read()
        assert all(0 < len(one.job) <= 64 and one.job.isascii() for one in found.jobs)


@pytest.mark.parametrize("path", corpus_files("job-file"), ids=file_name)
def test_a_corpus_job_file_gives_valid_job_ids(path: Path, tmp_path: Path) -> None:
    with bounded():
        check_job_map(tmp_path, path.read_bytes())


@fuzzed
@given(raw=mutated_files("job-file", b"123_4", b"0", b"123[4].server"))
def test_a_mutated_job_file_gives_valid_job_ids(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_job_map(tmp_path_factory.getbasetemp(), raw)


LONG = 100_000
LONG_INPUTS = {
    "segments": lambda: parse_cgroup("0::" + "/a" * LONG),
    "colons": lambda: parse_cgroup("0::/" + ":" * LONG),
    "prefixes of a pod": lambda: parse_cgroup("0::/" + "-pod" * LONG),
    "dots upwards": lambda: parse_cgroup("0::" + "/.." * LONG),
    "escapes": lambda: parse_cgroup("0::/machine-" + "\\x2d" * LONG + ".scope"),
    "lines": lambda: parse_cgroup("0::/a\n" * LONG),
    "brackets of a list": lambda: expand_hostlist("a[0-999999999]" * 500),
    "ranges before one that is empty": lambda: expand_hostlist("a[0-4096]b[0-4096]c[0-4096][9-1]"),
    "brackets in brackets": lambda: expand_hostlist("[" * LONG),
    "nested ranges": lambda: expand_hostlist("a[0-9999]b[0-9999]c[0-9999]d[0-9999]"),
    "words of a gres.conf": lambda: parse_gres_conf("a=" * LONG + "\n" + 'b="' * LONG),
    "one word of a gres.conf": lambda: parse_gres_conf("a" * LONG),
    "blanks of a gres.conf": lambda: parse_gres_conf("a" + " " * LONG + "b" + " " * LONG),
}


@pytest.mark.parametrize("name", LONG_INPUTS)
def test_long_input_is_read_in_bounded_time(name: str) -> None:
    with bounded():
        LONG_INPUTS[name]()
