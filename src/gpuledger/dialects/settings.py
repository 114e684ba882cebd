"""What a user sets about dialects."""

from __future__ import annotations

from dataclasses import dataclass
from re import fullmatch
from typing import ClassVar

from gpuledger.model.settings import Reload, boolean, choice, setting, text, words

DEFAULT = ("process", "session", "energy", "native")


def _prefix(value: object) -> str:
    prefix = text(value)
    if not fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", prefix):
        raise ValueError("the beginning of a metric name is wanted: letters, digits and underscores")
    return prefix


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
