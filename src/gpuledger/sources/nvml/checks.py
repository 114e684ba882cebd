"""What `doctor` says of the driver: its library, its kernel module, its device nodes, and how it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, Verdict, because, fails, skipped, unknown, warning, works
from gpuledger.sources.nvml.gpu_checks import gpu_findings, pci_findings
from gpuledger.sources.nvml.kernel import Kernel
from gpuledger.sources.nvml.library import LIBRARY
from gpuledger.sources.nvml.probe import Answer

ENVIRONMENT: Final = "driver.environment"
LIBRARY_CHECK: Final = "driver.library"
KERNEL: Final = "driver.kernel"
NODES: Final = "driver.nodes"
ANSWERS: Final = "driver.answers"

_WHAT: Final = {
    ENVIRONMENT: "environment",
    LIBRARY_CHECK: "NVML library",
    KERNEL: "kernel driver",
    NODES: "device nodes",
    ANSWERS: "driver",
}
_IN_A_CONTAINER: Final = (
    "in a container: run it with the NVIDIA container toolkit (`docker run --gpus all`, in Kubernetes "
    "`runtimeClassName: nvidia`), NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility"
)
_KERNEL_LOG: Final = "`dmesg | grep -iE 'nvrm|xid'`"
_REFUSALS: Final = {
    "NO_PERMISSION": "run as root, or as a user who may read and write /dev/nvidiactl and /dev/nvidia*",
    "INSUFFICIENT_POWER": "connect the power cables of the card, then reboot",
    "IRQ_ISSUE": f"look into the kernel log ({_KERNEL_LOG}); reboot",
    "GPU_IS_LOST": (
        f"look for the Xid in {_KERNEL_LOG}, then reboot; if it comes back, reseat or replace the card"
    ),
    "UNKNOWN": (
        "in a container, access to the devices may have been lost (`systemctl daemon-reload` on the machine "
        f"does that): restart the container; else look into {_KERNEL_LOG}"
    ),
    "TIMEOUT": f"look into {_KERNEL_LOG}; reboot",
}


def driver_check(
    chosen: tuple[str, ...],
    environment: Mapping[str, str],
    look: Callable[[], Kernel],
    ask: Callable[[], Answer],
) -> Check:
    """Everything of the driver in one Check: its Findings share causes, and it is asked once.

    `chosen` are the GPUs of `--devices`. `look` is called before `ask`: asking wakes a GPU that sleeps.
    """

    def findings() -> Iterator[Finding]:
        kernel = look()
        yield from judge(ask(), kernel, environment, chosen)

    # `ask` has its own limit for each call of the driver.
    return Check("driver", "driver", findings, limit=300.0)


def judge(
    answer: Answer, kernel: Kernel, environment: Mapping[str, str], chosen: tuple[str, ...]
) -> Iterator[Finding]:
    """Findings from what was seen, in the order in which one thing needs the other."""
    trap = _trap(environment, answer)
    yield trap or works(ENVIRONMENT, _WHAT[ENVIRONMENT], "no variable keeps the driver from this program")
    if not answer.gpus:
        # No hardware, no driver: what is on the bus explains the rest.
        yield from pci_findings(answer, kernel)
    cause = _WHAT[ENVIRONMENT] if trap else ""
    for finding in (
        _library(answer, kernel, cause),
        _kernel(answer, kernel, cause or _broken_library(answer)),
        _nodes(answer, kernel, cause or _broken_library(answer)),
    ):
        yield finding
        cause = cause or (finding.what if finding.verdict is Verdict.FAILS else "")
    answers = _answers(answer, kernel, cause)
    yield answers
    cause = cause or (answers.what if answers.verdict is Verdict.FAILS else "")
    yield from gpu_findings(answer, chosen, "" if answer.gpus else cause)
    if answer.gpus:
        yield from pci_findings(answer, kernel)


def _trap(environment: Mapping[str, str], answer: Answer) -> Finding | None:
    """A variable that is the cause of what is missing; one that does no harm here is no finding."""
    what = _WHAT[ENVIRONMENT]
    if environment.get("NVML_MPS_DEVICE_ENUMERATION", "0") not in ("", "0"):
        return fails(
            ENVIRONMENT,
            what,
            "NVML_MPS_DEVICE_ENUMERATION is set: the driver then tells of MPS and of nothing else",
            "unset NVML_MPS_DEVICE_ENUMERATION for gpuledger",
        )
    if answer.gpus:
        return None
    devices = environment.get("NVIDIA_VISIBLE_DEVICES")
    if devices in ("void", "none", ""):
        return fails(
            ENVIRONMENT,
            what,
            f"NVIDIA_VISIBLE_DEVICES={devices}: the container runtime gives this container no GPU",
            "set NVIDIA_VISIBLE_DEVICES=all in the container's environment; do not request a GPU",
        )
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"utility", "all"} & {word.strip() for word in capabilities.split(",")}:
        return fails(
            ENVIRONMENT,
            what,
            f"NVIDIA_DRIVER_CAPABILITIES={capabilities} lacks utility: the container runtime leaves "
            f"{LIBRARY} out",
            "set NVIDIA_DRIVER_CAPABILITIES=utility in the container's environment",
        )
    return None


def _broken_library(answer: Answer) -> str:
    return "" if answer.library else _WHAT[LIBRARY_CHECK]


def _library(answer: Answer, kernel: Kernel, cause: str) -> Finding:
    what = _WHAT[LIBRARY_CHECK]
    if answer.library:
        version = f", NVML {answer.library_version}" if answer.library_version else ""
        return works(LIBRARY_CHECK, what, f"{answer.library}{version}")
    if cause:
        return skipped(LIBRARY_CHECK, what, because(cause))
    if "No such file" in answer.missing:
        return fails(LIBRARY_CHECK, what, f"{LIBRARY} not found", _install(kernel))
    if answer.missing:
        return fails(
            LIBRARY_CHECK,
            what,
            f"{LIBRARY} cannot be loaded: {answer.missing}",
            "install the driver's library for this machine's architecture and C library; "
            "a statically linked or musl Python cannot load it",
        )
    if answer.crashed and not answer.call:
        return fails(
            LIBRARY_CHECK,
            what,
            f"the program that asks the driver did not start ({answer.crashed})",
            "reinstall gpuledger; `python -c 'import gpuledger.sources.nvml.probe'` shows why",
        )
    how = f"no answer within {answer.limit:g} s" if answer.hung else answer.crashed
    return fails(
        LIBRARY_CHECK, what, f"loading {LIBRARY}: {how}", f"reinstall the NVIDIA driver; see {_KERNEL_LOG}"
    )


def _install(kernel: Kernel) -> str:
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
        "and reboot; to see gpuledger without a GPU: `gpuledger serve --source simulator`"
    )


def _kernel(answer: Answer, kernel: Kernel, cause: str) -> Finding:
    what = _WHAT[KERNEL]
    if answer.refused == "DRIVER_NOT_LOADED" and not kernel.version:
        return fails(
            KERNEL,
            what,
            "the kernel module nvidia is not loaded",
            "`modprobe nvidia`; if that fails, `dkms status` tells whether the module was built for this "
            "kernel (`uname -r`) and `mokutil --sb-state` whether secure boot refuses it",
        )
    if kernel.version:
        return works(KERNEL, what, f"{kernel.version} loaded")
    if kernel.wsl and not cause:
        return works(KERNEL, what, "in Windows (WSL)")
    if cause:
        return skipped(KERNEL, what, because(cause))
    return unknown(KERNEL, what, "its version is not to be seen in /proc/driver/nvidia or /sys/module/nvidia")


def _nodes(answer: Answer, kernel: Kernel, cause: str) -> Finding:
    what = _WHAT[NODES]
    refused = [path for path, usable in kernel.nodes if not usable]
    if refused:
        return fails(
            NODES,
            what,
            f"no permission to read and write {', '.join(refused)}",
            "run as root, or as a member of the group that `ls -l /dev/nvidia*` names "
            "(`usermod -aG GROUP USER`, then log in again)",
        )
    if any(path.endswith("nvidiactl") for path, _ in kernel.nodes) and kernel.minors:
        return works(NODES, what, f"{', '.join(path for path, _ in kernel.nodes)} readable and writable")
    if kernel.wsl:
        return works(NODES, what, "/dev/dxg (WSL)")
    missing = (
        "/dev/nvidiaN" if any(path.endswith("nvidiactl") for path, _ in kernel.nodes) else "/dev/nvidiactl"
    )
    if cause:
        return skipped(NODES, what, because(cause))
    if kernel.version and not answer.gpus:
        return fails(
            NODES,
            what,
            f"the driver is loaded but {missing} is not here",
            f"{_IN_A_CONTAINER}, or `--device /dev/nvidiactl --device /dev/nvidia0`; on the machine itself: "
            "`nvidia-modprobe -c 0 -u`, or `nvidia-smi` once as root",
        )
    return unknown(NODES, what, f"there is no {missing} to be seen")


def _answers(answer: Answer, kernel: Kernel, cause: str) -> Finding:
    what = _WHAT[ANSWERS]
    if answer.hung and answer.library:
        return fails(
            ANSWERS,
            what,
            f"does not answer within {answer.limit:g} s ({answer.hung})",
            f"look for Xid and NVRM lines in {_KERNEL_LOG}; end what uses the GPU and "
            "`nvidia-smi --gpu-reset -i N`, or reboot",
        )
    if answer.crashed and answer.library:
        return fails(
            ANSWERS,
            what,
            f"{answer.call} ended the program that asked it ({answer.crashed})",
            "reinstall the driver, so that library and kernel module are of one version",
        )
    if answer.refused == "LIB_RM_VERSION_MISMATCH":
        library = _version_of(answer.library)
        loaded = kernel.version or "of another version"
        return fails(
            ANSWERS,
            what,
            f"LIB_RM_VERSION_MISMATCH: the library is {library}, the loaded kernel driver {loaded}",
            "reboot, or stop what uses the GPUs and reload the driver (`rmmod nvidia_uvm nvidia_drm "
            "nvidia_modeset nvidia && modprobe nvidia`); then restart gpuledger "
            "(in Kubernetes: delete its pod)",
        )
    if answer.driver_version:
        return _answering(answer, kernel)
    if cause:
        return skipped(ANSWERS, what, because(cause))
    remedy = _REFUSALS.get(answer.refused, f"look into the kernel log: {_KERNEL_LOG}")
    if answer.refused == "DRIVER_NOT_LOADED":
        remedy = f"{_IN_A_CONTAINER}; on the machine itself: `nvidia-smi` once as root makes the device nodes"
    return fails(ANSWERS, what, f"{answer.call}: {answer.refused or 'no version told'}", remedy)


def _answering(answer: Answer, kernel: Kernel) -> Finding:
    what = _WHAT[ANSWERS]
    if kernel.version and kernel.version != answer.driver_version:
        return warning(
            ANSWERS,
            what,
            f"the library speaks for driver {answer.driver_version}, the kernel has {kernel.version}",
            "an update awaits a reboot: reboot, or reload the driver",
        )
    return works(ANSWERS, what, f"driver {answer.driver_version} answers")


def _version_of(path: str) -> str:
    """The version at the end of `libnvidia-ml.so.570.86.15`; the file's name where it has none."""
    name = Path(path).name
    version = name.removeprefix("libnvidia-ml.so.")
    return version if "." in version else name
