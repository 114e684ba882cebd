"""What a user sets about dialects."""

from __future__ import annotations

from dataclasses import dataclass
from re import fullmatch
from typing import ClassVar, Literal

from gpuledger.model.settings import Reload, boolean, choice, setting, text, words

DEFAULT = ("process", "session", "energy", "native")


def _prefix(value: object) -> str:
    prefix = text(value)
    if not fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", prefix):
        raise ValueError("the beginning of a metric name is wanted: letters, digits and underscores")
    return prefix


# What dcgm-exporter's labels are called, in both schemas and under the old namespace.
_DCGM_LABELS = frozenset(
    {"gpu", "UUID", "uuid", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "GPU_CI_ID"}
    | {"Hostname", "hostname", "container", "namespace", "pod", "pod_uid", "hpc_job", "err_code", "err_msg"}
    | {"container_name", "pod_namespace", "pod_name", "xid", "health_error_code", "health_watch"}
)


def _schema(value: object) -> Literal["4.8", "4.9"]:
    return "4.9" if choice("4.8", "4.9")(str(value)) == "4.9" else "4.8"


def _label(value: object) -> tuple[str, str]:
    name, equals, told = text(value).partition("=")
    name = name.strip()
    if not equals or not fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name):
        raise ValueError("labels such as cluster=west are wanted")
    if name in _DCGM_LABELS or name.startswith("DCGM_"):
        raise ValueError(f"another name than {name} is wanted, which is a label of dcgm-exporter's")
    return name, told.strip()


def _labels(value: object) -> tuple[tuple[str, str], ...]:
    # In a file a mapping is as good as a list.
    given = [f"{name}={told}" for name, told in value.items()] if isinstance(value, dict) else value
    return tuple(dict(words(_label)(given)).items())


@dataclass(frozen=True, slots=True)
class DialectSettings:
    """In which vocabularies the facts are told, and how the `process` and `session` ones spell them."""

    reload: ClassVar[Reload] = Reload()

    dialect: tuple[str, ...] = setting(
        "dialect",
        words(text),
        DEFAULT,
        "the dialects of the metrics page, comma-separated; each is also at its own /metrics/<dialect>",
        metavar="LIST",
    )
    node_name: str = setting(
        "node_name",
        text,
        "",
        "name of this node in Kubernetes (default: $NODE_NAME, else the hostname); given, it is also a label "
        "node=NAME of the process and session families",
        metavar="NAME",
    )
    mig_label: str = setting(
        "process.mig_label",
        choice("gi-ci", "device"),
        "gi-ci",
        "gpu label of a MIG instance: gi-ci gives GPU_GI_CI (0_2_0), device gives GPU_DEVICE_0 (0_1_0)",
        metavar="FORM",
    )
    pid_label: str = setting(
        "process.pid_label",
        choice("host", "gpu-prefixed"),
        "host",
        "pid label: host is the pid as nvidia-smi prints it, gpu-prefixed gives gpu1_12345",
        metavar="FORM",
    )
    memory_label: bool = setting(
        "process.memory_label",
        boolean,
        True,
        "put gpu_memory on gpu_process_info; a changing label makes a new series at every change",
    )
    metric_prefix: str = setting(
        "metric_prefix",
        _prefix,
        "my_gpu_process",
        "what the names of the energy dialect begin with",
        metavar="PREFIX",
    )
    graphics: bool = setting(
        "process.graphics",
        boolean,
        False,
        "tell and count processes that only draw, too, in process and session",
    )


@dataclass(frozen=True, slots=True)
class DcgmSettings:
    """How the `dcgm` dialect spells what it tells. Which fields it tells is in a collectors file."""

    reload: ClassVar[Reload] = Reload(files=("dcgm.collectors",))

    schema: Literal["4.8", "4.9"] = setting(
        "dcgm.schema",
        _schema,
        "4.8",
        "names and units of dcgm-exporter up to 4.8 (DCGM_FI_DEV_FB_USED, MiB), or since 4.9 "
        "(DCGM_FI_DEV_FB_USED_BYTES)",
        metavar="4.8|4.9",
    )
    collectors: str = setting(
        "dcgm.collectors",
        text,
        "",
        "CSV file of the fields to tell, in dcgm-exporter's format (default: its usual ones, and more)",
        metavar="FILE",
    )
    hostname_label: bool = setting(
        "dcgm.hostname_label",
        boolean,
        True,
        "put the node's name on every series: Hostname, or hostname in schema 4.9",
    )
    old_namespace: bool = setting(
        "dcgm.old_namespace",
        boolean,
        False,
        "labels of dcgm-exporter 1: uuid, pod_name, pod_namespace, container_name",
    )
    pod_uid: bool = setting("dcgm.pod_uid", boolean, False, "put pod_uid beside pod")
    pod_labels: bool = setting(
        "dcgm.pod_labels",
        boolean,
        False,
        "put the labels of --pod-label-allowlist beside pod; a label that changes makes new series",
    )
    job_label: bool = setting(
        "dcgm.job_label",
        boolean,
        False,
        "put hpc_job on the devices that exactly one job of a batch system has",
    )
    model_dashes: bool = setting(
        "dcgm.model_dashes", boolean, False, "put dashes for the blanks in modelName"
    )
    labels: tuple[tuple[str, str], ...] = setting(
        "dcgm.labels",
        _labels,
        (),
        "labels to put on every series, such as cluster=west; comma-separated",
        metavar="NAME=VALUE,...",
    )


@dataclass(frozen=True, slots=True)
class SmiDialectSettings:
    """How much the `smi` dialect tells."""

    reload: ClassVar[Reload] = Reload()

    compute_apps: bool = setting(
        "smi.compute_apps",
        boolean,
        True,
        "tell every compute process by pid and name",
    )
