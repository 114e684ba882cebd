"""Settings of the dialects."""

from __future__ import annotations

from dataclasses import dataclass
from re import fullmatch
from typing import ClassVar, Literal

from gpuledger.model.settings import ReloadPolicy, boolean, choice, comma_separated, setting, text

DEFAULT_DIALECTS = ("process", "session", "energy", "native")


def _prefix(value: object) -> str:
    prefix = text(value)
    if not fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", prefix):
        raise ValueError("expected the prefix of a metric name: letters, digits and underscores")
    return prefix


def _optional_prefix(value: object) -> str:
    return _prefix(value) if value else ""


# Labels of dcgm-exporter, in both schemas and with the old namespace.
_DCGM_LABELS = frozenset(
    {"gpu", "UUID", "uuid", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "GPU_CI_ID"}
    | {"Hostname", "hostname", "container", "namespace", "pod", "pod_uid", "hpc_job", "err_code", "err_msg"}
    | {"container_name", "pod_namespace", "pod_name", "xid", "health_error_code", "health_watch"}
)


def _schema(value: object) -> Literal["4.8", "4.9"]:
    return "4.9" if choice("4.8", "4.9")(str(value)) == "4.9" else "4.8"


def _label(value: object) -> tuple[str, str]:
    name, equals, content = text(value).partition("=")
    name = name.strip()
    if not equals or not fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name):
        raise ValueError("expected labels such as cluster=west")
    if name in _DCGM_LABELS or name.startswith("DCGM_"):
        raise ValueError(f"the label {name} is reserved by dcgm-exporter; choose another name")
    return name, content.strip()


def _labels(value: object) -> tuple[tuple[str, str], ...]:
    # A configuration file can contain a mapping instead of a list.
    given = value
    if isinstance(value, dict):
        given = [f"{name}={'' if content is None else text(content)}" for name, content in value.items()]
    found = comma_separated(_label)(given)
    names = [name for name, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"the label {twice} is given twice; expected each label once")
    return found


@dataclass(frozen=True)
class DialectSettings:
    """The dialects of the metrics page, and the labels of the `process`, `session` and `energy` dialects."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    dialect: tuple[str, ...] = setting(
        "dialect",
        comma_separated(text),
        DEFAULT_DIALECTS,
        "dialects of the metrics page, comma-separated; each dialect is also available at /metrics/<dialect>",
    )
    node_name: str = setting(
        "node_name",
        text,
        "",
        "name of this node in Kubernetes (default: $NODE_NAME, else the hostname); if set, the process and "
        "session families have a label node=NAME",
        metavar="NAME",
        as_written=True,
    )
    mig_label: str = setting(
        "process.mig_label",
        choice("gi-ci", "device"),
        "gi-ci",
        "gpu label of a MIG instance: gi-ci for GPU_GI_CI (0_2_0), device for GPU_DEVICE_0 (0_1_0)",
        metavar="FORM",
    )
    pid_label: str = setting(
        "process.pid_label",
        choice("host", "gpu-prefixed"),
        "host",
        "pid label: host for the pid that nvidia-smi prints, gpu-prefixed for gpu1_12345",
        metavar="FORM",
    )
    memory_label: bool = setting(
        "process.memory_label",
        boolean,
        True,
        "label gpu_memory of gpu_process_info; each change of it is a new series",
    )
    metric_prefix: str = setting(
        "metric_prefix",
        _prefix,
        "my_gpu_process",
        "prefix of the metric names of the energy dialect",
        metavar="PREFIX",
    )
    graphics: bool = setting(
        "process.graphics",
        boolean,
        False,
        "include graphics-only processes in the process and session dialects",
    )


@dataclass(frozen=True)
class DcgmSettings:
    """Names and labels of the `dcgm` dialect. The collectors file selects its fields."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(files=("dcgm.collectors",))

    schema: Literal["4.8", "4.9"] = setting(
        "dcgm.schema",
        _schema,
        "4.8",
        "names and units of dcgm-exporter up to 4.8 (DCGM_FI_DEV_FB_USED, MiB) or since 4.9 "
        "(DCGM_FI_DEV_FB_USED_BYTES)",
        metavar="4.8|4.9",
    )
    collectors: str = setting(
        "dcgm.collectors",
        text,
        "",
        "CSV file of the fields to export, in dcgm-exporter's format (default: its default fields and more)",
        metavar="FILE",
    )
    hostname_label: bool = setting(
        "dcgm.hostname_label",
        boolean,
        True,
        "add the node name to every series: label Hostname, or hostname in schema 4.9",
    )
    old_namespace: bool = setting(
        "dcgm.old_namespace",
        boolean,
        False,
        "use the labels of dcgm-exporter 1: uuid, pod_name, pod_namespace, container_name",
    )
    pod_uid: bool = setting("dcgm.pod_uid", boolean, False, "add the label pod_uid next to pod")
    pod_labels: bool = setting(
        "dcgm.pod_labels",
        boolean,
        False,
        "add the pod labels of --pod-label-allowlist next to pod; every change of a label creates new series",
    )
    job_label: bool = setting(
        "dcgm.job_label",
        boolean,
        False,
        "add the label hpc_job to devices that exactly one job of a batch system uses",
    )
    model_dashes: bool = setting(
        "dcgm.model_dashes", boolean, False, "replace spaces in modelName with dashes"
    )
    labels: tuple[tuple[str, str], ...] = setting(
        "dcgm.labels",
        _labels,
        (),
        "labels to add to every series, such as cluster=west; comma-separated",
        metavar="NAME=VALUE,...",
        as_written=True,
    )


@dataclass(frozen=True)
class EnergyDialectSettings:
    """Names of the `energy` dialect; DialectSettings has their prefix."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    total_suffix: bool = setting(
        "metric_total_suffix",
        boolean,
        False,
        "end the names of the energy dialect's counters in _total (my_gpu_process_energy_joules_total), as "
        "the code of my-gpu-exporter does",
    )


@dataclass(frozen=True)
class SmiDialectSettings:
    """What the `smi` dialect exports."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    compute_apps: bool = setting(
        "smi.compute_apps",
        boolean,
        True,
        "export every compute process with pid and name",
    )
    pcie_throughput: bool = setting(
        "smi.pcie_throughput",
        boolean,
        False,
        "with NVML, measure the PCIe rates of GPUs before Ampere, which have no counter of bytes: a sample "
        "of 20 ms in each direction every --slow-interval, for which the reading waits",
    )


@dataclass(frozen=True)
class AmdDialectSettings:
    """Settings of the dialect with the names of AMD's device metrics exporter."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    prefix: str = setting(
        "amd.prefix",
        _optional_prefix,
        "",
        "prefix of the metric names of the amd dialect; AMD's exporter in Kubernetes has amd_",
        metavar="PREFIX",
    )
