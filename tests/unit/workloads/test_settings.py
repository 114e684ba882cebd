"""Settings, indexes and checks of Slurm jobs and of the job-mapping directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.app.diagnosis import run_checks
from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.load import load_values
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.devices import Gpu
from gpuledger.model.settings import build_settings, declared_settings
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.checks import job_map_checks
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.owner_index_setup import open_job_map_index, open_slurm_index
from gpuledger.workloads.slurm.checks import slurm_checks
from gpuledger.workloads.slurm.jobs import NO_JOBS
from gpuledger.workloads.slurm.settings import SlurmSettings, is_slurm_enabled
from slurm_tree import SCOPE, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def settings_for(machine: Machine, enabled: str = "true") -> SlurmSettings:
    return SlurmSettings(enabled, cgroup_root=str(machine.cgroup), gres_conf=str(machine.gres_conf))


def slurm_findings(machine: Machine, enabled: str = "true") -> list[Finding]:
    checks = slurm_checks(settings_for(machine, enabled), procfs=str(machine.proc), signs=())
    return run_checks(checks)


def test_auto_enables_slurm_if_it_has_a_cgroup_or_a_directory(machine: Machine, tmp_path: Path) -> None:
    auto = settings_for(machine, "auto")
    assert not is_slurm_enabled(auto, "/sys", signs=())
    assert is_slurm_enabled(auto, "/sys", signs=(tmp_path,))
    machine.folder(f"{SCOPE}/system")
    assert is_slurm_enabled(auto, "/sys", signs=())
    assert not is_slurm_enabled(settings_for(machine, "false"), "/sys", signs=(tmp_path,))


def test_the_cgroup_tree_is_below_sysfs_unless_it_is_set() -> None:
    assert SlurmSettings().root("/host/sys") == Path("/host/sys/fs/cgroup")
    assert SlurmSettings(cgroup_root="/c").root("/host/sys") == Path("/c")


def test_the_slurm_index_reads_the_configured_paths(machine: Machine) -> None:
    machine.gres("Name=gpu File=/dev/nvidia5")
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    host = HostSettings(procfs=str(machine.proc))
    passwd = machine.proc / "passwd"
    passwd.write_text("mira:x:1000:1000::/:/bin/sh\n")
    polled = open_slurm_index(settings_for(machine), host, FakeClock(), PasswdUsers(str(passwd)))
    assert polled is not None
    assert polled.refresh()
    (job,) = polled.value
    assert (job.devices[0].name, job.user) == ("5", "mira")


def test_the_slurm_index_loads_its_reader_with_the_first_job_and_fails_without_a_cgroup_tree(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostSettings(procfs=str(machine.proc))
    machine.folder(f"{SCOPE}/system")
    polled = open_slurm_index(settings_for(machine), host, FakeClock())
    assert polled is not None
    with monkeypatch.context() as without:
        # An import fails.
        without.setitem(sys.modules, "gpuledger.workloads.slurm.job_reader", None)
        assert polled.refresh()
        assert (polled.value, polled.health.success) == (NO_JOBS, True)
    machine.job("7", SLURM_JOB_ID="7")
    assert polled.refresh()
    assert [job.job for job in polled.value] == ["7"]
    nowhere = SlurmSettings(enabled="true", cgroup_root=str(tmp_path / "none"))
    polled = open_slurm_index(nowhere, host, FakeClock())
    assert polled is not None
    assert not polled.refresh()
    assert "--slurm-cgroup-root" in polled.health.error


def test_doctor_skips_slurm_on_a_machine_without_it(machine: Machine) -> None:
    (finding,) = slurm_findings(machine, "auto")
    assert (finding.verdict, finding.why) == (Verdict.SKIPPED, "no Slurm on this machine")


def test_doctor_counts_jobs_and_those_with_gpus(machine: Machine) -> None:
    machine.gres("AutoDetect=nvml")
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    machine.job("8", pid=200, SLURM_JOB_ID="8")
    machine.folder(f"{SCOPE}/job_6")
    jobs, gres = slurm_findings(machine)
    assert jobs.verdict is gres.verdict is Verdict.WORKS
    assert jobs.why == "2 running, 1 of them with GPUs; 1 cgroups of ended jobs left behind"


@pytest.mark.parametrize(
    ("variables", "verdict", "remedy"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "9"}, Verdict.WARNING, "--slurm-gres-conf"),
        ({}, Verdict.UNKNOWN, ""),
    ],
)
def test_doctor_says_why_gpus_of_jobs_are_not_known(
    machine: Machine, variables: dict[str, str], verdict: Verdict, remedy: str
) -> None:
    machine.gres("Name=gpu File=/dev/nvidia0")
    machine.job("7", **variables)
    jobs, _ = slurm_findings(machine)
    assert jobs.verdict is verdict
    assert "1 of 1 jobs" in jobs.why
    assert remedy in jobs.remedy


def test_doctor_counts_jobs_with_an_unknown_part_of_their_gpus(machine: Machine) -> None:
    machine.gres("AutoDetect=nvml")
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", SLURM_SHARDS_ON_NODE="1")
    machine.job("8", pid=200, SLURM_JOB_ID="8", SLURM_JOB_GPUS="1")
    works, shares, _ = slurm_findings(machine)
    assert (works.verdict, shares.verdict) == (Verdict.WORKS, Verdict.WARNING)
    assert shares.why == "the part of their GPUs that 1 of 2 jobs have is not known"


def test_doctor_warns_about_a_configured_gres_conf_that_does_not_exist(machine: Machine) -> None:
    _, gres = slurm_findings(machine)
    assert (gres.verdict, gres.why) == (Verdict.WARNING, f"{machine.gres_conf} does not exist")


def test_doctor_fails_without_a_cgroup_tree(machine: Machine) -> None:
    machine.cgroup.rmdir()
    jobs, _ = slurm_findings(machine)
    assert jobs.verdict is Verdict.FAILS
    assert "--slurm-cgroup-root" in jobs.remedy


def test_without_a_job_mapping_directory_there_is_no_index(tmp_path: Path) -> None:
    assert open_job_map_index(JobMapSettings(), FakeClock()) is None
    (tmp_path / "0").write_text("7\n")
    polled = open_job_map_index(JobMapSettings(str(tmp_path)), FakeClock())
    assert polled is not None
    assert polled.refresh()
    assert len(polled.value) == 1


@pytest.mark.parametrize(
    ("files", "verdict"), [(None, Verdict.FAILS), ([], Verdict.WARNING), (["0", "1"], Verdict.WORKS)]
)
def test_doctor_reads_the_job_mapping_directory(
    tmp_path: Path, files: list[str] | None, verdict: Verdict
) -> None:
    folder = tmp_path / "jobs"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).write_text("7\n")
    (finding,) = run_checks(job_map_checks(JobMapSettings(str(folder)), FakeClock()))
    assert finding.verdict is verdict


ZERO, ONE = (Gpu(f"GPU-31b00009-0000-4000-8000-00000000000{index}", index, minor=index) for index in range(2))
JOB_FILES: list[tuple[dict[str, str], list[str]]] = [
    ({"0": "7\n", ONE.uuid: "8\n", "1.3": "", ".lock": "x", "0~": "9\n"}, []),
    ({"0": "7\n", "gpu1": "8\n"}, ["names of no GPU: gpu1"]),
    ({"0": "7\n", "8": "8\n"}, ["no GPU of this machine has these names, or several have: 8"]),
    ({"0": "7\n", "GPU-0f": "8\n"}, ["no GPU of this machine has these names, or several have: GPU-0f"]),
    ({"0": "7\n", "GPU-": "8\n"}, ["names of no GPU: GPU-"]),
    ({"0": "7\n", ZERO.uuid: "8\n"}, [f"0 and {ZERO.uuid} are of one GPU and have different jobs"]),
    ({"0": "7\n", ZERO.uuid: "7\n"}, []),
    ({"0": "7\n", "1": "see log\n"}, ["1: 'see log' is no job id"]),
]


@pytest.mark.parametrize(("files", "problems"), JOB_FILES)
def test_doctor_names_files_of_the_job_mapping_directory_without_effect(
    tmp_path: Path, files: dict[str, str], problems: list[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    settings = JobMapSettings(str(tmp_path))
    first, *others = run_checks(job_map_checks(settings, FakeClock(), lambda: (ZERO, ONE)))
    assert first.verdict is Verdict.WORKS
    assert [one.verdict for one in others] == [Verdict.WARNING] * len(problems)
    assert all(one.why.startswith(problem) for one, problem in zip(others, problems, strict=True))


def test_doctor_skips_a_job_mapping_directory_that_is_not_set() -> None:
    (check,) = job_map_checks(JobMapSettings(), FakeClock())
    (finding,) = check.run()
    assert finding.verdict is Verdict.SKIPPED


def test_documented_flags_set_their_settings() -> None:
    groups = {"slurm": SlurmSettings, "jobs": JobMapSettings, "containers": ContainerSettings}
    line = ["--slurm", "false", "--slurm-cgroup-root", "/c", "--slurm-gres-conf", "/g"]
    line += [
        "--hpc-job-mapping-dir",
        "/j",
        "--hpc-job-kind",
        "job",
        "--docker-socket",
        "",
        "--podman-socket",
        "/p",
    ]
    given = parse_flags(build_parser("serve", "", "", groups), groups.values(), line, {})
    values = load_values(groups.values(), given.flags, {}, None)
    assert build_settings(SlurmSettings, values) == SlurmSettings("false", "/c", "/g")
    assert build_settings(JobMapSettings, values) == JobMapSettings("/j", "job")
    assert build_settings(ContainerSettings, values) == ContainerSettings("", "/p")


@pytest.mark.parametrize(("written", "meant"), [(True, "true"), ("off", "false"), ("auto", "auto")])
def test_slurm_enabled_accepts_yaml_booleans(written: object, meant: str) -> None:
    (enabled,) = (item for name, item, _ in declared_settings(SlurmSettings) if name == "enabled")
    assert enabled.parse(written) == meant
