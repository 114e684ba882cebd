"""Driver checks of doctor for given probe results and kernel facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.devices import Gpu, Instance
from gpuledger.sources.nvml.checks import find_driver_problems
from gpuledger.sources.nvml.kernel_facts import KernelFacts, PciGpu
from gpuledger.sources.nvml.probe import GpuProbeResult, ProbeResult

WORKS, FAILS, WARNING, UNKNOWN, SKIPPED = Verdict

GPU = GpuProbeResult(
    0,
    "GPU-0",
    "NVIDIA H100",
    "00000000:01:00.0",
    0,
    persistence=1,
    accounting=1,
    processes=2,
    utilization_error="",
)
SECOND = replace(GPU, index=1, uuid="GPU-1", address="00000000:02:00.0", minor=1)
CARD = PciGpu("0000:01:00.0", "nvidia", 0, "active")
OTHER = PciGpu("0000:02:00.0", "nvidia", 1, "active")
NODES = (("/dev/nvidia0", True), ("/dev/nvidia1", True), ("/dev/nvidiactl", True))
KERNEL = KernelFacts("570.86.15", (CARD, OTHER), NODES, frozenset({0, 1}))
NOTHING = KernelFacts(pci=())
MISSING = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"


def probe_result(*gpus: GpuProbeResult, **changes: object) -> ProbeResult:
    fields: dict[str, object] = {
        "library": "/usr/lib/libnvidia-ml.so.570.86.15",
        "driver_version": "570.86.15",
        "library_version": "12.570.86.15",
        "gpus": list(gpus),
        "done": True,
    }
    return ProbeResult(**(fields | changes))  # type: ignore[arg-type]  # the test names the fields


def refused(code: str) -> ProbeResult:
    return probe_result(driver_version="", library_version="", refused=code, call="nvmlInitWithFlags")


def absent(why: str = MISSING) -> ProbeResult:
    return ProbeResult(missing=why, done=True)


def find_problems(
    result: ProbeResult,
    kernel: KernelFacts = KERNEL,
    environment: Mapping[str, str] | None = None,
    selected: tuple[str, ...] = (),
) -> list[Finding]:
    return list(find_driver_problems(result, kernel, environment or {}, selected))


def findings_of(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def failed_checks(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.verdict is FAILS]


def test_all_checks_pass_on_a_healthy_machine() -> None:
    findings = find_problems(probe_result(GPU, SECOND))
    assert {finding.verdict for finding in findings} == {WORKS}
    assert [finding.check for finding in findings] == [
        "driver.environment",
        "driver.library",
        "driver.kernel",
        "driver.nodes",
        "driver.answers",
        "gpu.listed",
        "gpu.persistence",
        "gpu.accounting",
        "gpu.mig",
        "gpu.processes",
        "gpu.utilization",
        "gpu.pci",
        "gpu.power",
    ]


@pytest.mark.parametrize(
    ("result", "kernel", "check", "words"),
    [
        pytest.param(
            absent(),
            KernelFacts(pci=(CARD,)),
            "driver.library",
            ["not found", "install"],
            id="no driver at all",
        ),
        pytest.param(
            absent(), KERNEL, "driver.library", ["toolkit", "570.86.15"], id="library not in the container"
        ),
        pytest.param(
            absent(), KernelFacts(pci=(), wsl=True), "driver.library", ["/usr/lib/wsl/lib"], id="wsl"
        ),
        pytest.param(absent(), KernelFacts(pci=(), tegra=True), "driver.library", ["JetPack"], id="jetson"),
        pytest.param(
            absent("wrong ELF class: ELFCLASS32"),
            KERNEL,
            "driver.library",
            ["ELFCLASS32", "architecture"],
            id="32 bit",
        ),
        pytest.param(
            ProbeResult(crashed="signal 11", call="loading"),
            KERNEL,
            "driver.library",
            ["signal 11", "reinstall"],
            id="crash on loading",
        ),
        pytest.param(
            ProbeResult(crashed="exit code 1"),
            KERNEL,
            "driver.library",
            ["did not start", "reinstall gpuledger"],
            id="probe does not start",
        ),
        pytest.param(
            refused("DRIVER_NOT_LOADED"),
            KernelFacts(pci=(CARD,)),
            "driver.kernel",
            ["not loaded", "modprobe nvidia"],
            id="driver not loaded",
        ),
        pytest.param(
            refused("LIB_RM_VERSION_MISMATCH"),
            replace(KERNEL, version="550.54.15"),
            "driver.answers",
            ["library is 570.86.15", "kernel driver 550.54.15", "reboot", "delete its pod"],
            id="version mismatch",
        ),
        pytest.param(
            refused("NO_PERMISSION"), KERNEL, "driver.answers", ["/dev/nvidiactl"], id="no permission"
        ),
        pytest.param(
            refused("UNKNOWN"), KERNEL, "driver.answers", ["daemon-reload", "restart"], id="unknown error"
        ),
        pytest.param(
            refused("GPU_IS_LOST"), KERNEL, "driver.answers", ["reboot", "reseat"], id="gpu is lost"
        ),
        pytest.param(refused("NVML_77"), KERNEL, "driver.answers", ["NVML_77", "dmesg"], id="unknown code"),
        pytest.param(
            probe_result(hung="nvmlDeviceGetName of GPU 1", done=False),
            KERNEL,
            "driver.answers",
            ["within 5 s", "nvmlDeviceGetName of GPU 1", "reboot"],
            id="call hangs",
        ),
        pytest.param(
            probe_result(crashed="signal 11", call="nvmlInit_v2", done=False, driver_version=""),
            KERNEL,
            "driver.answers",
            ["nvmlInit_v2", "signal 11", "one version"],
            id="call crashes",
        ),
        pytest.param(
            refused("NO_PERMISSION"),
            replace(KERNEL, nodes=(("/dev/nvidiactl", False),)),
            "driver.nodes",
            ["usermod"],
            id="nodes 0600",
        ),
        pytest.param(absent(), replace(KERNEL, nodes=()), "driver.library", ["toolkit"], id="bare container"),
        pytest.param(
            refused("DRIVER_NOT_LOADED"),
            replace(KERNEL, nodes=(), minors=frozenset()),
            "driver.nodes",
            ["/dev/nvidiactl does not exist", "--device", "nvidia-modprobe"],
            id="no nodes",
        ),
        pytest.param(
            probe_result(refused="NO_DEVICES"),
            replace(KERNEL, nodes=(("/dev/nvidiactl", True),), minors=frozenset()),
            "driver.nodes",
            ["/dev/nvidiaN does not exist"],
            id="only the control node",
        ),
        pytest.param(
            probe_result(refused="NO_DEVICES"),
            KERNEL,
            "gpu.listed",
            ["NVIDIA_VISIBLE_DEVICES=all"],
            id="no gpus",
        ),
        pytest.param(
            probe_result(GPU, GpuProbeResult(1, "GPU-1", error="GPU_IS_LOST")),
            KERNEL,
            "gpu.listed",
            ["Xid", "drain"],
            id="lost gpu",
        ),
        pytest.param(
            probe_result(GPU, GpuProbeResult(1, error="RESET_REQUIRED")),
            KERNEL,
            "gpu.listed",
            ["--gpu-reset -i 1"],
            id="reset required",
        ),
        pytest.param(
            probe_result(GPU, replace(SECOND, processes=None, processes_error="call: NO_PERMISSION")),
            KERNEL,
            "gpu.processes",
            ["GPU 1", "NO_PERMISSION", "root"],
            id="no process list",
        ),
        pytest.param(
            probe_result(GPU, replace(SECOND, mig=True, mig_error="NO_PERMISSION")),
            KERNEL,
            "gpu.mig",
            ["GPU 1", "NVIDIA_MIG_MONITOR_DEVICES"],
            id="mig not readable",
        ),
        pytest.param(
            probe_result(GPU), KERNEL, "gpu.pci", ["0000:02:00.0", "dmesg", "reseat"], id="fell off the bus"
        ),
        pytest.param(
            probe_result(GPU),
            replace(KERNEL, pci=(CARD, replace(OTHER, driver="nouveau"))),
            "gpu.pci",
            ["nouveau", "blacklist nouveau"],
            id="nouveau",
        ),
    ],
)
def test_each_cause_is_reported_as_one_failure_with_its_remedy(
    result: ProbeResult, kernel: KernelFacts, check: str, words: list[str]
) -> None:
    findings = find_problems(result, kernel)
    assert failed_checks(findings) == [check]
    (finding,) = (finding for finding in findings if finding.verdict is FAILS)
    line = f"{finding.what}: {finding.why}: {finding.remedy}"
    assert not [word for word in words if word not in line], line


def test_without_a_gpu_hardware_and_library_fail_and_other_checks_are_skipped() -> None:
    findings = find_problems(absent(), NOTHING)
    assert failed_checks(findings) == ["gpu.pci", "driver.library"]
    rest = [
        finding
        for finding in findings
        if finding.check not in ("gpu.pci", "driver.library", "driver.environment")
    ]
    assert {(finding.verdict, finding.why) for finding in rest} == {(SKIPPED, "because of: NVML library")}
    assert "gpuledger demo" in findings_of(findings, "driver.library")[0].remedy


@pytest.mark.parametrize(
    ("environment", "result", "words"),
    [
        (
            {"NVML_MPS_DEVICE_ENUMERATION": "1"},
            probe_result(GPU, SECOND),
            "unset NVML_MPS_DEVICE_ENUMERATION",
        ),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, absent(), "set NVIDIA_VISIBLE_DEVICES=all"),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, absent(), "set NVIDIA_VISIBLE_DEVICES=all"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute,video"}, absent(), "set NVIDIA_DRIVER_CAPABILITIES=utility"),
    ],
)
def test_an_environment_variable_that_hides_the_driver_is_the_cause(
    environment: dict[str, str], result: ProbeResult, words: str
) -> None:
    findings = find_problems(result, KERNEL, environment)
    assert failed_checks(findings) == ["driver.environment"]
    assert words in findings_of(findings, "driver.environment")[0].remedy


@pytest.mark.parametrize(
    ("environment", "result"),
    [
        ({"NVML_MPS_DEVICE_ENUMERATION": "0"}, probe_result(GPU, SECOND)),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, probe_result(GPU, SECOND)),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute"}, probe_result(GPU, SECOND)),
        (
            {"NVIDIA_DRIVER_CAPABILITIES": "compute, utility", "NVIDIA_VISIBLE_DEVICES": "all"},
            probe_result(GPU, SECOND),
        ),
    ],
)
def test_a_harmless_environment_variable_is_not_a_failure(
    environment: dict[str, str], result: ProbeResult
) -> None:
    assert failed_checks(find_problems(result, KERNEL, environment)) == []


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"persistence": 0}, "gpu.persistence", WARNING, "nvidia-smi -pm 1"),
        ({"persistence": None}, "gpu.persistence", SKIPPED, "does not support the mode"),
        ({"persistence": None, "persistence_error": "TIMEOUT"}, "gpu.persistence", UNKNOWN, "TIMEOUT"),
        ({"accounting": 0}, "gpu.accounting", WARNING, "nvidia-smi -am 1"),
        ({"accounting": 0}, "gpu.accounting", WARNING, "--enable-accounting"),
        ({"mig": True}, "gpu.accounting", SKIPPED, "while MIG is on"),
        ({"mig": True}, "gpu.utilization", SKIPPED, "while MIG is on"),
        ({"mig": True}, "gpu.mig", WARNING, "nvidia-smi mig -i 1"),
        (
            {"mig": True, "instances": (Instance("MIG-5", Gpu("GPU-1", 1), 2, 0, 0, "3g.40gb"),)},
            "gpu.mig",
            WORKS,
            "2_0 3g.40gb MIG-5",
        ),
        ({"utilization_error": "NOT_SUPPORTED"}, "gpu.utilization", WARNING, "NOT_SUPPORTED"),
    ],
)
def test_modes_are_reported_per_gpu(
    changes: dict[str, object], check: str, verdict: Verdict, words: str
) -> None:
    findings = find_problems(probe_result(GPU, replace(SECOND, **changes)))  # type: ignore[arg-type]  # the test names the fields
    assert failed_checks(findings) == []
    (finding,) = (
        each
        for each in findings_of(findings, check)
        if each.verdict is verdict and words in each.why + each.remedy
    )
    assert "GPU 1" in finding.what + finding.why


def test_gpus_with_the_same_result_share_a_line() -> None:
    gpus = [replace(GPU, index=index, uuid=f"GPU-{index}", accounting=0) for index in (0, 1, 2, 4, 6, 7)]
    (finding,) = findings_of(find_problems(probe_result(*gpus)), "gpu.accounting")
    assert finding.why.startswith("off: GPUs 0-2, 4, 6-7;")


def test_without_accounting_mode_doctor_reports_the_consequences() -> None:
    (finding,) = findings_of(find_problems(probe_result(replace(GPU, accounting=0))), "gpu.accounting")
    assert "start and end between two readings are not recorded" in finding.why
    assert "exact start and end of other processes" in finding.why


def test_a_driver_newer_on_disk_than_in_the_kernel_is_a_warning() -> None:
    findings = find_problems(probe_result(GPU, SECOND), replace(KERNEL, version="550.1"))
    assert findings_of(findings, "driver.answers")[0].verdict is WARNING
    assert failed_checks(findings) == []


def test_a_gpu_without_access_from_the_container_is_not_missing() -> None:
    kernel = replace(KERNEL, nodes=(("/dev/nvidia0", True), ("/dev/nvidiactl", True)), minors=frozenset({0}))
    for card in (OTHER, replace(OTHER, minor=None)):
        findings = find_problems(probe_result(GPU), replace(kernel, pci=(CARD, card)))
        assert failed_checks(findings) == []
        assert findings_of(findings, "gpu.pci")[1].verdict is SKIPPED


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback"])
def test_a_gpu_passed_through_to_a_virtual_machine_is_not_missing(driver: str) -> None:
    findings = find_problems(
        probe_result(GPU), replace(KERNEL, pci=(CARD, replace(OTHER, driver=driver, minor=None)))
    )
    assert failed_checks(findings) == []
    assert any(f"virtual machine ({driver})" in finding.why for finding in findings)


@pytest.mark.parametrize("driver", ["", "vfio-pci"])
def test_a_lost_gpu_fails_beside_one_that_the_driver_does_not_have(driver: str) -> None:
    other = PciGpu("0000:03:00.0", driver)
    for card in (OTHER, replace(OTHER, minor=None)):
        findings = find_problems(probe_result(GPU), replace(KERNEL, pci=(CARD, card, other)))
        verdicts = {finding.what: finding.verdict for finding in findings_of(findings, "gpu.pci")[1:]}
        assert verdicts == {
            "GPU at 0000:02:00.0": FAILS,
            "GPU at 0000:03:00.0": SKIPPED if driver else WARNING,
        }


def test_a_gpu_without_a_handle_is_reported_by_its_pci_address() -> None:
    findings = find_problems(probe_result(GPU, GpuProbeResult(1, error="GPU_IS_LOST")))
    assert "does not report 0000:02:00.0" in findings_of(findings, "gpu.pci")[0].why


def test_a_sleeping_gpu_is_a_warning() -> None:
    findings = find_problems(
        probe_result(GPU, SECOND), replace(KERNEL, pci=(CARD, replace(OTHER, power="suspended")))
    )
    (finding,) = findings_of(findings, "gpu.power")
    assert finding.verdict is WARNING
    assert "0000:02:00.0" in finding.why


@pytest.mark.parametrize("name", ["0", "gpu-0", "00000000:01:00.0"])
def test_only_selected_gpus_are_checked(name: str) -> None:
    findings = find_problems(
        probe_result(GPU, GpuProbeResult(1, "GPU-1", "", SECOND.address, error="GPU_IS_LOST")),
        selected=(name,),
    )
    assert failed_checks(findings) == []


def test_a_missing_selected_gpu_is_reported_with_the_available_ones() -> None:
    findings = find_problems(probe_result(GPU, SECOND), selected=("0", "7"))
    (finding,) = (each for each in findings if each.verdict is FAILS)
    assert "PCI bus id 7" in finding.why
    assert "0 (GPU-0), 1 (GPU-1)" in finding.remedy
