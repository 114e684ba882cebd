"""Masking of identifiers in Snapshots: text fields to keep are listed one by one, all others are masked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import (
    CgroupUsage,
    CollectorRun,
    Failure,
    MeterRules,
    Reading,
    Snapshot,
    SourceInfo,
    VgpuInstance,
)
from gpuledger.model.workload import FACTS, Allocation, Workload
from gpuledger.sources.replay.cgroup_masking import mask_cgroup
from gpuledger.sources.replay.masks import Masks, without_arguments
from gpuledger.sources.replay.recording import Outage, RecordingEntry

_OUTAGE_TEXT: Final = "the recorded source could not be read at this time (its message is masked)"

Rule = Callable[[Masks, Any], Any]

_SHORT_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{0,48}")
_RESOURCE: Final = re.compile(
    r"(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-\d+g\.\d+gb(?:\.[a-z]+)*)"
    r"|amd\.com/(?:gpu|[a-z]{3}_nps\d)|gpu\.intel\.com/(?:i915|xe))?"
)
_AMD_UUID: Final = re.compile(r"(GPU-)([0-9a-f]{16})((?:/\d{1,2})?)")
# PCI address and ids, and digits of the machine.
_LOCAL_IDENTITY: Final = re.compile(r"(PCI-[0-9a-f:.]+-[0-9a-f]{4}:[0-9a-f]{4}(?:-(?=.))?)([0-9a-f]{12})?")
_DEVICE_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{36}")
# NVML's return codes, by name: any other word in capitals can be a host or a user.
_NVML_CODE: Final = re.compile(
    "SUCCESS|UNINITIALIZED|INVALID_ARGUMENT|NOT_SUPPORTED|NO_PERMISSION|ALREADY_INITIALIZED|NOT_FOUND"
    "|INSUFFICIENT_(?:SIZE|POWER|RESOURCES)|DRIVER_NOT_LOADED|TIMEOUT|IRQ_ISSUE|LIBRARY_NOT_FOUND"
    "|FUNCTION_NOT_FOUND|CORRUPTED_INFOROM|GPU_IS_LOST|RESET_REQUIRED|OPERATING_SYSTEM|LIB_RM_VERSION_MISMATCH"
    "|IN_USE|MEMORY|NO_DATA|VGPU_ECC_NOT_SUPPORTED|FREQ_NOT_SUPPORTED|ARGUMENT_VERSION_MISMATCH|DEPRECATED"
    r"|NOT_READY|GPU_NOT_FOUND|INVALID_STATE|RESET_TYPE_NOT_SUPPORTED|UNKNOWN|NVML_\d{1,4}"
)
# The other words of error details such as `nvmlDeviceGetPowerUsage: GPU_IS_LOST (and 2 more)`. A longer
# number can be a serial.
_DETAIL_WORD: Final = re.compile(r"nvml[A-Z]\w{,60}|\d{1,4}|and|more|every|call|field|of|index|MIG|device")
_IDENTIFYING_COLUMN: Final = re.compile(r"uuid|guid|serial|host|chassis|name|command", re.IGNORECASE)
_MEASUREMENT: Final = re.compile(
    r"\[?(?:N/A|Not (?:Active|Supported|Available|Found)|Active|Enabled|Disabled|Default|None|Yes|No|Success"
    r"|Prohibited|Exclusive_Process|Pending|All On|Completed|In Progress|P\d{1,2}"
    r"|Insufficient Permissions|Function Not Found|Unknown Error|Requested functionality has been deprecated"
    r"|0x[0-9A-Fa-f]+|[0-9A-Fa-f:.]+|[-+]?\d[\d.,/: ]*(?: ?(?:%|W|MHz|MiB|KiB|GiB|C|us|ms|mJ|KB/s|MB/s))?)\]?"
)


def _keep(_masks: Masks, value: Any) -> Any:
    return value


def _keep_word(masks: Masks, value: str) -> str:
    """Keep a single short word (a kind, a reason); mask any other text."""
    return value if _SHORT_WORD.fullmatch(value) else masks.name("word", value)


def _keep_error_detail(masks: Masks, value: str) -> str:
    """Keep a line that consists of calls, codes and Devices, with the Devices masked; mask any other line."""
    words = set(re.findall(r"[^\s:,()]+", _DEVICE_UUID.sub(" ", value))) - QUANTITIES.keys()
    if all(_DETAIL_WORD.fullmatch(word) or _NVML_CODE.fullmatch(word) for word in words):
        return _DEVICE_UUID.sub(lambda found: masks.uuid(found[0]), value)
    return masks.name("text", value)


def _mask_columns(masks: Masks, columns: Mapping[str, str]) -> dict[str, str]:
    """Keep the measurements and states in nvidia-smi's columns; mask names and identifying numbers."""
    return {
        column: value
        if not _IDENTIFYING_COLUMN.search(column) and _MEASUREMENT.fullmatch(value)
        else masks.name("value", value)
        for column, value in columns.items()
    }


def _name_rule(kind: str) -> Rule:
    return lambda masks, value: masks.name(kind, value)


def _mask_labels(masks: Masks, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((masks.name("label", key), masks.name("label-value", text)) for key, text in value)


def _mask_resource(masks: Masks, value: str) -> str:
    """Keep NVIDIA's resource names; mask those of resource claims and cluster operators."""
    return value if _RESOURCE.fullmatch(value) else masks.name("resource", value)


def _mask_serial(masks: Masks, value: str | None) -> str | None:
    return None if value is None else masks.digits("serial", value)


def _mask_device_uuid(masks: Masks, value: str) -> str:
    """Keep the form of the identity; a PCI address identifies nobody, the digits after it do."""
    if local := _LOCAL_IDENTITY.fullmatch(value):
        return local[1] + (masks.hexadecimal("machine", local[2]) if local[2] else "")
    if amd := _AMD_UUID.fullmatch(value):
        return amd[1] + masks.hexadecimal("gpu", amd[2]) + amd[3]
    return masks.uuid(value)


def _mask_uid(masks: Masks, value: int | None) -> int | None:
    return None if value is None else masks.uid(value)


# A rule for each field with text, and for each number that identifies something.
RULES: Final[dict[type, dict[str, Rule]]] = {
    Gpu: {
        "uuid": _mask_device_uuid,
        "serial": _mask_serial,
        **dict.fromkeys(
            ("name", "pci_bus_id", "vbios", "architecture", "compute_capability", "vendor", "nodes"), _keep
        ),
    },
    Instance: {"uuid": _mask_device_uuid, "profile": _keep, "nodes": _keep},
    MeterRules: {"epoch": _keep, "basis": _keep_word},
    ProcessStart: {"boot_id": Masks.uuid},
    Snapshot: {"boot_id": Masks.uuid, "driver_load": _keep},
    HostFacts: {
        "executable": Masks.program,
        "comm": Masks.program,
        "uid": _mask_uid,
        "user": Masks.user,
        "cgroup": lambda masks, value: mask_cgroup(value, masks) if value else "",
        "missing": _keep_word,
    },
    Workload: {
        **{fact: _name_rule(fact.replace("_", "-")) for fact in FACTS},
        **dict.fromkeys(("kind", "runtime", "found_by", "missing", "controller_kind"), _keep_word),
        "labels": _mask_labels,
        "namespace": _name_rule("namespace"),
        "pod": _name_rule("pod"),
        "container": Masks.container,
        "pod_uid": lambda masks, value: masks.hexadecimal("pod-uid", value),
        "container_id": lambda masks, value: masks.hexadecimal("container-id", value),
        "inner_pod_uid": lambda masks, value: masks.hexadecimal("pod-uid", value),
        "inner_container_id": lambda masks, value: masks.hexadecimal("container-id", value),
        "job": Masks.job,
        "step": Masks.step,
        "unit": Masks.unit,
        "user": Masks.user,
        "array_job": Masks.job,
        "array_task": Masks.step,
    },
    GpuProcess: {"name": Masks.program},
    CgroupUsage: {"sluid": Masks.job},
    Failure: {"part": _keep_word, "reason": _keep_word, "detail": _keep_error_detail},
    CollectorRun: {"name": _keep_word, "error": _keep_error_detail},
    Reading: {"supported": _keep, "raw": _mask_columns, "down_reason": _keep_word},
    VgpuInstance: {"uuid": Masks.uuid, "vm": _name_rule("vm"), "profile": _keep},
    Allocation: {"found_by": _keep_word, "resource": _mask_resource},
    SourceInfo: {
        **dict.fromkeys(("name", "driver_version", "library_version", "cuda_version"), _keep_word),
        "detail": _name_rule("detail"),
    },
    Outage: {
        "reason": _keep_word,
        "text": lambda _masks, _text: _OUTAGE_TEXT,
    },
}


class Masker:
    """Masks the entries of one recording; an identifier gets the same mask in all of them.

    `key` is the secret key of the masks, random by default.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._masks = Masks(key)

    def __call__(self, entry: RecordingEntry) -> RecordingEntry:
        """Return the entry with every identifier masked and everything else unchanged."""
        masked: RecordingEntry = self._walk(entry)
        return masked

    def _walk(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            plan = _plan(type(value))
            changed = {
                name: self._walk(getattr(value, name))
                if rule is None
                else rule(self._masks, getattr(value, name))
                for name, rule in plan.items()
            }
            return replace(value, **changed) if changed else value
        if isinstance(value, tuple):
            return tuple([self._walk(item) for item in value])
        return value


@cache
def _plan(kind: type) -> dict[str, Rule | None]:
    """Return the fields that may contain identifiers, with the rule for each, or None to mask inside it."""
    rules = RULES.get(kind, {})
    plan: dict[str, Rule | None] = {}
    for item in (item for item in fields(kind) if item.init):
        parts = parts_of(get_type_hints(kind)[item.name])
        if item.name in rules:
            if rules[item.name] is not _keep:
                plan[item.name] = rules[item.name]
        elif str in parts:
            # A new field of the model without a rule yet: hide it.
            plan[item.name] = _hide
        elif any(is_dataclass(part) for part in parts):
            plan[item.name] = None
    return plan


def _hide(masks: Masks, value: Any) -> Any:
    if isinstance(value, str):
        return masks.name("hidden", value)
    return type(value)() if isinstance(value, tuple | dict | frozenset) else None


def parts_of(hint: Any) -> set[Any]:
    """Return the plain types that a declared type consists of, except Quantity."""
    inner = get_args(hint)
    if not inner:
        return set() if hint is Quantity else {hint}
    return set().union(*(parts_of(part) for part in inner))


def strip_arguments(entry: RecordingEntry) -> RecordingEntry:
    """Remove program arguments from process names; they may be private, and no dialect exports them."""
    if not isinstance(entry, Snapshot) or not any(
        " -" in process.name for reading in entry.readings for process in reading.processes or ()
    ):
        return entry
    return replace(entry, readings=tuple([_strip_reading(reading) for reading in entry.readings]))


def _strip_reading(reading: Reading) -> Reading:
    if not reading.processes:
        return reading
    kept = [replace(process, name=without_arguments(process.name)) for process in reading.processes]
    return replace(reading, processes=tuple(kept))
