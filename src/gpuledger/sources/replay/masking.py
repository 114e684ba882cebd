"""A Snapshot without identifiers: what may stay is listed field by field, all other text is masked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import GpuProcess, HostFacts, Start
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import Collected, Failure, Reading, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.sources.replay.cgroups import mask_cgroup
from gpuledger.sources.replay.masks import Masks, without_arguments
from gpuledger.sources.replay.recording import Entry, Outage

_OUTAGE_TEXT: Final = "the recorded source could not be read at this time (its words are masked)"

Rule = Callable[[Masks, Any], Any]

_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{0,48}")
_RESOURCE: Final = re.compile(r"(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-\d+g\.\d+gb(?:\.[a-z]+)*))?")
_DEVICE_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{36}")
# What a source says of its own calls: `nvmlDeviceGetPowerUsage: GPU_IS_LOST (and 2 more)`.
_CALL_WORD: Final = re.compile(r"nvml\w+|[A-Z][A-Z0-9_]+|\d+|and|more|every|call|field|index")
_UNTOLD_COLUMN: Final = re.compile(r"uuid|guid|serial|host|chassis|name|command", re.IGNORECASE)
_MEASURE: Final = re.compile(
    r"\[?(?:N/A|Not (?:Active|Supported|Available|Found)|Active|Enabled|Disabled|Default|None|Yes|No|Success"
    r"|Prohibited|Exclusive_Process|Pending|All On|Completed|In Progress|P\d{1,2}"
    r"|0x[0-9A-Fa-f]+|[0-9A-Fa-f:.]+|[-+]?\d[\d.,/: ]*(?: ?(?:%|W|MHz|MiB|KiB|GiB|C|us|ms|mJ|KB/s|MB/s))?)\]?"
)


def _keep(_masks: Masks, value: Any) -> Any:
    return value


def _word(masks: Masks, value: str) -> str:
    """A short word of ours (a kind, a reason) stays; a sentence in its place does not."""
    return value if _WORD.fullmatch(value) else masks.name("word", value)


def _prose(masks: Masks, value: str) -> str:
    """A line that only names calls, codes and Devices stays, with the Devices masked."""
    told = _DEVICE_UUID.sub(" ", value)
    words = re.findall(r"[^\s:,()]+", told)
    if all(_CALL_WORD.fullmatch(word) or word in QUANTITIES for word in words):
        return _DEVICE_UUID.sub(lambda found: masks.uuid(found[0]), value)
    return masks.name("text", value)


def _raw(masks: Masks, columns: Mapping[str, str]) -> dict[str, str]:
    """Columns of nvidia-smi: measures and states stay, names and numbers of things do not."""
    return {
        column: value
        if not _UNTOLD_COLUMN.search(column) and _MEASURE.fullmatch(value)
        else masks.name("value", value)
        for column, value in columns.items()
    }


def _named(kind: str) -> Rule:
    return lambda masks, value: masks.name(kind, value)


def _labels(masks: Masks, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((masks.name("label", key), masks.name("label-value", told)) for key, told in value)


def _resource(masks: Masks, value: str) -> str:
    """The vendor's own names stay; a claim's or an operator's own is a name."""
    return value if _RESOURCE.fullmatch(value) else masks.name("resource", value)


def _serial(masks: Masks, value: str | None) -> str | None:
    return None if value is None else masks.digits("serial", value)


def _uid(masks: Masks, value: int | None) -> int | None:
    return None if value is None else masks.uid(value)


# Every field that holds text, and the numbers that are names.
RULES: Final[dict[type, dict[str, Rule]]] = {
    Gpu: {
        "uuid": Masks.uuid,
        "serial": _serial,
        **dict.fromkeys(("name", "pci_bus_id", "vbios", "architecture", "compute_capability"), _keep),
    },
    Instance: {"uuid": Masks.uuid, "profile": _keep},
    Start: {"boot_id": Masks.uuid},
    Snapshot: {"boot_id": Masks.uuid, "driver_load": _keep},
    HostFacts: {
        "executable": Masks.program,
        "comm": Masks.program,
        "uid": _uid,
        "user": Masks.user,
        "cgroup": lambda masks, value: mask_cgroup(value, masks) if value else "",
        "missing": _word,
    },
    Workload: {
        **dict.fromkeys(("kind", "runtime", "found_by", "missing", "controller_kind"), _word),
        "labels": _labels,
        "controller": _named("controller"),
        "namespace": _named("namespace"),
        "pod": _named("pod"),
        "container": _named("container"),
        "pod_uid": lambda masks, value: masks.hexadecimal("pod-uid", value),
        "container_id": lambda masks, value: masks.hexadecimal("container-id", value),
        "job": Masks.job,
        "step": Masks.step,
        "unit": Masks.unit,
        "user": Masks.user,
    },
    GpuProcess: {"name": Masks.program},
    Failure: {"part": _word, "reason": _word, "detail": _prose},
    Collected: {"name": _word, "error": _prose},
    Reading: {"supported": _keep, "raw": _raw},
    Allocation: {"found_by": _word, "resource": _resource},
    SourceInfo: {
        **dict.fromkeys(("name", "driver_version", "library_version", "cuda_version"), _word),
        "detail": _named("detail"),
    },
    Outage: {
        "reason": _word,
        "text": lambda _masks, _text: _OUTAGE_TEXT,
    },
}


class Masker:
    """Masks the entries of one recording, each identifier in the same way throughout.

    `key` is the secret of the masks; without one it is drawn at random.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._masks = Masks(key)

    def __call__(self, entry: Entry) -> Entry:
        """The entry with every identifier replaced, and else as it was."""
        masked: Entry = self._walk(entry)
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
    """What to do with each field that may hold an identifier: a rule, or None to look inside."""
    rules = RULES.get(kind, {})
    plan: dict[str, Rule | None] = {}
    for item in (item for item in fields(kind) if item.init):
        parts = parts_of(get_type_hints(kind)[item.name])
        if item.name in rules:
            if rules[item.name] is not _keep:
                plan[item.name] = rules[item.name]
        elif str in parts:
            # A field that the model gained: hidden until somebody decides.
            plan[item.name] = _hide
        elif any(is_dataclass(part) for part in parts):
            plan[item.name] = None
    return plan


def _hide(masks: Masks, value: Any) -> Any:
    if isinstance(value, str):
        return masks.name("hidden", value)
    return type(value)() if isinstance(value, tuple | dict | frozenset) else None


def parts_of(hint: Any) -> set[Any]:
    """The plain types that a declared type is made of; Quantities, which are ours, are not among them."""
    inner = get_args(hint)
    if not inner:
        return set() if hint is Quantity else {hint}
    return set().union(*(parts_of(part) for part in inner))


def strip_arguments(entry: Entry) -> Entry:
    """The entry without the arguments that some programs show in their names, which no page tells."""
    if not isinstance(entry, Snapshot) or not any(
        " -" in process.name for reading in entry.readings for process in reading.processes or ()
    ):
        return entry
    return replace(entry, readings=tuple([_stripped(reading) for reading in entry.readings]))


def _stripped(reading: Reading) -> Reading:
    if not reading.processes:
        return reading
    kept = [replace(process, name=without_arguments(process.name)) for process in reading.processes]
    return replace(reading, processes=tuple(kept))
