"""What doctor makes of what the driver and the kernel say: by table, without either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.nvml.checks import judge
from gpuledger.sources.nvml.kernel import Kernel, PciGpu
from gpuledger.sources.nvml.probe import Answer, GpuAnswer, InstanceAnswer

WORKS, FAILS, WARNING, UNKNOWN, SKIPPED = Verdict

GPU = GpuAnswer(
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
KERNEL = Kernel("570.86.15", (CARD, OTHER), NODES, frozenset({0, 1}))
NOTHING = Kernel(pci=())
MISSING = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"


def answer(*gpus: GpuAnswer, **changes: object) -> Answer:
    said: dict[str, object] = {
        "library": "/usr/lib/libnvidia-ml.so.570.86.15",
        "driver_version": "570.86.15",
        "library_version": "12.570.86.15",
        "gpus": list(gpus),
        "done": True,
    }
    return Answer(**(said | changes))  # type: ignore[arg-type]  # the test names the fields


def refused(code: str) -> Answer:
    return answer(driver_version="", library_version="", refused=code, call="nvmlInitWithFlags")


def absent(why: str = MISSING) -> Answer:
    return Answer(missing=why, done=True)


def find(
    told: Answer,
    kernel: Kernel = KERNEL,
    environment: Mapping[str, str] | None = None,
    chosen: tuple[str, ...] = (),
) -> list[Finding]:
    return list(judge(told, kernel, environment or {}, chosen))


def of(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def failing(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.verdict is FAILS]


def test_a_good_machine_has_only_works() -> None:
    findings = find(answer(GPU, SECOND))
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
    ("told", "kernel", "check", "words"),
    [
        pytest.param(
            absent(), Kernel(pci=(CARD,)), "driver.library", ["not found", "install"], id="no driver at all"
        ),
        pytest.param(
            absent(), KERNEL, "driver.library", ["toolkit", "570.86.15"], id="library not in the container"
        ),
        pytest.param(absent(), Kernel(pci=(), wsl=True), "driver.library", ["/usr/lib/wsl/lib"], id="wsl"),
        pytest.param(absent(), Kernel(pci=(), tegra=True), "driver.library", ["JetPack"], id="jetson"),
        pytest.param(
            absent("wrong ELF class: ELFCLASS32"),
            KERNEL,
            "driver.library",
            ["ELFCLASS32", "architecture"],
            id="32 bit",
        ),
        pytest.param(
            Answer(crashed="signal 11", call="loading"),
            KERNEL,
            "driver.library",
            ["signal 11", "reinstall"],
            id="crash on loading",
        ),
        pytest.param(
            Answer(crashed="exit code 1"),
            KERNEL,
            "driver.library",
            ["did not start", "reinstall gpuledger"],
            id="own fault",
        ),
        pytest.param(
            refused("DRIVER_NOT_LOADED"),
            Kernel(pci=(CARD,)),
            "driver.kernel",
            ["not loaded", "modprobe nvidia"],
            id="9",
        ),
        pytest.param(
            refused("LIB_RM_VERSION_MISMATCH"),
            replace(KERNEL, version="550.54.15"),
            "driver.answers",
            ["library is 570.86.15", "kernel driver 550.54.15", "reboot", "delete its pod"],
            id="18",
        ),
        pytest.param(refused("NO_PERMISSION"), KERNEL, "driver.answers", ["/dev/nvidiactl"], id="4"),
        pytest.param(refused("UNKNOWN"), KERNEL, "driver.answers", ["daemon-reload", "restart"], id="999"),
        pytest.param(refused("GPU_IS_LOST"), KERNEL, "driver.answers", ["reboot", "reseat"], id="15"),
        pytest.param(
            refused("NVML_77"), KERNEL, "driver.answers", ["NVML_77", "dmesg"], id="a code from the future"
        ),
        pytest.param(
            answer(hung="nvmlDeviceGetName of GPU 1", done=False),
            KERNEL,
            "driver.answers",
            ["within 5 s", "nvmlDeviceGetName of GPU 1", "reboot"],
            id="hangs",
        ),
        pytest.param(
            answer(crashed="signal 11", call="nvmlInit_v2", done=False, driver_version=""),
            KERNEL,
            "driver.answers",
            ["nvmlInit_v2", "signal 11", "one version"],
            id="crashes",
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
            ["/dev/nvidiactl is not here", "--device", "nvidia-modprobe"],
            id="no nodes",
        ),
        pytest.param(
            answer(refused="NO_DEVICES"),
            replace(KERNEL, nodes=(("/dev/nvidiactl", True),), minors=frozenset()),
            "driver.nodes",
            ["/dev/nvidiaN is not here"],
            id="only the control node",
        ),
        pytest.param(
            answer(refused="NO_DEVICES"), KERNEL, "gpu.listed", ["NVIDIA_VISIBLE_DEVICES=all"], id="no gpus"
        ),
        pytest.param(
            answer(GPU, GpuAnswer(1, "GPU-1", error="GPU_IS_LOST")),
            KERNEL,
            "gpu.listed",
            ["Xid", "drain"],
            id="lost",
        ),
        pytest.param(
            answer(GPU, GpuAnswer(1, error="RESET_REQUIRED")),
            KERNEL,
            "gpu.listed",
            ["--gpu-reset -i 1"],
            id="reset",
        ),
        pytest.param(
            answer(GPU, replace(SECOND, processes=None, processes_error="call: NO_PERMISSION")),
            KERNEL,
            "gpu.processes",
            ["GPU 1", "NO_PERMISSION", "root"],
            id="no list",
        ),
        pytest.param(
            answer(GPU, replace(SECOND, mig=True, mig_error="NO_PERMISSION")),
            KERNEL,
            "gpu.mig",
            ["GPU 1", "NVIDIA_MIG_MONITOR_DEVICES"],
            id="mig not readable",
        ),
        pytest.param(
            answer(GPU), KERNEL, "gpu.pci", ["0000:02:00.0", "dmesg", "reseat"], id="fell off the bus"
        ),
        pytest.param(
            answer(GPU),
            replace(KERNEL, pci=(CARD, replace(OTHER, driver="nouveau"))),
            "gpu.pci",
            ["nouveau", "blacklist nouveau"],
            id="nouveau",
        ),
    ],
)
def test_one_cause_is_one_failure_that_names_it_and_the_remedy(
    told: Answer, kernel: Kernel, check: str, words: list[str]
) -> None:
    findings = find(told, kernel)
    assert failing(findings) == [check]
    (finding,) = (finding for finding in findings if finding.verdict is FAILS)
    line = f"{finding.what}: {finding.why}: {finding.remedy}"
    assert not [word for word in words if word not in line], line


def test_without_a_gpu_hardware_and_library_are_named_once_and_the_rest_is_skipped() -> None:
    findings = find(absent(), NOTHING)
    assert failing(findings) == ["gpu.pci", "driver.library"]
    rest = [
        finding
        for finding in findings
        if finding.check not in ("gpu.pci", "driver.library", "driver.environment")
    ]
    assert {(finding.verdict, finding.why) for finding in rest} == {(SKIPPED, "because of: NVML library")}
    assert "simulator" in of(findings, "driver.library")[0].remedy


@pytest.mark.parametrize(
    ("environment", "told", "words"),
    [
        ({"NVML_MPS_DEVICE_ENUMERATION": "1"}, answer(GPU, SECOND), "unset NVML_MPS_DEVICE_ENUMERATION"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, absent(), "set NVIDIA_VISIBLE_DEVICES=all"),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, absent(), "set NVIDIA_VISIBLE_DEVICES=all"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute,video"}, absent(), "set NVIDIA_DRIVER_CAPABILITIES=utility"),
    ],
)
def test_a_variable_that_keeps_the_driver_away_is_the_cause(
    environment: dict[str, str], told: Answer, words: str
) -> None:
    findings = find(told, KERNEL, environment)
    assert failing(findings) == ["driver.environment"]
    assert words in of(findings, "driver.environment")[0].remedy


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"NVML_MPS_DEVICE_ENUMERATION": "0"}, answer(GPU, SECOND)),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, answer(GPU, SECOND)),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute"}, answer(GPU, SECOND)),
        (
            {"NVIDIA_DRIVER_CAPABILITIES": "compute, utility", "NVIDIA_VISIBLE_DEVICES": "all"},
            answer(GPU, SECOND),
        ),
    ],
)
def test_a_variable_that_does_no_harm_is_no_failure(environment: dict[str, str], told: Answer) -> None:
    assert failing(find(told, KERNEL, environment)) == []


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"persistence": 0}, "gpu.persistence", WARNING, "nvidia-smi -pm 1"),
        (
            {"persistence": None, "persistence_error": "NOT_SUPPORTED"},
            "gpu.persistence",
            SKIPPED,
            "no such mode",
        ),
        ({"persistence": None, "persistence_error": "TIMEOUT"}, "gpu.persistence", UNKNOWN, "TIMEOUT"),
        ({"accounting": 0}, "gpu.accounting", WARNING, "nvidia-smi -am 1"),
        ({"accounting": 0}, "gpu.accounting", WARNING, "--enable-accounting"),
        ({"mig": True}, "gpu.accounting", SKIPPED, "while MIG is on"),
        ({"mig": True}, "gpu.utilization", SKIPPED, "while MIG is on"),
        ({"mig": True}, "gpu.mig", WARNING, "nvidia-smi mig -i 1"),
        (
            {"mig": True, "instances": (InstanceAnswer("MIG-5", 2, 0, "3g.40gb"),)},
            "gpu.mig",
            WORKS,
            "2_0 3g.40gb MIG-5",
        ),
        ({"utilization_error": "NOT_SUPPORTED"}, "gpu.utilization", WARNING, "NOT_SUPPORTED"),
    ],
)
def test_modes_of_one_gpu_are_told_beside_those_of_the_other(
    changes: dict[str, object], check: str, verdict: Verdict, words: str
) -> None:
    findings = find(answer(GPU, replace(SECOND, **changes)))  # type: ignore[arg-type]  # the test names the fields
    assert failing(findings) == []
    (finding,) = (
        each for each in of(findings, check) if each.verdict is verdict and words in each.why + each.remedy
    )
    assert "GPU 1" in finding.what + finding.why


def test_gpus_alike_share_a_line() -> None:
    gpus = [replace(GPU, index=index, uuid=f"GPU-{index}", accounting=0) for index in (0, 1, 2, 4, 6, 7)]
    (finding,) = of(find(answer(*gpus)), "gpu.accounting")
    assert finding.why.startswith("off: GPUs 0-2, 4, 6-7;")


def test_without_accounting_mode_doctor_says_what_is_lost() -> None:
    (finding,) = of(find(answer(replace(GPU, accounting=0))), "gpu.accounting")
    assert "begin and end between two readings are lost" in finding.why
    assert "when they came to the GPU and left it" in finding.why


def test_a_driver_newer_on_disk_than_in_the_kernel_is_a_warning() -> None:
    findings = find(answer(GPU, SECOND), replace(KERNEL, version="550.1"))
    assert of(findings, "driver.answers")[0].verdict is WARNING
    assert failing(findings) == []


def test_a_gpu_that_was_not_given_to_the_container_is_not_missing() -> None:
    kernel = replace(KERNEL, nodes=(("/dev/nvidia0", True), ("/dev/nvidiactl", True)), minors=frozenset({0}))
    for card in (OTHER, replace(OTHER, minor=None)):
        findings = find(answer(GPU), replace(kernel, pci=(CARD, card)))
        assert failing(findings) == []
        assert of(findings, "gpu.pci")[1].verdict is SKIPPED


def test_a_gpu_given_to_a_virtual_machine_is_not_missing() -> None:
    findings = find(answer(GPU), replace(KERNEL, pci=(CARD, replace(OTHER, driver="vfio-pci", minor=None))))
    assert failing(findings) == []


def test_a_gpu_without_a_handle_is_named_by_its_address() -> None:
    findings = find(answer(GPU, GpuAnswer(1, error="GPU_IS_LOST")))
    assert "tells nothing of 0000:02:00.0" in of(findings, "gpu.pci")[0].why


def test_a_sleeping_gpu_is_a_warning() -> None:
    findings = find(answer(GPU, SECOND), replace(KERNEL, pci=(CARD, replace(OTHER, power="suspended"))))
    (finding,) = of(findings, "gpu.power")
    assert finding.verdict is WARNING
    assert "0000:02:00.0" in finding.why


@pytest.mark.parametrize("name", ["0", "gpu-0", "00000000:01:00.0"])
def test_only_chosen_gpus_are_judged(name: str) -> None:
    findings = find(
        answer(GPU, GpuAnswer(1, "GPU-1", "", SECOND.address, error="GPU_IS_LOST")), chosen=(name,)
    )
    assert failing(findings) == []


def test_a_chosen_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    findings = find(answer(GPU, SECOND), chosen=("0", "7"))
    (finding,) = (each for each in findings if each.verdict is FAILS)
    assert "names 7" in finding.why
    assert "0 (GPU-0), 1 (GPU-1)" in finding.remedy
