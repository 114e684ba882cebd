"""The order of the checks, what stops them, and the report that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.app.diagnosis import run_checks
from gpuledger.host.commands import CommandResult
from gpuledger.model.checks import Finding, works
from gpuledger.selftest.checks import SelfTest
from gpuledger.selftest.report import write_report
from gpuledger.sources.nvml.probe import GpuProbeResult, ProbeResult
from gpuledger.sources.smi.settings import SmiSettings
from nvml.library import NvmlGpu, NvmlProcess, count
from nvml.machine import Machine
from observing import make_observer

ANSWERS = ProbeResult(
    library="/usr/lib/libnvidia-ml.so.1",
    driver_version="570.86.15",
    gpus=[GpuProbeResult(0, "GPU-0", "NVIDIA H100", processes=0)],
    done=True,
)
MISSING = ProbeResult(missing="libnvidia-ml.so.1: No such file or directory", done=True)
REFUSED = ProbeResult(
    library="/usr/lib/libnvidia-ml.so.1", refused="DRIVER_NOT_LOADED", call="nvmlInitWithFlags", done=True
)
MISMATCH = ProbeResult(
    library="/usr/lib/libnvidia-ml.so.570.1", refused="LIB_RM_VERSION_MISMATCH", call="nvmlInit_v2", done=True
)
HUNG = ProbeResult(library="/usr/lib/libnvidia-ml.so.1", call="nvmlInit_v2", hung="nvmlInit_v2")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus[:] = [NvmlGpu(NvmlProcess(11, sm=30))]
    machine.state.write()
    return machine


def no_smi(*_: object) -> CommandResult:
    return CommandResult(exit_code=-1, not_started="FileNotFoundError", detail="no such file")


def self_test(machine: Machine, folder: Path, probe: ProbeResult) -> SelfTest:
    return SelfTest(
        make_observer(machine),
        SmiSettings(),
        {},
        folder / "proc",
        folder / "sys",
        folder / "dev",
        run=no_smi,
        probe_driver=lambda: probe,
    )


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict.value for finding in findings}


def test_the_driver_comes_first_and_all_others_judge_one_observation(
    machine: Machine, tmp_path: Path
) -> None:
    test = self_test(machine, tmp_path, ANSWERS)
    findings = run_checks(test.checks())
    assert [finding.check for finding in findings[:3]] == [
        "driver.answers",
        "gpu.listed",
        "selftest.observation",
    ]
    # In a sandbox there are no device nodes and no kernel module, and the driver answers all the same.
    assert "fails" not in verdicts(findings).values()
    assert verdicts(findings)["selftest.nvidia_smi"] == "unknown"
    assert test.measured.observation is not None


@pytest.mark.parametrize(
    ("probe", "cause", "nodes"),
    [
        (MISSING, "driver.library", ()),
        (REFUSED, "driver.kernel", ()),
        (MISMATCH, "driver.answers", ("nvidiactl", "nvidia0")),
        (HUNG, "driver.answers", ("nvidiactl", "nvidia0")),
    ],
)
def test_a_driver_that_cannot_be_read_is_the_only_failure(
    machine: Machine, tmp_path: Path, probe: ProbeResult, cause: str, nodes: tuple[str, ...]
) -> None:
    (tmp_path / "dev").mkdir()
    for name in nodes:
        (tmp_path / "dev" / name).touch()
    findings = run_checks(self_test(machine, tmp_path, probe).checks())
    assert [finding.check for finding in findings if finding.verdict.value == "fails"] == [cause]
    assert {verdict for check, verdict in verdicts(findings).items() if check.startswith("selftest")} == {
        "skipped"
    }
    assert all(finding.why.startswith("because of: ") for finding in findings if "selftest" in finding.check)
    assert machine.calls == 0


def test_a_container_without_device_nodes_gets_the_remedy(machine: Machine, tmp_path: Path) -> None:
    module = tmp_path / "sys" / "module" / "nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text("570.86.15\n")
    (tmp_path / "dev").mkdir()
    findings = run_checks(self_test(machine, tmp_path, REFUSED).checks())
    (failed,) = [finding for finding in findings if finding.verdict.value == "fails"]
    assert failed.why == "the driver is loaded but /dev/nvidiactl does not exist"
    assert "--device /dev/nvidiactl" in failed.remedy


def test_a_driver_that_fails_after_the_probe_is_a_failure_with_its_remedy(
    machine: Machine, tmp_path: Path
) -> None:
    machine.state.errors["nvmlInitWithFlags"] = 4
    machine.state.write()
    found = {finding.check: finding for finding in run_checks(self_test(machine, tmp_path, ANSWERS).checks())}
    assert found["selftest.observation"].verdict.value == "fails"
    assert "NO_PERMISSION" in found["selftest.observation"].why
    assert found["selftest.energy_counter"].why == "because of: observation"


def test_no_mode_is_set(machine: Machine, tmp_path: Path) -> None:
    run_checks(self_test(machine, tmp_path, ANSWERS).checks())
    assert count(machine.library, "nvmlDeviceSetAccountingMode") == 0


def test_the_report_has_every_figure_and_no_identifier(machine: Machine, tmp_path: Path) -> None:
    machine.state.names[11] = b"/home/alice/secret-model"
    machine.state.gpus[0].errors["nvmlDeviceGetFanSpeed"] = 999
    machine.state.write()
    test = self_test(machine, tmp_path, ANSWERS)
    report = write_report(run_checks(test.checks()), test, "1.2.3")
    for title in (
        "Findings",
        "Machine",
        "GPUs",
        "Refresh of the energy counter",
        "Energy and power",
        "Course",
    ):
        assert f"\n## {title}\n" in report
    assert "| 0 | process (measured) |" in report or "| 0 | pending" in report
    assert "nvmlDeviceGetFanSpeed: UNKNOWN" in report
    assert [
        word for word in ("GPU-0000", "1650000000", "00000000:01", "alice", "secret") if word in report
    ] == []


def test_a_message_with_identifiers_is_masked(machine: Machine, tmp_path: Path) -> None:
    uuids = ("GPU-5a0f3c1e-1111-2222-3333-444455556666", "MIG-5a0f3c1e-1111-2222-3333-444455556666")
    texts = " ".join((*uuids, "0000:3B:00.0", "00000000:3b:00.0", "GPU-seconds", "12:30:00.5"))
    report = write_report([works("a", "b", texts)], self_test(machine, tmp_path, ANSWERS), "1")
    assert "| works | b | (UUID) (UUID) (address) (address) GPU-seconds 12:30:00.5 | - |" in report


def test_every_row_of_a_table_has_the_cells_of_its_head(machine: Machine, tmp_path: Path) -> None:
    machine.state.gpus[0].name = "a | b"
    machine.state.write()
    test = self_test(machine, tmp_path, ANSWERS)
    widths: set[int] = set()
    for line in write_report(run_checks(test.checks()), test, "1").splitlines():
        if line.startswith("|"):
            widths.add(line.replace("\\|", "").count("|"))
            assert len(widths) == 1, line
        else:
            widths.clear()
