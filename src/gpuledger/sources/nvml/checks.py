"""Checks of `doctor` for the driver: library, kernel module, device nodes and responses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.checks import (
    Check,
    Finding,
    Subject,
    Verdict,
    caused_by,
    fails,
    skipped,
    unknown,
    warning,
    works,
)
from gpuledger.sources.nvml.gpu_checks import find_gpu_problems, find_pci_problems
from gpuledger.sources.nvml.kernel_facts import KernelFacts
from gpuledger.sources.nvml.library import LIBRARY_NAME
from gpuledger.sources.nvml.probe import ProbeResult

_ENVIRONMENT: Final = Subject("driver.environment", "environment")
_LIBRARY: Final = Subject("driver.library", "NVML library")
_KERNEL: Final = Subject("driver.kernel", "kernel driver")
_NODES: Final = Subject("driver.nodes", "device nodes")
_ANSWERS: Final = Subject("driver.answers", "driver")

_IN_A_CONTAINER: Final = (
    "in a container: run it with the NVIDIA container toolkit (`docker run --gpus all`, in Kubernetes "
    "`runtimeClassName: nvidia`), NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility"
)
_WHY_NOT_STARTED: Final = (
    "" if getattr(sys, "frozen", False) else "; `python -c 'import gpuledger.sources.nvml.probe'` shows why"
)
_KERNEL_LOG: Final = "`dmesg | grep -iE 'nvrm|xid'`"
_REMEDIES: Final = {
    "NO_PERMISSION": "run as root, or as a user with access to /dev/nvidiactl and /dev/nvidia*",
    "INSUFFICIENT_POWER": "connect the power cables of the card, then reboot",
    "IRQ_ISSUE": f"check the kernel log ({_KERNEL_LOG}); reboot",
    "GPU_IS_LOST": (
        f"look for the Xid in {_KERNEL_LOG}, then reboot; if it happens again, reseat or replace the card"
    ),
    "UNKNOWN": (
        "in a container, access to the devices may have been lost (`systemctl daemon-reload` on the machine "
        f"causes this): restart the container; otherwise check {_KERNEL_LOG}"
    ),
    "TIMEOUT": f"check {_KERNEL_LOG}; reboot",
}


def driver_check(
    selected: tuple[str, ...],
    environment: Mapping[str, str],
    read_kernel: Callable[[], KernelFacts],
    probe: Callable[[], ProbeResult],
) -> Check:
    """Build one Check for the whole driver: its Findings share causes, and one probe serves all.

    `selected` are the GPUs of `--devices`. `read_kernel` is called before `probe`, because the probe wakes a
    sleeping GPU.
    """

    def findings() -> Iterator[Finding]:
        kernel = read_kernel()
        yield from find_driver_problems(probe(), kernel, environment, selected)

    # `probe` limits each driver call itself.
    return Check("driver", _ANSWERS.what, findings, limit=300.0)


def find_driver_problems(
    result: ProbeResult, kernel: KernelFacts, environment: Mapping[str, str], selected: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield Findings in order of dependency, so that a cause comes before its effects."""
    harm = _check_environment(environment, result)
    yield harm
    if not result.gpus:
        # Start with the PCI bus: without a GPU all other checks fail too.
        yield from find_pci_problems(result, kernel)
    cause = _name_failed(harm)
    cause_or_library = cause or ("" if result.library else _LIBRARY.what)
    for finding in (
        _check_library(result, kernel, cause),
        _check_kernel(result, kernel, cause_or_library),
        _check_nodes(result, kernel, cause_or_library),
    ):
        yield finding
        cause = cause or _name_failed(finding)
    answers = _check_answers(result, kernel, cause)
    yield answers
    yield from find_gpu_problems(result, selected, "" if result.gpus else cause or _name_failed(answers))
    if result.gpus:
        yield from find_pci_problems(result, kernel)


def _name_failed(finding: Finding) -> str:
    return finding.what if finding.verdict is Verdict.FAILS else ""


def _check_environment(environment: Mapping[str, str], result: ProbeResult) -> Finding:
    """Look for an environment variable that causes the failure; one that does no harm is ignored."""
    if environment.get("NVML_MPS_DEVICE_ENUMERATION", "0") not in ("", "0"):
        return fails(
            *_ENVIRONMENT,
            "NVML_MPS_DEVICE_ENUMERATION is set: the driver then reports only MPS",
            "unset NVML_MPS_DEVICE_ENUMERATION for gpuledger",
        )
    fine = works(*_ENVIRONMENT, "no variable hides the driver from gpuledger")
    if result.gpus:
        return fine
    devices = environment.get("NVIDIA_VISIBLE_DEVICES")
    if devices in ("void", "none", ""):
        return fails(
            *_ENVIRONMENT,
            f"NVIDIA_VISIBLE_DEVICES={devices}: the container runtime gives this container no GPU",
            "set NVIDIA_VISIBLE_DEVICES=all in the container's environment; do not request a GPU",
        )
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"utility", "all"} & {word.strip() for word in capabilities.split(",")}:
        return fails(
            *_ENVIRONMENT,
            f"NVIDIA_DRIVER_CAPABILITIES={capabilities} lacks utility: the container runtime leaves "
            f"{LIBRARY_NAME} out",
            "set NVIDIA_DRIVER_CAPABILITIES=utility in the container's environment",
        )
    return fine


def _check_library(result: ProbeResult, kernel: KernelFacts, cause: str) -> Finding:
    if result.library:
        version = f", NVML {result.library_version}" if result.library_version else ""
        return works(*_LIBRARY, f"{result.library}{version}")
    if cause:
        return skipped(*_LIBRARY, caused_by(cause))
    if "No such file" in result.missing:
        return fails(*_LIBRARY, f"{LIBRARY_NAME} not found", _install_remedy(kernel))
    if result.missing:
        return fails(
            *_LIBRARY,
            f"{LIBRARY_NAME} cannot be loaded: {result.missing}",
            "install the driver's library for this machine's architecture and C library; "
            "a statically linked or musl Python cannot load it",
        )
    if result.crashed and not result.call:
        return fails(
            *_LIBRARY,
            f"the probe process did not start ({result.crashed})",
            f"reinstall gpuledger{_WHY_NOT_STARTED}",
        )
    how = f"no answer within {result.limit:g} s" if result.hung else result.crashed
    return fails(
        *_LIBRARY,
        f"loading {LIBRARY_NAME}: {how}",
        f"reinstall the NVIDIA driver; see {_KERNEL_LOG}",
    )


def _install_remedy(kernel: KernelFacts) -> str:
    if kernel.wsl:
        return "in WSL it comes with the driver of Windows: `export LD_LIBRARY_PATH=/usr/lib/wsl/lib`"
    if kernel.tegra:
        return "on a Jetson, install a release of JetPack that has nvidia-smi"
    if kernel.version:
        return (
            f"{_IN_A_CONTAINER}; on the machine itself: install the user part of driver {kernel.version} "
            "(Debian: libnvidia-ml1, Ubuntu: libnvidia-compute)"
        )
    return (
        "install the NVIDIA driver (Debian: `apt install nvidia-driver`, Ubuntu: `ubuntu-drivers install`) "
        "and reboot; to see gpuledger without a GPU: `gpuledger demo`"
    )


def _check_kernel(result: ProbeResult, kernel: KernelFacts, cause: str) -> Finding:
    if result.refused == "DRIVER_NOT_LOADED" and not kernel.version:
        return fails(
            *_KERNEL,
            "the kernel module nvidia is not loaded",
            "`modprobe nvidia`; if that fails, `dkms status` shows whether the module was built for this "
            "kernel (`uname -r`) and `mokutil --sb-state` whether secure boot rejects it",
        )
    if kernel.version:
        return works(*_KERNEL, f"{kernel.version} loaded")
    if kernel.wsl and not cause:
        return works(*_KERNEL, "in Windows (WSL)")
    if cause:
        return skipped(*_KERNEL, caused_by(cause))
    return unknown(*_KERNEL, "no version in /proc/driver/nvidia or /sys/module/nvidia")


def _check_nodes(result: ProbeResult, kernel: KernelFacts, cause: str) -> Finding:
    refused = [path for path, usable in kernel.nodes if not usable]
    if refused:
        return fails(
            *_NODES,
            f"no permission to read and write {', '.join(refused)}",
            "run as root, or as a member of the group that `ls -l /dev/nvidia*` names "
            "(`usermod -aG GROUP USER`, then log in again)",
        )
    if any(path.endswith("nvidiactl") for path, _ in kernel.nodes) and kernel.minors:
        return works(*_NODES, f"{', '.join(path for path, _ in kernel.nodes)} readable and writable")
    if kernel.wsl:
        return works(*_NODES, "/dev/dxg (WSL)")
    missing = (
        "/dev/nvidiaN" if any(path.endswith("nvidiactl") for path, _ in kernel.nodes) else "/dev/nvidiactl"
    )
    if cause:
        return skipped(*_NODES, caused_by(cause))
    if kernel.version and not result.gpus:
        return fails(
            *_NODES,
            f"the driver is loaded but {missing} does not exist",
            f"{_IN_A_CONTAINER}, or `--device /dev/nvidiactl --device /dev/nvidia0`; on the machine itself: "
            "`nvidia-modprobe -c 0 -u`, or `nvidia-smi` once as root",
        )
    return unknown(*_NODES, f"{missing} does not exist")


def _check_answers(result: ProbeResult, kernel: KernelFacts, cause: str) -> Finding:
    if result.hung and result.library:
        return fails(
            *_ANSWERS,
            f"does not answer within {result.limit:g} s ({result.hung})",
            f"look for Xid and NVRM lines in {_KERNEL_LOG}; stop all processes on the GPU and run "
            "`nvidia-smi --gpu-reset -i N`, or reboot",
        )
    if result.crashed and result.library:
        return fails(
            *_ANSWERS,
            f"{result.call} crashed the probe process ({result.crashed})",
            "reinstall the driver, so that library and kernel module have one version",
        )
    if result.refused == "LIB_RM_VERSION_MISMATCH":
        library = _library_version(result.library)
        loaded = kernel.version or "of another version"
        return fails(
            *_ANSWERS,
            f"LIB_RM_VERSION_MISMATCH: the library is {library}, the loaded kernel driver {loaded}",
            "reboot, or stop all processes on the GPUs and reload the driver (`rmmod nvidia_uvm nvidia_drm "
            "nvidia_modeset nvidia && modprobe nvidia`); then restart gpuledger "
            "(in Kubernetes: delete its pod)",
        )
    if result.driver_version:
        return _check_versions(result, kernel)
    if cause:
        return skipped(*_ANSWERS, caused_by(cause))
    remedy = _REMEDIES.get(result.refused, f"check the kernel log: {_KERNEL_LOG}")
    if result.refused == "DRIVER_NOT_LOADED":
        remedy = (
            f"{_IN_A_CONTAINER}; on the machine itself: `nvidia-smi` once as root creates the device nodes"
        )
    why = f"{result.call}: {result.refused}" if result.refused else "no driver version"
    return fails(*_ANSWERS, why, remedy)


def _check_versions(result: ProbeResult, kernel: KernelFacts) -> Finding:
    if kernel.version and kernel.version != result.driver_version:
        return warning(
            *_ANSWERS,
            f"the library belongs to driver {result.driver_version}, the kernel has loaded {kernel.version}",
            "to complete the driver update, reboot or reload the driver",
        )
    return works(*_ANSWERS, f"driver {result.driver_version} answers")


def _library_version(path: str) -> str:
    """Return the version at the end of `libnvidia-ml.so.570.86.15`, or the file name if it has none."""
    name = Path(path).name
    version = name.removeprefix("libnvidia-ml.so.")
    return version if "." in version else name
